"""The small results that statements about views give, the same from an open lake and from a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headwater.serving.result import Result
from headwater.sql.units import counted

_MOMENT = pa.timestamp("us", tz="UTC")
VIEWS = pa.schema(
    {
        "view": pa.string(),
        "mode": pa.string(),
        "method": pa.string(),
        "status": pa.string(),
        "rows": pa.int64(),
        "lag_rows": pa.int64(),
        "last_refresh": _MOMENT,
        "description": pa.string(),
        "error": pa.string(),
    }
)
COLUMNS = pa.schema({"column": pa.string(), "type": pa.string()})
PLAN = pa.schema({"plan": pa.string()})
_WORK = {
    "sources": pa.string(),
    "rows_read": pa.int64(),
    "rows_written": pa.int64(),
    "files": pa.int64(),
    "bytes": pa.int64(),
    "seconds": pa.float64(),
    "snapshot": pa.string(),
}
REFRESHED = pa.schema({"view": pa.string(), "method": pa.string(), "reason": pa.string(), **_WORK})
REFRESHES = pa.schema(
    {
        "started_at": _MOMENT,
        "view": pa.string(),
        "outcome": pa.string(),
        "trigger": pa.string(),
        "method": pa.string(),
        "rule": pa.string(),
        "reason": pa.string(),
        **_WORK,
        "verified": pa.string(),
        "code": pa.string(),
        "error": pa.string(),
        "id": pa.string(),
    }
)
VERIFIED = pa.schema(
    {
        "view": pa.string(),
        "equal": pa.bool_(),
        "rows": pa.int64(),
        "extra": pa.int64(),
        "missing": pa.int64(),
        "seconds": pa.float64(),
        "snapshot": pa.string(),
    }
)
COMPACTED = pa.schema(
    {
        "view": pa.string(),
        "files_before": pa.int64(),
        "files_after": pa.int64(),
        "rows_before": pa.int64(),
        "rows_after": pa.int64(),
        "bytes_before": pa.int64(),
        "bytes_after": pa.int64(),
        "seconds": pa.float64(),
        "snapshot": pa.string(),
    }
)


def listed(summaries: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW MATERIALIZED VIEWS answers, from the summary of each view."""
    return _result(VIEWS, summaries, info={"views": list(summaries)})


def described(about: Mapping[str, Any]) -> Result:
    """What DESCRIBE MATERIALIZED VIEW answers, from the view's description, which is the result's `info`."""
    rows = [{"column": column["name"], "type": column["type"]} for column in about["columns"]]
    return _result(COLUMNS, rows, info=about)


def refreshed(done: Sequence[Mapping[str, Any]], verified: Mapping[str, Any] | None = None) -> Result:
    """What REFRESH answers: a row for each view that was looked at, those below the named one first."""
    notices = [] if verified is None else [compared(verified)]
    return _result(REFRESHED, done, info={"refreshed": list(done), "verified": verified}, notices=notices)


def recorded(attempts: Sequence[Mapping[str, Any]]) -> Result:
    """What SHOW REFRESHES answers, the newest first."""
    return _result(REFRESHES, attempts, info={"refreshes": list(attempts)})


def verified(outcome: Mapping[str, Any]) -> Result:
    """What VERIFY answers."""
    return _result(VERIFIED, [outcome], info={"verified": outcome}, notices=[compared(outcome)])


def compacted(done: Mapping[str, Any]) -> Result:
    """What COMPACT answers."""
    return _result(COMPACTED, [done], info={"compacted": done})


def explained(lines: Iterable[str], plan: Mapping[str, Any], notices: Sequence[str] = ()) -> Result:
    """What EXPLAIN answers about a view; the plan as plain data is in `info`."""
    return _result(PLAN, [{"plan": line} for line in lines], info={"plan": plan}, notices=notices)


def compared(outcome: Mapping[str, Any]) -> str:
    """The outcome of a comparison of a view with its query, as sentences."""
    what = f'Materialized view "{outcome["view"]}"'
    skipped = f" Not compared: {', '.join(outcome['skipped'])}." if outcome["skipped"] else ""
    if outcome["equal"]:
        return f"{what} is what its query gives: {_rows(outcome['rows'])} compared.{skipped}"
    late = f" {counted(outcome['late'], 'record')} came too late for it." if outcome["late"] else ""
    examples = "".join(f"\n  {example}" for example in outcome["examples"])
    return (
        f"{what} differs from its query: {_rows(outcome['extra'], 'is', 'are')} only in the view, "
        f"{outcome['missing']:,} only in the query.{late}{skipped}{examples}"
    )


def _rows(number: int, one: str = "was", more: str = "were") -> str:
    return f"{number:,} row {one}" if number == 1 else f"{number:,} rows {more}"


def _result(schema: pa.Schema, rows: Sequence[Mapping[str, Any]], **more: Any) -> Result:
    typed = [{name: _value(row[name], schema.field(name)) for name in schema.names} for row in rows]
    return Result.of_rows(schema, typed, **more)


def _value(value: Any, of: pa.Field) -> Any:
    """A value of plain data as the column's: moments from text, sources as text."""
    if of.name == "sources":
        return ", ".join(source_text(each) for each in value)
    return datetime.fromisoformat(value) if of.type == _MOMENT and value is not None else value


def source_text(consumed: Mapping[str, Any]) -> str:
    """What a refresh took of a source: `orders 123→456`."""
    name, start, end = consumed["source"], consumed["start"], consumed["end"]
    return f"{name} {end}" if start == end else f"{name} {'empty' if start is None else start}→{end}"
