"""What a Spark task does with its part of a streamed result: write it down as it comes, holding one batch at a time.

Spark's own ways to stream hold a whole partition in the driver, and a partition can be larger than the driver. This
module runs in workers and so imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes Arrow batches that are already serialized into one IPC stream file per partition."""

    folder: str
    schema: bytes

    def __call__(self, index: int, batches: Iterable[bytes]) -> Iterator[str]:
        """Write a partition's batches; yields the file's name, or nothing for an empty partition."""
        messages = iter(batches)
        first = next(messages, None)
        if first is None:
            return
        file = Path(self.folder) / f"part-{index:08d}.arrow"
        with file.open("wb") as sink:
            sink.write(self.schema)
            sink.write(first)
            for message in messages:
                sink.write(message)
            sink.write(END_OF_STREAM)
        yield file.name
