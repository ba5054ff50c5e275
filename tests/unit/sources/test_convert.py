from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater.engine import Lake
from headwater.errors import InvalidInput, RecordsRejected, StorageBusy, TopicNotFound
from headwater.sources import convert, files
from headwater.sources.files import format_of, plan_files, rows_per_chunk, table_chunks
from headwater.state.conversions import Conversion, Conversions


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with headwater.init(tmp_path / "lake") as lake:
        lake.sql("CREATE TOPIC t (id BIGINT NOT NULL, who STRING)")
        yield lake


def ndjson(path: Path, ids: Any, **more: Any) -> Path:
    path.write_text("".join(json.dumps({"id": n, "who": f"w{n}", **more}) + "\n" for n in ids))
    return path


def stored(lake: Lake, topic: str = "t") -> list[int]:
    return [row["id"] for row in lake.sql(f"SELECT id FROM {topic} ORDER BY _offset").rows()]


def test_text_files_come_in_once_in_their_order(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    ndjson(folder / "a.ndjson", range(3))
    (folder / "b.csv").write_text("id,who\n3,x\n4,\n")
    (folder / "deep" / "c.json").write_text('[{"id": 5, "who": "y"}, {"id": 6, "who": null}]')
    (folder / "deep" / "d.jsonl.gz").write_bytes(gzip.compress(b'{"id": 7, "who": "z"}\n'))
    (folder / "_SUCCESS").write_text("")
    (folder / "notes.md").write_text("no data")
    told: list[dict[str, Any]] = []
    done = lake.convert("t", folder, progress=lambda step: told.append(dict(step)))
    assert [(Path(each["file"]).name, each["format"], each["rows"]) for each in done] == [
        ("a.ndjson", "ndjson", 3),
        ("b.csv", "csv", 2),
        ("c.json", "json", 2),
        ("d.jsonl.gz", "ndjson", 1),
    ]
    assert {each["status"] for each in done} == {"converted"} and (done[1]["start"], done[1]["end"]) == (3, 5)
    assert stored(lake) == list(range(8))
    assert {step["doing"] for step in told} == {"reading", "checking", "storing"} and told[-1]["files"] == 4
    again = lake.topic("t").convert(folder)
    assert {each["status"] for each in again} == {"already converted"} and [each["rows"] for each in again] == [
        3,
        2,
        2,
        1,
    ]
    assert stored(lake) == list(range(8))
    ndjson(folder / "a.ndjson", range(100, 102))  # another file now
    assert [each["rows"] for each in lake.convert("t", folder) if each["status"] == "converted"] == [2]


def test_a_dry_run_checks_and_stores_nothing(lake: Lake, tmp_path: Path) -> None:
    (done,) = lake.convert("t", ndjson(tmp_path / "a.ndjson", range(3)), dry_run=True)
    assert (done["status"], done["rows"]) == ("checked", 3) and stored(lake) == []
    assert lake.convert("t", tmp_path / "a.ndjson")[0]["status"] == "converted"


def test_a_dry_run_does_not_claim_to_have_checked_what_it_cannot(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC merging (n BIGINT) WITH (evolution = 'merge')")
    path = ndjson(tmp_path / "a.ndjson", range(3))
    (done,) = lake.convert("merging", path, dry_run=True)
    assert (done["status"], done["rows"]) == ("not checked", 0)
    assert lake.convert("merging", path)[0]["status"] == "converted"


def test_one_bad_row_keeps_its_whole_file_out(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 200)  # so that the bad row is not in the first request
    good, bad = ndjson(tmp_path / "1.ndjson", range(20)), ndjson(tmp_path / "2.ndjson", range(20, 60))
    bad.write_text(bad.read_text() + '{"id": "x"}\n{"who": "y"}\n')
    with pytest.raises(RecordsRejected, match=r'2\.ndjson: topic "t" rejected') as refused:
        lake.convert("t", [good, bad])
    assert "line 41" in (refused.value.detail or "") and "line 42" in (refused.value.detail or "")
    assert "1 file had been converted" in (refused.value.detail or "")
    assert (refused.value.hint or "").startswith("Nothing of this file was written.")
    assert refused.value.data["converted"] == [str(good)]
    assert stored(lake) == list(range(20))
    (tmp_path / "3.csv").write_text("id,who,what\n1,a,b\n")
    with pytest.raises(RecordsRejected, match=r"3\.csv") as refused:
        lake.convert("t", tmp_path / "3.csv")
    assert '"what"' in (refused.value.detail or "")


def test_bad_rows_go_to_the_dead_letters_where_the_topic_keeps_them(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC d (id BIGINT NOT NULL, who STRING) WITH (on_invalid = 'dead_letter')")
    path = ndjson(tmp_path / "a.ndjson", range(3))
    path.write_text(path.read_text() + '{"id": "x"}\n')
    assert lake.convert("d", path, dry_run=True)[0]["dead"] == 1
    (done,) = lake.convert("d", path)
    assert (done["rows"], done["dead"]) == (3, 1)
    (dead,) = lake.sql("SELECT origin, raw FROM d__dead").rows()
    assert dead == {"origin": "convert:a.ndjson", "raw": '{"id": "x"}'}


def test_new_fields_become_columns_where_the_topic_merges(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TOPIC m (id BIGINT NOT NULL, who STRING) WITH (evolution = 'merge')")
    lake.convert("m", ndjson(tmp_path / "a.ndjson", range(3), size=4))
    assert lake.sql("SELECT sum(size) AS n FROM m").rows() == [{"n": 12}]


@pytest.mark.parametrize("lost", ["before it is stored", "before it is noted"])
def test_a_run_that_was_killed_goes_on(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 200)
    path, calls = ndjson(tmp_path / "a.ndjson", range(100)), [0]

    def dying(name: str) -> Any:
        real = getattr(convert.Converter if lost.endswith("stored") else Conversions, name)

        def call(*args: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == 4:
                raise StorageBusy("the machine stops here")
            return real(*args, **more)

        return call

    where, name = (convert.Converter, "_sent") if lost.endswith("stored") else (Conversions, "advance")
    with monkeypatch.context() as patch:
        patch.setattr(where, name, dying(name))
        with pytest.raises(StorageBusy):
            lake.convert("t", path)
    assert 0 < len(stored(lake)) < 100
    (done,) = lake.convert("t", path)
    assert (done["status"], done["rows"]) == ("converted", 100)
    assert stored(lake) == list(range(100))


def test_what_cannot_be_converted_is_named(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_text("")
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInput, match=r'file ".*gone\.csv" cannot be read'):
        lake.convert("t", tmp_path / "gone.csv")
    with pytest.raises(InvalidInput, match=r'format of file ".*x\.dat" is not clear'):
        lake.convert("t", tmp_path / "x.dat")
    with pytest.raises(InvalidInput, match="has no data files"):
        lake.convert("t", tmp_path / "none")
    with pytest.raises(InvalidInput, match="no files were named"):
        lake.convert("t", [])
    with pytest.raises(TopicNotFound):
        lake.convert("gone", tmp_path / "gone.csv")
    assert lake.convert("t", tmp_path / "x.dat", format="ndjson")[0]["rows"] == 0


def test_a_file_that_cannot_be_cut_into_records_is_named(lake: Lake, tmp_path: Path) -> None:
    good, bad, packed = (tmp_path / name for name in ("a.json", "b.json", "c.csv.gz"))
    good.write_text('[{"id": 1}]')
    bad.write_text('[{"id": 1}, {"id": oops}]')
    with pytest.raises(RecordsRejected, match=r"b\.json: input is not a JSON array") as refused:
        lake.convert("t", [good, bad])
    assert refused.value.data["converted"] == [str(good)]
    packed.write_bytes(b"id\n1\n")
    with pytest.raises(InvalidInput, match=r"c\.csv\.gz: input cannot be read to its end"):
        lake.convert("t", packed)


def test_formats_are_told_by_names() -> None:
    names = ["a.NDJSON", "a.json.gz", "a.csv.zst", "a.parquet", "a.parquet.gz", "a.orc", "a.avro", "a", "a.txt"]
    told = ["ndjson", "json", "csv", "parquet", None, "orc", "avro", None, None]
    assert [format_of(Path(name)) for name in names] == told


def test_a_file_is_known_by_its_place_size_and_time(tmp_path: Path) -> None:
    path = ndjson(tmp_path / "a.ndjson", range(3))
    (first,) = plan_files([path, path])
    assert plan_files([str(path)])[0].id == first.id != plan_files([path], "csv")[0].id
    ndjson(path, range(4))
    assert plan_files([path])[0].id != first.id


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=5), st.integers(1, 30))
def test_chunks_of_columns_do_not_depend_on_batches(tmp_path_factory: Any, parts: list[list[int]], rows: int) -> None:
    folder = tmp_path_factory.mktemp("parts")
    written, total = [], 0
    for place, sizes in enumerate(parts):
        path = folder / f"{place}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.schema({"n": pa.int64()})) as writer:
            for size in sizes:
                writer.write_batch(pa.record_batch({"n": pa.array(range(total, total + size), pa.int64())}))
                total += size
        written.append(path)
    chunks = list(table_chunks(written, rows))
    assert [n for chunk in chunks for n in chunk.block.column("n").to_pylist()] == list(range(total))
    assert [chunk.block.num_rows for chunk in chunks] == [rows] * (total // rows) + [total % rows] * bool(total % rows)
    assert [chunk.place(0) for chunk in chunks] == [f"row {n + 1}" for n in range(0, total, rows)]
    assert 1 <= rows_per_chunk(written) <= files.MAX_CHUNK_ROWS


def test_conversions_are_remembered(tmp_path: Path) -> None:
    known = Conversions(tmp_path / "state.db", 5.0)
    assert known.get("t", "f") is None
    assert known.begin("t", "f", "/a", 100) == Conversion(100)
    assert known.begin("t", "f", "/a", 999) == Conversion(100)  # the first run decides
    known.advance("t", "f", 2, 200)
    known.advance("t", "f", 1, 100)  # a slower run of the same file
    assert known.get("t", "f") == Conversion(100, 2, 200)
    known.finish("t", "f")
    assert known.get("t", "f") == Conversion(100, 2, 200, True) and known.get("other", "f") is None
