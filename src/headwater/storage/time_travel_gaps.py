"""Offsets that a topic does not have: ranges that a rollback took away, and that were not given back since.

A topic's position never goes back, so what a rollback takes away leaves a hole. The table's property
`headwater.offset-gaps` names each, in the transaction that makes it: a hole that it does not name is damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headwater.catalog.definitions import P_GAPS, P_OFFSET, S_FROM
from headwater.errors import Corrupt
from headwater.storage.time_travel import line_of, offsets_of, said
from headwater.types import Offsets


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that are not there, since when (UTC), and why."""

    start: int
    end: int
    why: str
    at: str

    @property
    def offsets(self) -> Offsets:
        return Offsets(self.start, self.end)


def read_gaps(table: Table) -> tuple[Gap, ...]:
    """The gaps that a table's property names, in order."""
    text = table.metadata.properties.get(P_GAPS) or "[]"
    try:
        return tuple(sorted((_gap(each) for each in json.loads(text)), key=lambda gap: gap.start))
    except (ValueError, TypeError, KeyError) as wrong:
        raise Corrupt(f'property {P_GAPS} of table "{table.name()[-1]}" cannot be read', detail=f"{wrong}.") from None


def _gap(said: dict[str, str]) -> Gap:
    return Gap(int(said["from"]), int(said["to"]), str(said["why"]), str(said["at"]))


def write_gaps(gaps: Iterable[Gap]) -> str:
    """The property's text."""
    told = ({"from": each.pop("start"), "to": each.pop("end"), **each} for each in map(asdict, gaps))
    return json.dumps(list(told), separators=(",", ":"))


def gaps_at(table: Table, target: int, reach: int, why: str, at: str) -> tuple[Gap, ...]:
    """The gaps that the table would have with `target` as its current snapshot, whose rows reach up to `reach`.

    Offsets that an expired ancestor brought are not told by any summary. Below the oldest known range the gaps are
    therefore those of now, with what the current snapshots brought there and the target's did not.
    """
    position = int(table.metadata.properties[P_OFFSET])
    line = list(line_of(table, target))
    present, old = _brought(line), read_gaps(table)
    floor = min(_floor(line, reach), position)
    here = _brought(line_of(table, table.metadata.current_snapshot_id))
    below = common([*(gap.offsets for gap in old), *here], [Offsets(0, floor)])
    missing = merged(without([Offsets(floor, position), *below], present))
    kept = [replace(gap, start=part.start, end=part.end) for gap in old for part in common([gap.offsets], missing)]
    new = without(missing, [gap.offsets for gap in old])
    return tuple(sorted((*kept, *(Gap(each.start, each.end, why, at) for each in new)), key=lambda gap: gap.start))


def _brought(line: Iterable[Snapshot]) -> list[Offsets]:
    return [offsets for each in line if (offsets := offsets_of(each)) is not None]


def _floor(line: Sequence[Snapshot], reach: int) -> int:
    """The offset from which on the summaries of a line tell everything."""
    # Ingests follow each other: what is below the oldest known one came with snapshots that have expired. Picked ranges
    # stand apart, and that a snapshot has no parent says nothing: expiry takes the parents away.
    return min((int(start) for each in line if (start := said(each, S_FROM)) is not None), default=reach)


def without(ranges: Iterable[Offsets], taken: Iterable[Offsets]) -> list[Offsets]:
    """What is left of ranges when others are taken away."""
    left = list(ranges)
    for hole in (each for each in taken if len(each)):
        parts = ((each.start, min(each.end, hole.start), max(each.start, hole.end), each.end) for each in left)
        left = [Offsets(a, b) for first, last, start, end in parts for a, b in ((first, last), (start, end)) if a < b]
    return left


def common(ranges: Iterable[Offsets], others: Sequence[Offsets]) -> list[Offsets]:
    """The offsets that are in both."""
    pairs = ((max(one.start, other.start), min(one.end, other.end)) for one in ranges for other in others)
    return [Offsets(start, end) for start, end in pairs if start < end]


def merged(ranges: Iterable[Offsets]) -> tuple[Offsets, ...]:
    """The same offsets in as few ranges as hold them, in order."""
    found: list[Offsets] = []
    for each in sorted(ranges):
        if found and each.start <= found[-1].end:
            found[-1] = Offsets(found[-1].start, max(found[-1].end, each.end))
        elif len(each):
            found.append(each)
    return tuple(found)
