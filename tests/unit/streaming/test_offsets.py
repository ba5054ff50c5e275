"""The files between two places of a topic: every record between them once, wherever it lies by then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from headwater.catalog.topics import Topic
from headwater.engine import Lake
from headwater.errors import StreamFailed
from headwater.storage.commit import Change, commit
from headwater.storage.maintenance.expire import Keep, plan_expiry, run_expiry
from headwater.storage.scan import ManifestCache, plan_scan
from headwater.storage.writer import PartitionedWriter, local_path
from headwater.streaming.checkpoint import Batch
from headwater.streaming.offsets import Place, Span, head_of, remove_cuts, span
from headwater.streaming.reading import TopicFiles
from headwater.topics.ingest import target
from headwater.types import OFFSET


class Followed:
    """The topic `t` of a small lake, and what a stream reads of it."""

    def __init__(self, lake: Lake, folder: Path, partitioned: str = "") -> None:
        self.lake = lake
        self.cache = ManifestCache()
        self.scratch = folder / "cut"
        self._next = 0
        lake.sql(f"CREATE TOPIC t (n BIGINT, text STRING) {partitioned}")

    @property
    def topic(self) -> Topic:
        return self.lake.topics.load("t")

    @property
    def head(self) -> Place:
        return head_of(self.topic)

    def append(self, rows: int = 3) -> Place:
        numbers = range(self._next, self._next + rows)
        self.lake.topic("t").append([{"n": n, "text": f"record {n}"} for n in numbers])
        self.lake.flush("t")
        self._next += rows
        return self.head

    def _change(self, rows: pa.Table, removed: list[DataFile], operation: str) -> Place:
        writer = PartitionedWriter(target(self.topic), lambda: uuid4().hex)
        if rows.num_rows:
            writer.write(rows)
        change = Change(writer.close(), removed, operation)  # type: ignore[arg-type]
        commit(lambda: self.lake.topics.tables.load_for_commit(self.topic.table_name), change, lambda _: None)
        return self.head

    def _live(self) -> tuple[list[DataFile], pa.Table]:
        files = list(plan_scan(self.topic.table, self.topic.snapshot_id, AlwaysTrue(), self.cache).files)
        found = [pq.read_table(local_path(each.file_path)) for each in files]
        return files, pa.concat_tables(found).sort_by(OFFSET)

    def compact(self) -> Place:
        files, rows = self._live()
        return self._change(rows, files, "replace")

    def delete(self, *numbers: int) -> Place:
        files, rows = self._live()
        gone = pc.is_in(rows.column("n"), pa.array(numbers, pa.int64()))
        return self._change(rows.filter(pc.invert(gone)), files, "overwrite")

    def update(self, *numbers: int) -> Place:
        files, rows = self._live()
        hit = pc.is_in(rows.column("n"), pa.array(numbers, pa.int64()))
        text = pc.if_else(hit, "changed", rows.column("text"))
        place = rows.schema.get_field_index("text")
        return self._change(rows.set_column(place, rows.schema.field(place), text), files, "overwrite")

    def expire(self) -> None:
        def load() -> object:
            return self.lake.topics.tables.load_for_commit(self.topic.table_name)

        later = time.time() + 1000
        run_expiry(load, lambda table: plan_expiry(table.metadata, Keep(0), later), lambda _: None, self.cache)  # type: ignore[arg-type]

    def between(self, start: Place, end: Place) -> Span:
        return span(self.topic, start, end, self.cache, self.scratch)

    def numbers(self, found: Span) -> list[int]:
        """The records of the files, which say of themselves how large they are."""
        numbers = []
        for path, size, rows in found.files:
            assert local_path(path).stat().st_size == size
            read = pq.read_table(local_path(path))
            assert read.num_rows == rows > 0
            assert read.column("n").to_pylist() == read.column(OFFSET).to_pylist()
            numbers += read.column("n").to_pylist()
        assert found.rows == len(numbers)
        return sorted(numbers)


@pytest.fixture
def followed(lake: Lake, tmp_path: Path) -> Iterator[Followed]:
    yield Followed(lake, tmp_path)


START = Place("t")


def test_a_topic_without_records_has_no_files(followed: Followed) -> None:
    assert followed.head == START
    assert followed.between(START, followed.head) == Span(())
    assert followed.between(START, followed.head).to_json() == "[]"


def test_appended_files_are_read_as_they_are(followed: Followed) -> None:
    places = [START, *(followed.append() for _ in range(3))]
    assert [each.offset for each in places] == [0, 3, 6, 9]
    for i, start in enumerate(places):
        for j, end in enumerate(places[i + 1 :], i + 1):
            found = followed.between(start, end)
            assert followed.numbers(found) == list(range(3 * i, 3 * j))
            assert (len(found.files), found.changed) == (j - i, False)
    assert followed.between(places[2], places[2]) == Span(())
    assert not followed.scratch.exists()


def test_compaction_is_stepped_over(followed: Followed) -> None:
    first = followed.append()
    followed.append()
    packed = followed.compact()
    assert packed.offset == 6
    last = followed.append()
    assert followed.numbers(followed.between(first, packed)) == [3, 4, 5]
    assert followed.numbers(followed.between(first, last)) == list(range(3, 9))
    assert followed.between(last, followed.compact()) == Span(())
    assert not followed.between(first, last).changed


def test_what_was_deleted_or_changed_is_not_read_again(followed: Followed) -> None:
    first = followed.append()
    gone = followed.delete(1)
    assert (first.offset, gone.offset) == (3, 3)
    assert followed.between(first, gone) == Span((), changed=True)
    followed.append()
    followed.update(0, 4)
    last = followed.append()
    found = followed.between(first, last)
    assert found.changed
    assert followed.numbers(found) == [3, 4, 5, 6, 7, 8]
    texts = [text for path, _, _ in found.files for text in pq.read_table(local_path(path)).column("text").to_pylist()]
    assert texts.count("changed") == 1, "a record that was changed before it was read is read as it is now"
    followed.delete(5, 6)
    assert followed.numbers(followed.between(first, followed.head)) == [3, 4, 7, 8]


def test_places_whose_snapshots_expired_are_found_by_offsets(followed: Followed) -> None:
    first = followed.append()
    second = followed.append()
    followed.compact()
    followed.append()
    packed = followed.compact()
    third = followed.append()
    followed.expire()
    assert followed.topic.table.metadata.snapshot_by_id(first.snapshot or 0) is None
    assert followed.numbers(followed.between(START, first)) == [0, 1, 2]
    assert followed.numbers(followed.between(first, second)) == [3, 4, 5], "a part of one file"
    assert followed.numbers(followed.between(first, third)) == list(range(3, 12)), "a part and a whole"
    assert followed.numbers(followed.between(packed, third)) == [9, 10, 11]
    assert followed.numbers(followed.between(START, third)) == list(range(12))


def test_cuts_go_when_nobody_reads_them(followed: Followed) -> None:
    first = followed.append()
    second = followed.append()
    followed.compact()
    followed.expire()
    kept = followed.between(first, second)
    followed.between(START, first)
    assert len(list(followed.scratch.iterdir())) == 2
    remove_cuts(followed.scratch, [path for path, _, _ in kept.files])
    assert followed.numbers(kept) == [3, 4, 5]
    remove_cuts(followed.scratch)
    assert list(followed.scratch.iterdir()) == []
    remove_cuts(followed.scratch / "never made")


def test_files_of_a_batch_are_those_that_were_planned(followed: Followed) -> None:
    """Also if the topic changes between planning and what is told of the batch afterwards."""
    first = followed.append()
    second = followed.append()
    files = TopicFiles(followed.lake.topics, {"t": followed.topic.id}, followed.cache, followed.scratch)
    planned = files(first, second)
    followed.compact()
    followed.expire()
    batch = Batch(1, {"t": first}, {"t": second}, 0, 0)
    assert files.span(batch, "t").to_json() == planned
    assert files.span(Batch(2, {"t": second}, {"t": second}, 0, 0), "t") == Span(())
    # Whoever comes later finds the same records elsewhere.
    again = TopicFiles(followed.lake.topics, {"t": followed.topic.id}, followed.cache, followed.scratch)
    assert again(first, second) != planned
    assert followed.numbers(again.span(batch, "t")) == [3, 4, 5]


def test_a_change_that_comes_alone_is_told(followed: Followed) -> None:
    first = followed.append()
    files = TopicFiles(followed.lake.topics, {}, followed.cache, followed.scratch)
    assert files.span(Batch(1, {"t": first}, {"t": followed.delete(1)}, 0, 0), "t").changed
    assert not files.span(Batch(1, {"t": first}, {"t": first}, 0, 0), "t").changed


def test_a_topic_that_was_made_anew_is_another_one(followed: Followed) -> None:
    files = TopicFiles(followed.lake.topics, {"t": followed.topic.id}, followed.cache, followed.scratch)
    followed.lake.sql("DROP TOPIC t")
    followed.lake.sql("CREATE TOPIC t (n BIGINT, text STRING)")
    with pytest.raises(StreamFailed, match='topic "t" was dropped and made anew'):
        files(START, followed.append())


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from("aaacdux"), min_size=3, max_size=9), partitioned=st.booleans(), data=st.data())
def test_through_any_history_every_record_is_read_once(
    followed: Followed, tmp_path: Path, steps: list[str], partitioned: bool, data: st.DataObject
) -> None:
    """Read now and then on the way: what is read are the records that are there and were not read before."""
    followed.lake.sql("DROP TOPIC t")
    each = Followed(followed.lake, tmp_path / uuid4().hex, "PARTITIONED BY (bucket(2, n))" if partitioned else "")
    place, gone = START, set[int]()
    for step in [*steps, "a"]:
        written = each.topic.committed
        if step == "a":
            each.append(data.draw(st.integers(1, 4)))
        elif step == "c" and written:
            each.compact()
        elif step in "du" and len(gone) < written:
            number = data.draw(st.sampled_from(sorted(set(range(written)) - gone)))
            (each.delete if step == "d" else each.update)(number)
            gone |= {number} if step == "d" else set()
        elif step == "x":
            each.expire()
        if step == "a" and data.draw(st.booleans()):
            head = each.head
            assert each.numbers(each.between(place, head)) == sorted(set(range(place.offset, head.offset)) - gone)
            place = head
