"""How a topic could be stored in less space and read with less work, each idea tried on a sample of its rows.

Ideas about space come from the values alone; those about skipping from what queries asked. An idea that does not gain
clearly more than it costs is not told.
"""

from headwater.storage.advice.recommend import change_of, recommend, settings_of
from headwater.storage.advice.sample import read_sample
from headwater.storage.advice.values import Effect, Recommendation

__all__ = ["Effect", "Recommendation", "change_of", "read_sample", "recommend", "settings_of"]
