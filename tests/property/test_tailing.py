"""Whatever is appended, committed and looked at in between: a tail gives each record once, in order, without a gap."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from headwater.engine import Lake
from headwater.serving import tailing
from headwater.topics import ingest

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("look"), st.integers(1, 3)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    max_size=25,
)


def write_in_process(_: Any, reader: Any, into: Any, entries: Any) -> Any:
    return ingest.write_entries(reader, into, entries)


class Reader:
    """A tail that is looked at now and then, and taken up again from its mark."""

    def __init__(self, lake: Lake, where: str | None) -> None:
        self.lake, self.where = lake, where
        self.found: list[int] = []
        self.followed = lake.tail("t", "earliest", where=where)._followed

    def look(self, times: int) -> bool:
        for _ in range(times):
            page = self.followed.poll()
            if page is None:
                return False
            self.found += page.rows["_offset"].to_pylist() if page.rows.num_rows else []
        return True

    def resume(self) -> None:
        self.followed = self.lake.tail("t", after=self.followed.at, where=self.where)._followed


@example([("append", 3), ("look", 1), ("flush", 0)], 1, None)  # what a look has read of the log is in the table by then
@given(STEPS, st.integers(1, 4), st.sampled_from([None, "n % 3 = 0", "_offset >= 7"]))
@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])
def test_each_record_once_in_order(steps: list[tuple[str, int]], first_rows: int, where: str | None) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(ingest, "write_files", write_in_process)
    patch.setattr(tailing, "FIRST_ROWS", first_rows)
    patch.setattr(tailing, "MAX_ROWS", first_rows)
    with tempfile.TemporaryDirectory() as folder, Lake.init(Path(folder) / "lake") as lake:
        lake._spark = type("NoSpark", (), {"session": None, "stop": lambda self: None})()
        lake.sql("CREATE TOPIC t (n BIGINT NOT NULL) PARTITIONED BY (bucket(2, n))")
        reader, count = Reader(lake, where), 0
        for step, number in steps:
            match step:
                case "append":
                    lake.topic("t").append([{"n": count + more} for more in range(number)])
                    count += number
                case "flush":
                    lake.flush("t")
                case "look":
                    reader.look(number)
                case "resume":
                    reader.resume()
        while reader.look(1):
            pass
        wanted = {None: lambda n: True, "n % 3 = 0": lambda n: n % 3 == 0, "_offset >= 7": lambda n: n >= 7}[where]
        assert reader.found == [number for number in range(count) if wanted(number)]
    patch.undo()
