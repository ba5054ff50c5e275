"""A producer that may die at any moment: it notes what it sends and what is acknowledged, each note on disk at once.

Started by the tests as a process of its own. Failpoints of the environment are armed after `--clean` batches.
"""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from headwater.engine import Lake
from headwater.errors import StorageBusy
from headwater.observability import failpoints
from headwater.topics import ingest

ROWS = 5
"""Records in a batch; batch `s` holds the numbers from `s * ROWS` on."""


def records(sequence: int) -> list[dict[str, Any]]:
    """The batch of a sequence: always the same."""
    return [{"n": n, "text": f"record {n}"} for n in range(sequence * ROWS, (sequence + 1) * ROWS)]


def note(file: IO[str], text: str) -> None:
    """Write a line that a crash cannot take back."""
    file.write(text + "\n")
    file.flush()
    os.fsync(file.fileno())


def produce(lake: Lake, notes: IO[str], producer: str, sequence: int) -> None:
    note(notes, f"send {producer} {sequence}")
    lake.topic("t").append(records(sequence), producer=producer, sequence=sequence)
    note(notes, f"ack {producer} {sequence}")


def write_in_process(_: object, log_path: Path, into: ingest.Target, entries: Sequence[ingest.Entry]) -> list[Any]:
    return ingest.write_entries(log_path, into, entries)


def without_spark(lake: Lake) -> None:
    """Write files in this process: everything but the Spark job is real."""
    ingest.write_files = write_in_process  # type: ignore[assignment]
    lake._ingester._spark = lambda: None  # type: ignore[assignment, return-value]


def run(lake: Lake, notes: IO[str], asked: argparse.Namespace) -> None:
    armed = os.environ.pop(failpoints.VARIABLE, "")
    for done, sequence in enumerate(range(asked.start, asked.start + asked.batches)):
        if done == asked.clean:
            os.environ[failpoints.VARIABLE] = armed
            failpoints._actions.cache_clear()
        produce(lake, notes, asked.producer, sequence)
        if asked.flush_every and done % asked.flush_every == asked.flush_every - 1:
            lake.flush()
            note(notes, "flushed")
    if asked.statement:
        os.environ[failpoints.VARIABLE] = armed
        failpoints._actions.cache_clear()
        note(notes, "stating")
        lake.sql(asked.statement)
        note(notes, "stated")
    if asked.ingest:
        lake.start_ingest()
        lake._loop._thread.join()  # type: ignore[union-attr]


def run_out_of_room(lake: Lake, notes: IO[str], asked: argparse.Namespace) -> None:
    """Append and flush under a limit on file sizes that grows until everything went through."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = 0
    for sequence in range(asked.start, asked.start + asked.batches):
        room = 0
        while True:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
            try:
                lake.topic("t").append(records(sequence), producer=asked.producer, sequence=sequence)
                lake.flush()
                break
            except StorageBusy:
                refused += 1
                room += 256 + room // 8
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        note(notes, f"send {asked.producer} {sequence}")
        note(notes, f"ack {asked.producer} {sequence}")
    note(notes, f"refused {refused}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("lake")
    parser.add_argument("notes")
    parser.add_argument("--producer", default="p")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--clean", type=int, default=0)
    parser.add_argument("--flush-every", type=int, default=0)
    parser.add_argument("--statement")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--ingest", action="store_true")
    parser.add_argument("--out-of-room", action="store_true")
    asked = parser.parse_args()
    with Path(asked.notes).open("a") as notes, Lake.open(asked.lake, spark_master="local[1]") as lake:
        if asked.no_spark:
            without_spark(lake)
        (run_out_of_room if asked.out_of_room else run)(lake, notes, asked)
        note(notes, "done")


if __name__ == "__main__":
    main()
