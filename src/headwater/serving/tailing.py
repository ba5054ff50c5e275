"""A topic's records as they come: from the table as far as it has them, then from the log, page by page.

A record is shown as soon as it is acknowledged, once and in the order of offsets. Each page is read at a moment of its
own: below the offset that the table has everything of, rows are the table's, so that what was deleted before it was
shown is not shown; from there on they are the log's. When an ingest commits and trims between two looks, the log says
that the offset is gone, and the table has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.errors import TopicNotFound, Unavailable
from headwater.serving.moment import Given
from headwater.serving.result import Result
from headwater.serving.tail import ATTEMPTS, TopicAtOnce, log_rows
from headwater.serving.tail_request import TailRequest, mark_number
from headwater.sql.statements import Query
from headwater.storage.schemas import arrow_schema
from headwater.topics.ingest import log_topic
from headwater.topics.log import Entry, Log, TailBatch
from headwater.types import OFFSET, TIMESTAMP, Offsets

FIRST_ROWS = 128
GROWTH = 8
MAX_ROWS = 65_536
PAGE_BYTES = 8 * 1024**2
"""A page has few rows first, so that they come at once, then more, as long as they are not too large together."""

PAGE = "__page"
"""What the SQL calls the log's rows of a page: no topic has such a name."""
_AT = "__offset"

Run = Callable[[Query, Given | None], Result]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows that came, perhaps none of them wanted. A tail that goes on after `at` gives what follows them."""

    rows: pa.RecordBatch = field(repr=False)
    at: str
    mark_of: Callable[[int], str] = field(repr=False)
    """The mark of the row at a place of the page."""

    def slice(self, start: int, rows: int) -> Page:
        """Some rows of the page; a tail that goes on behind them goes on after the last of them."""
        end = start + rows
        at = self.at if end >= self.rows.num_rows else self.mark_of(end - 1)
        return Page(self.rows.slice(start, rows), at, lambda place: self.mark_of(start + place))

    def first(self, rows: int | None) -> Page:
        """The page, but not more than its first rows; at least one."""
        return self if rows is None or rows >= self.rows.num_rows else self.slice(0, rows)


class Followed(Protocol):
    """A topic or a view that a tail follows. For one thread at a time."""

    @property
    def at(self) -> str:
        """The mark behind which the next page begins."""
        ...

    def poll(self) -> Page | None:
        """The next page; None when everything was shown."""
        ...

    def close(self) -> None: ...


class TopicTail:
    """The records of one topic; a topic that is made anew under its name is another one."""

    def __init__(self, topics: Topics, log: Log, run: Run, asked: TailRequest) -> None:
        self._topics = topics
        self._log = log
        self._run = run
        self._asked = asked
        topic = topics.load(asked.name)
        self._id = topic.id
        self._rows = FIRST_ROWS
        self._held: list[TailBatch] = []
        self._shown: tuple[int, pa.Schema] = (-1, pa.schema([]))
        asked.check_columns(f'topic "{topic.name}"', [column.name for column in topic.schema.fields])
        self._next = self._first(topic) if asked.after is None else max(0, mark_number(asked.after) + 1)
        self._wanted(topic, ())  # a mistake in the condition is told now, not when a record comes

    @property
    def at(self) -> str:
        return str(self._next - 1)

    def poll(self) -> Page | None:
        for _ in range(ATTEMPTS):
            topic = self._loaded()
            if self._next < topic.committed:
                self._held = []  # the table has them now, without those that were deleted
                return self._stored(topic)
            tail = self._held or self._log.tail(log_topic(topic), self._next)
            if tail is not None:
                return self._logged(topic, tail) if tail else None
        raise Unavailable(f'topic "{self._asked.name}" was committed {ATTEMPTS} times while it was read')

    def close(self) -> None:
        self._held = []

    def _loaded(self) -> Topic:
        topic = self._topics.load(self._asked.name)
        if topic.id != self._id:
            raise TopicNotFound(
                f'topic "{topic.name}" does not exist any more',
                detail="It was dropped while it was followed, and made anew.",
            )
        return topic

    def _first(self, topic: Topic) -> int:
        """The first offset that is wanted."""
        start = self._asked.start
        if start.kind in ("earliest", "number"):
            return start.number
        end = max(topic.committed, self._log.stats(log_topic(topic)).end)
        if start.moment is None:
            return end
        since = f"`{TIMESTAMP}` >= TIMESTAMP '{start.moment.isoformat(sep=' ')}'"
        text = f"SELECT min(`{OFFSET}`) AS first FROM topics.`{topic.name}` WHERE {since}"  # noqa: S608
        found = self._run(Query(text), None).rows()[0]["first"]
        return end if found is None else int(found)

    def _stored(self, topic: Topic) -> Page:
        """A page of the table, which has everything up to an offset."""
        end = topic.committed
        text = self._text(f"topics.`{topic.name}`", f"`{OFFSET}` >= {self._next} AND `{OFFSET}` < {end} AND ")
        rows = _whole(self._run(Query(f"{text} LIMIT {self._rows}", tail=False), None))
        if rows.num_rows == self._rows:
            end = int(rows[rows.num_columns - 1][-1].as_py()) + 1
        return self._turned(rows, end)

    def _logged(self, topic: Topic, tail: Sequence[TailBatch]) -> Page:
        taken, self._held = _cut(tail, self._rows)
        return self._turned(self._wanted(topic, taken), taken[-1].entry.offsets.end)

    def _wanted(self, topic: Topic, taken: Sequence[TailBatch]) -> pa.Table:
        """The rows among those of the log that are wanted, by the way of every query."""
        schema = arrow_schema(topic.schema)
        rows = log_rows(topic, taken).cast(schema) if taken else schema.empty_table()
        if taken and (plain := self._plain(topic, rows)) is not None:
            return plain
        at_once = TopicAtOnce(topic, None, Offsets(self._next, self._next + rows.num_rows), rows, topic.schema)
        text = self._text(f"`{PAGE}` AS `{topic.name}`", "")
        found = _whole(self._run(Query(text), Given({PAGE: at_once})))
        self._shown = (topic.schema.schema_id, found.schema)
        return found

    def _plain(self, topic: Topic, rows: pa.Table) -> pa.Table | None:
        """What the query would give, where it gives all rows in the types that the log has them in already."""
        made_for, schema = self._shown
        names = self._asked.columns or tuple(rows.column_names)
        known = made_for == topic.schema.schema_id and set(names) <= {*rows.column_names}
        if self._asked.where is not None or not known:
            return None
        found = rows.select([*names, OFFSET]).rename_columns([*names, _AT])
        return found.cast(schema) if found.schema.types == schema.types else None

    def _text(self, source: str, range_: str) -> str:
        wanted, condition = self._asked.selected, self._asked.condition
        return f"SELECT {wanted}, `{OFFSET}` AS `{_AT}` FROM {source} WHERE {range_}{condition} ORDER BY `{OFFSET}`"  # noqa: S608

    def _turned(self, rows: pa.Table, end: int) -> Page:
        """The page of these rows, whose last column has their offsets; everything below `end` was seen."""
        self._next = end
        size = max(1, rows.nbytes // max(1, rows.num_rows))
        self._rows = max(1, min(self._rows * GROWTH, MAX_ROWS, PAGE_BYTES // size))
        last = rows.num_columns - 1
        batch, offsets = one_batch(rows.remove_column(last)), rows[last]
        return Page(batch, self.at, lambda place: str(offsets[place].as_py()))


def _cut(tail: Sequence[TailBatch], rows: int) -> tuple[list[TailBatch], list[TailBatch]]:
    """The first entries up to a number of rows, and the others; one of them may be in both."""
    taken: list[TailBatch] = []
    for place, part in enumerate(tail):
        if part.batch.num_rows > rows:
            first, rest = _split(part, rows)
            return ([*taken, first] if rows else taken), [rest, *tail[place + 1 :]]
        taken.append(part)
        rows -= part.batch.num_rows
    return taken, []


def _split(part: TailBatch, rows: int) -> tuple[TailBatch, TailBatch]:
    entry, middle = part.entry, part.entry.offsets.start + rows
    first = Entry(entry.id, Offsets(entry.offsets.start, middle), entry.appended_at, entry.bytes)
    rest = Entry(entry.id, Offsets(middle, entry.offsets.end), entry.appended_at, entry.bytes)
    return TailBatch(first, part.batch.slice(0, rows)), TailBatch(rest, part.batch.slice(rows))


def _whole(result: Result) -> pa.Table:
    return pa.Table.from_batches(list(result.batches()), result.schema)


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """The table as one batch, also when it has no rows or no columns."""
    found = rows.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], rows.schema)
