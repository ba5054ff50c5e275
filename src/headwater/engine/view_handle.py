"""A materialized view as a Python program holds it, of an open lake or of one behind a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headwater.sql.statements import (
    SHOWN_REFRESHES,
    AlterView,
    CompactView,
    DescribeView,
    DropView,
    ExplainRefresh,
    RefreshView,
    ShowRefreshes,
    Statement,
    Verify,
    VerifyView,
)
from headwater.sql.view_query import view_query

if TYPE_CHECKING:
    import pandas as pd

    from headwater.serving.query import Cancel
    from headwater.serving.result import Result


class Executes(Protocol):
    """A lake, as far as a view needs it."""

    def execute(self, statement: Statement, cancel: Cancel | None = None) -> Result: ...


class ViewHandle:
    """A materialized view of a lake."""

    def __init__(self, lake: Executes, name: str) -> None:
        self._lake = lake
        self.name = name

    def refresh(self, *, full: bool = False, verify: bool | int = False) -> list[dict[str, Any]]:
        """Bring the view and those below it up to date; what was done, one entry for each, this view's last.

        `verify` compares the view with its query afterwards: all of it, or so many groups.
        """
        asked = None if verify is False else Verify(None if verify is True else verify)
        return list(self._info(RefreshView(self.name, full, asked))["refreshed"])

    def verify(self, sample: int | None = None) -> dict[str, Any]:
        """Compare the view with its query, or `sample` groups of it; `equal` says how it went."""
        return dict(self._info(VerifyView(self.name, sample))["verified"])

    def compact(self) -> dict[str, Any]:
        """Fold the states that refreshes appended."""
        return dict(self._info(CompactView(self.name))["compacted"])

    def explain(self, *, full: bool = False) -> str:
        """What the next refresh would do, and why."""
        return "\n".join(row["plan"] for row in self._lake.execute(ExplainRefresh(self.name, full)).rows())

    def history(self, limit: int = SHOWN_REFRESHES) -> list[dict[str, Any]]:
        """The latest refreshes, the newest first."""
        return list(self._info(ShowRefreshes(self.name, limit))["refreshes"])

    def describe(self) -> dict[str, Any]:
        """Everything about the view, as plain data."""
        return dict(self._info(DescribeView(self.name)))

    def query(self, where: str | None = None, *, fresh: bool = False, limit: int | None = None) -> Result:
        """The view's rows; `fresh` reads it as if it were refreshed now."""
        return self._lake.execute(view_query(self.name, where, fresh=fresh, limit=limit))

    def rows(self) -> list[dict[str, Any]]:
        return self.query().rows()

    def arrow(self) -> pa.Table:
        return self.query().arrow()

    def pandas(self) -> pd.DataFrame:
        return self.query().pandas()

    def alter(self, **options: object) -> None:
        """Change the options that are named, and no others."""
        self._lake.execute(AlterView(self.name, options))

    def drop(self) -> None:
        """Remove the view and its files."""
        self._lake.execute(DropView(self.name))

    def _info(self, statement: Statement) -> Any:
        return self._lake.execute(statement).info

    def __repr__(self) -> str:
        return f"<materialized view {self.name}>"
