"""Which files of a table are worth rewriting together. Pure over what manifests say of them; no file is opened.

Small files of a partition are packed in tiers: files go together when the result is several times as large as the
largest of them, or as large as files are meant to be, so that a byte is written again O(log) times. Files that have
lain for a while are cold. Where the table has an order, cold files are sorted once across each other and become a
run: files of disjoint key ranges, which are left alone until enough new ones lie beside them.

The names of a run's files say so: they outlive snapshot summaries, and cost the planner no look into the files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headwater.storage.layout import Layout

SMALL = 0.75
"""The share of the target size below which a file is small."""
FANOUT = 4
"""How many times as large as its largest part a packed file is at least, unless it is not small any more."""
GROWTH = 2
"""A run is sorted again only together with files of at least one part in so many of its bytes."""
MAX_GROUP_BYTES = 2 * 1024**3
"""Bytes of files that are sorted together at the most; a multiple of it lies in the scratch folder meanwhile."""
MAX_PLAN_BYTES = 8 * 1024**3
"""Bytes that one plan rewrites at the most, unless somebody asked for it."""
MOVED_GROUP_BYTES = 512 * 1024**2
"""Bytes of files of an older partition spec that are rewritten together."""

Kind = Literal["pack", "sort", "zorder", "full"]

_RUN = re.compile(r"_s([0-9a-f]{8})_([0-9a-z]+_\d+)_\d+_\d+\.parquet$")


@dataclass(frozen=True, slots=True)
class Seen:
    """A data file as the policy sees it: when its newest record was written, and its first offset and sort key."""

    file: DataFile = field(repr=False)
    spec_id: int
    partition: tuple[Any, ...]
    bytes: int
    rows: int
    newest: float
    first: int
    key: Any = None
    run: str | None = None  # of the table's order
    in_order: bool = False
    other_order: bool = False  # sorted once, by an order that the table had before


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy goes by: the table's target size, partition spec and order, and what was asked for.

    `asked` is somebody's explicit wish: everything counts as cold, and any two small files are worth it. `full`
    rewrites all files, those of older partition specs and orders too.
    """

    target_bytes: int
    spec_id: int
    sorting: Literal["sort", "zorder"] | None
    cold_before: float
    asked: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are rewritten together, in one task; `run` if the result is sorted across files."""

    kind: Kind
    files: tuple[DataFile, ...] = field(repr=False)
    rows: int
    bytes: int
    files_after: int
    run: bool = False

    @property
    def gain(self) -> float:
        """Files that are saved per byte that is written; a sort counts those that no longer overlap."""
        saved = len(self.files) if self.run else len(self.files) - self.files_after
        return saved / max(self.bytes, 1)


def order_mark(layout: Layout, schema: Schema) -> str | None:
    """A short name of the order that a table's runs have; it follows field ids, so that a rename keeps it."""
    if not layout.ordered:
        return None
    keys = [(key.column, key.descending, key.nulls_first) for key in layout.ordering]
    words = [f"{schema.find_field(column).field_id} {down} {nulls}" for column, down, nulls in keys]
    words += [f"zorder {schema.find_field(column).field_id}" for column in layout.clustering]
    return sha256(",".join(words).encode()).hexdigest()[:8]


def run_name(mark: str, write: str, group: int) -> str:
    """How the ids in the names of a run's files begin; a task and a number follow."""
    return f"s{mark}_{write}_{group}"


def run_of(path: str, mark: str | None) -> tuple[str | None, bool]:
    """The run of the order `mark` to which the file belongs, and whether it belongs to one of another order."""
    found = _RUN.search(path)
    if found is None:
        return None, False
    return (found[2], False) if found[1] == mark else (None, True)


def plan_groups(files: Iterable[Seen], rules: Rules) -> tuple[Group, ...]:
    """What to rewrite, the most useful first."""
    if rules.full:
        return tuple(_everything(files, rules))
    current = [file for file in files if file.spec_id == rules.spec_id]
    groups = [group for part in _partitions(current) for group in _of_partition(part, rules)]
    groups.sort(key=lambda group: group.gain, reverse=True)
    return tuple(groups if rules.asked else _first(groups))


def _first(groups: Sequence[Group]) -> Iterator[Group]:
    """As many as one plan takes, and at least one."""
    total = 0
    for group in groups:
        if total and total + group.bytes > MAX_PLAN_BYTES:
            return
        total += group.bytes
        yield group


def _partitions(files: Iterable[Seen]) -> Iterable[list[Seen]]:
    found: dict[tuple[Any, ...], list[Seen]] = defaultdict(list)
    for file in files:
        found[file.partition].append(file)
    return found.values()


def _everything(files: Iterable[Seen], rules: Rules) -> Iterator[Group]:
    """All files: those of the current spec by partition, others in the order in which they were produced."""
    seen = list(files)
    moved = sorted((file for file in seen if file.spec_id != rules.spec_id), key=lambda file: file.first)
    for some in _bins(moved, MOVED_GROUP_BYTES):
        yield _group("full", some, rules)
    for part in _partitions(file for file in seen if file.spec_id == rules.spec_id):
        limit = MAX_GROUP_BYTES if rules.sorting else rules.target_bytes
        for some in _bins(_by_key(part), limit):
            yield _group("full", some, rules, run=rules.sorting is not None)


def _of_partition(files: Sequence[Seen], rules: Rules) -> Iterator[Group]:
    hot = [file for file in files if file.newest >= rules.cold_before and not rules.asked]
    cold = [file for file in files if file.newest < rules.cold_before or rules.asked]
    chosen = _to_sort(cold, bool(hot), rules) if rules.sorting else []
    for some in _bins(_by_key(chosen), MAX_GROUP_BYTES):
        yield _group(rules.sorting or "sort", some, rules, run=True)
    taken = {id(file) for file in chosen}
    rest = [file for file in files if id(file) not in taken and not (rules.sorting and (file.run or file.other_order))]
    for some in _to_pack(rest, rules, eager=not hot):
        yield _group("pack", some, rules)


def _to_sort(cold: Sequence[Seen], beside_hot: bool, rules: Rules) -> list[Seen]:
    """New files, with the runs that are not much larger than all of them; none while it does not pay."""
    fresh = [file for file in cold if file.run is None and not file.other_order]
    total = sum(file.bytes for file in fresh)
    runs = _runs(cold)
    if (beside_hot and total < rules.target_bytes) or (not fresh and not rules.asked):
        return []
    chosen, merged = list(fresh), 0
    for run in runs:
        size = sum(file.bytes for file in run)
        if total + size > MAX_GROUP_BYTES or (size > GROWTH * total and not rules.asked):
            break
        chosen, total, merged = chosen + run, total + size, merged + 1
    alone = not fresh and merged == 1
    settled = len(chosen) == 1 and chosen[0].in_order
    return [] if alone or settled else chosen


def _runs(files: Iterable[Seen]) -> list[list[Seen]]:
    """The runs among the files, the smallest first."""
    found: dict[str, list[Seen]] = defaultdict(list)
    for file in files:
        if file.run is not None:
            found[file.run].append(file)
    return sorted(found.values(), key=lambda run: sum(file.bytes for file in run))


def _to_pack(files: Iterable[Seen], rules: Rules, *, eager: bool) -> Iterator[list[Seen]]:
    """Small files that go together, neighbours in the order in which they were produced."""
    small = sorted((file for file in files if file.bytes < SMALL * rules.target_bytes), key=lambda file: file.bytes)
    chosen = small if eager else _tier(small, rules)
    for some in _bins(sorted(chosen, key=lambda file: file.first), rules.target_bytes):
        worth = some if eager else _tier(sorted(some, key=lambda file: file.bytes), rules)
        if len(worth) > 1:
            yield worth


def _tier(ascending: Sequence[Seen], rules: Rules) -> list[Seen]:
    """The most of the smallest files that make a file several times as large as each, or one that is not small."""
    total, end = 0, 0
    for place, file in enumerate(ascending, 1):
        total += file.bytes
        if total >= FANOUT * file.bytes or total >= SMALL * rules.target_bytes:
            end = place
    return list(ascending[:end])


def _by_key(files: Iterable[Seen]) -> list[Seen]:
    """By the sort key, so that what is cut apart overlaps least; then as they were produced."""
    return sorted(files, key=lambda file: (file.key is not None, file.key, file.first))


def _bins(files: Iterable[Seen], limit: int) -> Iterator[list[Seen]]:
    """The files in their order, cut so that no part is larger than `limit`, unless it is a single file."""
    some: list[Seen] = []
    total = 0
    for file in files:
        if some and total + file.bytes > limit:
            yield some
            some, total = [], 0
        some.append(file)
        total += file.bytes
    if some:
        yield some


def _group(kind: Kind, files: Sequence[Seen], rules: Rules, *, run: bool = False) -> Group:
    size = sum(file.bytes for file in files)
    after = max(1, round(size / rules.target_bytes))
    return Group(kind, tuple(file.file for file in files), sum(file.rows for file in files), size, after, run)
