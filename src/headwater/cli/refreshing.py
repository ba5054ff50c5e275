"""Refreshing views from the command line, one or all, with word of what goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.cli.screen import counted
from headwater.cli.session import Session
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.serving.result import Result
    from headwater.sql.statements import RefreshView


@dataclass(frozen=True, slots=True)
class Done:
    """What was refreshed, and the first error if there were any."""

    result: Result
    differs: bool = False
    error: HeadwaterError | None = None


def refresh_one(session: Session, statement: RefreshView) -> Done:
    """Refresh the statement's view."""
    result = _refresh(session, statement)
    verified = result.info["verified"]
    return Done(result, verified is not None and not verified["equal"])


def refresh_all(session: Session, statement: RefreshView) -> Done:
    """Refresh every view as the statement says; one that fails does not keep the others from it."""
    from headwater.serving.view_answers import compared, refreshed
    from headwater.sql.statements import ShowViews

    done: dict[str, Mapping[str, Any]] = {}
    outcomes: list[Mapping[str, Any]] = []
    failed: list[HeadwaterError] = []
    for row in session.lake.execute(ShowViews()).rows():
        try:
            each = refresh_one(session, replace(statement, name=str(row["view"])))
        except HeadwaterError as error:
            failed.append(error)
            continue
        for one in each.result.info["refreshed"]:
            if one["method"] != "skip" or one["view"] not in done:  # it was done for a view that reads it
                done[one["view"]] = one
        if (outcome := each.result.info["verified"]) is not None:
            outcomes.append(outcome)
    result = refreshed(list(done.values()))
    result.info = {**result.info, "verified": outcomes}
    result.notices = tuple(compared(outcome) for outcome in outcomes)
    return Done(result, not all(outcome["equal"] for outcome in outcomes), _together(failed))


def _together(failed: list[HeadwaterError]) -> HeadwaterError | None:
    if not failed:
        return None
    first, *others = failed
    more = " ".join([first.detail or "", *(f"Also: {error}." for error in others)]).strip()
    return type(first)(first.message, detail=more or None, hint=first.hint, **first.data)


def _refresh(session: Session, statement: RefreshView) -> Result:
    from headwater.cli.work import spark_spinner

    lake, screen = session.lake, session.screen
    doing = [f"refreshing {statement.name}"]

    def planned(plan: Mapping[str, Any]) -> None:
        doing[0] = f"refreshing {plan['view']}: {plan['method']}, {counted(plan['rows'], 'row')} to read"
        if not screen.shows_progress and not screen.json and plan["method"] != "skip":
            screen.note(f"{doing[0]} ({plan['reason']})")

    with spark_spinner(lake, screen, lambda: doing[0]):
        return session.worker.run(lambda _: lake.refresh_view(statement, planned))
