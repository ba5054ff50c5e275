"""The composition root: a statement goes in, a room answers, a result comes out.

`lake.py` opens the parts and hands each statement to the file that answers its kind; those files know nothing of each
other.
"""

from headwater.engine.handle import TopicHandle
from headwater.engine.lake import Lake
from headwater.engine.view_handle import ViewHandle

__all__ = ["Lake", "TopicHandle", "ViewHandle"]
