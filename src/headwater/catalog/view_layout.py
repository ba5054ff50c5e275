"""What a view's table holds, and how its rows become the view's rows. Chosen at CREATE and kept with the definition.

Three kinds. `rows`: the answer's rows, each with a sign. `states`: one or more partial states per group, which a read
merges. `latest`: rows of groups as a stream emits them, the newest of a group by `__epoch` counting. Hidden columns
begin with two underscores: `__weight` is +1, or -1 for a row that takes an earlier one back; `__base` marks rows of a
build or compaction, in which every group and every row is whole; `__rows` counts the source rows of a group; `__part`
tells the group's own state (0) from values that are counted one by one for DISTINCT.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headwater.catalog.views import BASE, SIGN

Merge = Literal["sum", "min", "max", "hll", "moments"]
"""How a column of a state is put together from several rows."""

ROWS, PART, EPOCH = "__rows", "__part", "__epoch"
LAYOUT_VERSION = 2
"""1: sums of BIGINT and of wide decimals could not lose every value exactly, and the types of joined and united columns
were not recorded. Views of an earlier version are built again when they are next recomputed."""


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The state of one aggregate in the table: columns that merge, or values that the rows of a part count.

    `finished` is the column for the aggregate's value, which rows that stand for whole groups have: a read of those
    need not compute it.
    """

    columns: tuple[str, ...]
    merges: tuple[Merge, ...]
    suffixes: tuple[str, ...]
    partials: tuple[str, ...]
    final: str
    invertible: bool
    part: int | None = None
    finished: str | None = None

    @property
    def stored(self) -> tuple[str, ...]:
        return self.columns if self.finished is None else (*self.columns, self.finished)


@dataclass(frozen=True, slots=True)
class Sort:
    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """See the module. `outputs` are (name, Spark type, SQL over keys and values); in `rows`, SQL is a column."""

    kind: Literal["rows", "states", "latest"]
    outputs: tuple[tuple[str, str, str], ...]
    keys: tuple[str, ...] = ()
    grouped: bool = True
    states: tuple[StateColumns, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    having: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    order: tuple[Sort, ...] = ()
    limit: int | None = None
    offset: int | None = None
    opaque: str | None = None  # why the query cannot be taken apart; the view then always recomputes
    untracked: str | None = None  # why no change can be followed although it was taken apart
    identities: tuple[tuple[str, tuple[str, ...]], ...] = ()  # columns that are grouped by other SQL than themselves

    @property
    def recomputes(self) -> str | None:
        """Why every refresh recomputes the view; None if some do not."""
        return self.opaque or self.untracked

    @property
    def invertible(self) -> bool:
        return all(state.invertible for state in self.states)

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns, in order, hidden ones last."""
        if self.kind == "rows":
            shown = tuple(sql for _, _, sql in self.outputs)
            return (*shown, *(key for key in self.keys if key not in shown), *self.hidden, SIGN, BASE)
        if self.kind == "latest":
            return (*(sql for _, _, sql in self.outputs), EPOCH, SIGN, BASE)
        values = tuple(name for state in self.states if state.part is None for name in state.stored)
        parts = (PART, *(name for part in self.parts for name in part)) if self.parts else ()
        return (*self.keys, *values, *parts, ROWS, SIGN, BASE)

    def to_json(self) -> str:
        return json.dumps({"version": LAYOUT_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        found: dict[str, Any] = json.loads(text)
        found.pop("version")
        found["states"] = tuple(StateColumns(**{k: _tuples(v) for k, v in each.items()}) for each in found["states"])
        found["order"] = tuple(Sort(**each) for each in found["order"])
        rest = {key: _tuples(value) for key, value in found.items() if key not in ("states", "order")}
        return cls(**rest, states=found["states"], order=found["order"])


def layout_version(text: str) -> int:
    """The version in which a layout was written."""
    return int(json.loads(text)["version"])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
