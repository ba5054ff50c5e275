"""Which files are rewritten together: tiers, hot and cold, runs, limits. No file exists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from headwater.storage.layout import Layout
from headwater.storage.maintenance import policy
from headwater.storage.maintenance.policy import Group, Rules, Seen, order_mark, plan_groups, run_name, run_of
from headwater.types import SortKey

TARGET = 1000
HOT, COLD = 200.0, 50.0
PACK = Rules(TARGET, 1, None, cold_before=100.0)
SORT = replace(PACK, sorting="sort")
_numbers = itertools.count()


def seen(size: int, newest: float = HOT, partition: tuple[Any, ...] = (), **more: Any) -> Seen:
    number = next(_numbers)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:/t/data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=size,
        file_size_in_bytes=size,
    )
    return Seen(file, 1, partition, size, size, newest, **{"first": number, **more})


def sizes(groups: Sequence[Group]) -> list[list[int]]:
    return [sorted(file.file_size_in_bytes for file in group.files) for group in groups]


# -- packing --------------------------------------------------------------------------------------------------------


def test_nothing_to_do() -> None:
    assert plan_groups([], PACK) == ()
    assert plan_groups([seen(10)], PACK) == ()
    assert plan_groups([seen(750), seen(800), seen(2000)], replace(PACK, asked=True)) == ()


def test_hot_files_of_about_one_size_are_packed_when_there_are_enough() -> None:
    assert plan_groups([seen(10) for _ in range(3)], PACK) == ()
    (group,) = plan_groups([seen(10) for _ in range(4)], PACK)
    assert (group.kind, group.rows, group.bytes, group.files_after, group.run) == ("pack", 40, 40, 1, False)


def test_a_larger_file_waits_until_the_small_ones_are_worth_it() -> None:
    small = [seen(10) for _ in range(5)]
    assert sizes(plan_groups([*small, seen(100)], PACK)) == [[10] * 5]
    assert sizes(plan_groups([*small, *(seen(100) for _ in range(4))], PACK)) == [[10] * 5 + [100] * 4]


def test_files_that_make_one_of_the_target_size_are_packed_however_few() -> None:
    assert sizes(plan_groups([seen(400), seen(400)], PACK)) == [[400, 400]]
    assert plan_groups([seen(300), seen(400)], PACK) == ()


def test_a_cold_partition_is_packed_whatever_is_there() -> None:
    assert sizes(plan_groups([seen(10, COLD), seen(400, COLD)], PACK)) == [[10, 400]]
    assert plan_groups([seen(10, COLD), seen(400, HOT)], PACK) == ()
    assert sizes(plan_groups([seen(10, HOT), seen(400, HOT)], replace(PACK, asked=True))) == [[10, 400]]


def test_partitions_and_older_specs_are_apart() -> None:
    files = [seen(10, COLD, (1,)), seen(10, COLD, (2,)), seen(20, COLD, (1,)), replace(seen(10, COLD, (1,)), spec_id=0)]
    assert sizes(plan_groups(files, PACK)) == [[10, 20]]


def test_packed_files_are_neighbours_and_no_larger_than_the_target() -> None:
    files = [seen(300, COLD, first=first) for first in (5, 0, 3, 1, 4, 2)]
    groups = plan_groups(files, PACK)
    by_path = {each.file.file_path: each.first for each in files}
    assert [sorted(by_path[file.file_path] for file in group.files) for group in groups] == [[0, 1, 2], [3, 4, 5]]


def test_the_most_files_per_byte_come_first_and_a_plan_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [seen(100, COLD, ("large",)) for _ in range(4)] + [seen(1, COLD, ("small",)) for _ in range(4)]
    assert sizes(plan_groups(files, PACK)) == [[1] * 4, [100] * 4]
    monkeypatch.setattr(policy, "MAX_PLAN_BYTES", 50)
    assert sizes(plan_groups(files, PACK)) == [[1] * 4]
    assert len(plan_groups(files, replace(PACK, asked=True))) == 2
    monkeypatch.setattr(policy, "MAX_PLAN_BYTES", 1)
    assert len(plan_groups(files, PACK)) == 1  # one at least, or nothing would ever be done


# -- sorting --------------------------------------------------------------------------------------------------------


def test_cold_files_are_sorted_across_each_other_and_hot_ones_packed() -> None:
    (group,) = plan_groups([seen(900, COLD), seen(2000, COLD), seen(10, COLD)], SORT)
    assert (group.kind, group.run, len(group.files)) == ("sort", True, 3)
    assert plan_groups([seen(900), seen(2000), seen(10)], SORT) == ()
    assert [group.kind for group in plan_groups([seen(10) for _ in range(4)], SORT)] == ["pack"]
    assert plan_groups([seen(900, COLD)], replace(SORT, sorting="zorder"))[0].kind == "zorder"


def test_a_run_is_not_sorted_again() -> None:
    run = [seen(500, COLD, run="a"), seen(100, COLD, run="a")]
    assert plan_groups(run, SORT) == ()
    assert plan_groups(run, replace(SORT, asked=True)) == ()
    assert plan_groups([replace(each, newest=HOT) for each in run], SORT) == ()  # and not taken apart by packing


def test_a_single_file_in_order_is_left_alone() -> None:
    assert plan_groups([seen(500, COLD, in_order=True)], SORT) == ()
    assert len(plan_groups([seen(500, COLD)], SORT)) == 1


def test_runs_are_merged_with_new_files_of_their_size_only() -> None:
    large, small = seen(10_000, COLD, run="a"), seen(100, COLD, run="b")
    assert sizes(plan_groups([large, small, seen(60, COLD)], SORT)) == [[60, 100]]
    assert sizes(plan_groups([large, small, seen(5000, COLD)], SORT)) == [[100, 5000, 10_000]]
    assert sizes(plan_groups([large, small], replace(SORT, asked=True))) == [[100, 10_000]]


def test_beside_hot_files_cold_ones_wait_until_they_fill_a_file() -> None:
    hot = [seen(10), seen(10)]
    assert plan_groups([*hot, seen(300, COLD), seen(300, COLD)], SORT) == ()
    assert sizes(plan_groups([*hot, seen(600, COLD), seen(600, COLD)], SORT)) == [[600, 600]]


def test_files_of_an_older_order_are_left_until_everything_is_rewritten() -> None:
    files = [seen(500, COLD, other_order=True), seen(10, COLD, other_order=True)]
    assert plan_groups(files, SORT) == ()
    assert sizes(plan_groups(files, replace(SORT, full=True))) == [[10, 500]]


def test_what_is_sorted_together_has_a_limit_and_is_cut_by_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MAX_GROUP_BYTES", 2000)
    files = [seen(1000, COLD, key=key) for key in (3, 1, 4, 2)]
    keys = {each.file.file_path: each.key for each in files}
    groups = plan_groups(files, SORT)
    assert [[keys[file.file_path] for file in group.files] for group in groups] == [[1, 2], [3, 4]]
    assert plan_groups([*(seen(1000, COLD, run=run) for run in "abc")], replace(SORT, asked=True))[0].bytes == 2000
    runs = [seen(1500, COLD, run="a"), seen(1500, COLD, run="b")]
    assert plan_groups(runs, replace(SORT, asked=True)) == ()


# -- everything -----------------------------------------------------------------------------------------------------


def test_full_takes_every_file_once() -> None:
    files = [seen(3000, HOT, (1,)), seen(10, COLD, (2,)), replace(seen(5, COLD, (9, 9)), spec_id=0)]
    for rules in (replace(PACK, full=True), replace(SORT, full=True)):
        groups = plan_groups(files, rules)
        assert sorted(itertools.chain(*sizes(groups))) == [5, 10, 3000]
        assert {group.kind for group in groups} == {"full"}
        assert [group.run for group in groups] == [False, *([rules.sorting is not None] * 2)]


# -- names ----------------------------------------------------------------------------------------------------------

SCHEMA = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))


def test_the_mark_of_an_order() -> None:
    def mark(schema: Schema = SCHEMA, **order: Any) -> str | None:
        return order_mark(replace(Layout("none", None, 1), **order), schema)

    assert mark() is None
    orders: list[dict[str, Any]] = [
        {"ordering": (SortKey("a"),)},
        {"ordering": (SortKey("b"),)},
        {"ordering": (SortKey("a", descending=True),)},
        {"ordering": (SortKey("a", nulls_first=False),)},
        {"ordering": (SortKey("a"), SortKey("b"))},
        {"clustering": ("a", "b")},
        {"clustering": ("b", "a")},
    ]
    assert len({mark(**order) for order in orders}) == len(orders)
    renamed = Schema(NestedField(1, "z", LongType()), NestedField(2, "b", StringType()))
    assert mark(renamed, ordering=(SortKey("z"),)) == mark(ordering=(SortKey("a"),))


def test_a_run_is_known_by_the_names_of_its_files() -> None:
    name = f"/t/data/x=1/events_data_20260101_{run_name('0123abcd', '01hxyz', 3)}_7_0.parquet"
    assert run_of(name, "0123abcd") == ("01hxyz_3", False)
    assert run_of(name, "ffffffff") == (None, True)
    assert run_of(name, None) == (None, True)
    assert run_of("/t/data/events_data_20260101_01hxyz.parquet", "0123abcd") == (None, False)
    assert run_of("/t/data/events_data_20260101_p_01hxyz_3_7_0.parquet", "0123abcd") == (None, False)


# -- in the long run ------------------------------------------------------------------------------------------------


def applied(files: list[Seen], groups: Sequence[Group], newest: float) -> list[Seen]:
    """The files after the groups were rewritten as they should be."""
    gone = {file.file_path for group in groups for file in group.files}
    left = [each for each in files if each.file.file_path not in gone]
    firsts = {each.file.file_path: each.first for each in files}
    for group in groups:
        first = min(firsts[file.file_path] for file in group.files)
        run = f"r{next(_numbers)}" if group.run else None
        whole, rest = divmod(group.bytes, TARGET)
        parts = [TARGET] * whole + [rest] * bool(rest)
        left += [seen(part, newest, first=first, run=run) for part in parts]
    return left


@given(st.lists(st.integers(1, 1200), max_size=40), st.sampled_from([PACK, SORT]), st.booleans(), st.booleans())
def test_it_comes_to_an_end(given_sizes: list[int], rules: Rules, cold: bool, asked: bool) -> None:
    """Done again and again, there is soon nothing to do, and small files are few."""
    newest = COLD if cold else HOT
    rules = replace(rules, asked=asked)
    files = [seen(size, newest) for size in given_sizes]
    for _ in range(20):
        groups = plan_groups(files, rules)
        if not groups:
            break
        paths = [file.file_path for group in groups for file in group.files]
        assert len(set(paths)) == len(paths)
        files = applied(files, groups, newest)
    else:
        raise AssertionError("there is always something to do")
    assert sum(each.bytes for each in files) == sum(given_sizes)
    if (cold or asked) and rules.sorting is not None:
        assert len({each.run for each in files}) <= 1


def test_a_byte_is_rewritten_a_few_times_only() -> None:
    """A file a minute, packed as soon as it pays: the work is the data times a logarithm, and files stay few."""
    files: list[Seen] = []
    written = most = 0
    for _ in range(4000):
        files.append(seen(2))
        while groups := plan_groups(files, PACK):
            written += sum(group.bytes for group in groups)
            files = applied(files, groups, HOT)
        most = max(most, sum(each.bytes < 750 for each in files))
    assert written <= 5.5 * 8000  # log4(1000 / 2) = 4.5 tiers, and the last step to the target
    assert most <= 3 * 6


def test_late_records_do_not_sort_a_large_run_again_and_again() -> None:
    files = [seen(100_000, COLD, run="large")]
    written = 0
    for _ in range(200):
        files.append(seen(100, COLD))
        groups = plan_groups(files, SORT)
        written += sum(group.bytes for group in groups)
        files = applied(files, groups, COLD)
    assert written < 20 * 20_000
    assert len({each.run for each in files}) <= 10
