"""Statements about streams to routes, answers to results; and the streams of a service as a program asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, assert_never
from urllib.parse import quote

from headwater.serving import stream_answers
from headwater.serving.result import Result
from headwater.sql.statements import (
    AlterStream,
    CreateStream,
    DescribeStream,
    DropStream,
    RestartStream,
    ShowStreams,
    ShowStreamStatus,
    StartStream,
    StopStream,
    StreamStatement,
)
from headwater.sql.stream_json import stream_from_dict, stream_to_dict
from headwater.streaming.status import StreamStatus
from headwater.types import StreamDefinition

Json = Callable[..., dict[str, Any]]
"""A method, a path and what httpx takes, to the answer; `slow` waits for as long as it takes."""


class RemoteStreams:
    """The streams of the lake behind a service."""

    def __init__(self, json: Json) -> None:
        self._json = json

    def run(self, statement: StreamStatement) -> Result:
        json = self._json
        match statement:
            case CreateStream(definition, if_not_exists, or_replace):
                asked = {"if_not_exists": if_not_exists, "or_replace": or_replace}
                made = json("POST", "/streams", params=asked, json=stream_to_dict(definition))
                return Result.done(made["status"], made["notices"])
            case DropStream(name, if_exists):
                done = json("DELETE", _stream(name), slow=True, params={"if_exists": if_exists})
                return Result.done(done["status"])
            case AlterStream(name, values):
                changed = json("PATCH", _stream(name), slow=True, json={"options": dict(values)})
                return Result.done(changed["status"], changed["notices"])
            case ShowStreams():
                return stream_answers.listed(json("GET", "/streams")["streams"])
            case DescribeStream(name):
                return stream_answers.described(json("GET", _stream(name)))
            case ShowStreamStatus(only):
                path = "/status/streams" if only is None else _stream(only, "status")
                found = json("GET", path)
                return stream_answers.statuses(found["streams"] if only is None else [found])
            case StartStream(name):
                return self._told(name, "start")
            case StopStream(name):
                return self._told(name, "stop")
            case RestartStream(name):
                return self._told(name, "restart")
            case _:
                assert_never(statement)

    def _told(self, name: str, verb: str) -> Result:
        return stream_answers.statuses([self._json("POST", _stream(name, verb), slow=True)])

    # -- for programs ---------------------------------------------------------------------------------------------

    def list(self) -> Sequence[StreamDefinition]:
        """The streams that were created, by name; one without columns of its own has those of its topic."""
        names = [each["stream"] for each in self._json("GET", "/streams")["streams"]]
        return [_definition(self.describe(name)) for name in names]

    def describe(self, name: str) -> dict[str, Any]:
        """A stream with its columns and options, as plain data."""
        return self._json("GET", _stream(name))

    def status(self, name: str | None = None) -> Sequence[StreamStatus]:
        """How all continuous views and connectors run, or one."""
        return _statuses(self.run(ShowStreamStatus(name)))

    def start(self, name: str) -> StreamStatus:
        """Run it from now on, in the service."""
        return _statuses(self.run(StartStream(name)))[0]

    def stop(self, name: str) -> StreamStatus:
        """Finish what is under way, and do not run it again until it is started."""
        return _statuses(self.run(StopStream(name)))[0]

    def restart(self, name: str) -> StreamStatus:
        """Stop and start; a failure that it waits out is forgotten."""
        return _statuses(self.run(RestartStream(name)))[0]


_MOMENTS = frozenset(field.name for field in fields(StreamStatus) if "datetime" in str(field.type))


def _statuses(result: Result) -> list[StreamStatus]:
    return [status_of(each) for each in result.info["streams"]]


def status_of(plain: Mapping[str, Any]) -> StreamStatus:
    """A status from its JSON; what a newer service says besides is left out."""
    found = {field.name: plain[field.name] for field in fields(StreamStatus) if field.name in plain}
    moments = {name: datetime.fromisoformat(found[name]) for name in _MOMENTS if found.get(name) is not None}
    return StreamStatus(**{**found, **moments, "sources": tuple(plain["sources"])})


def _definition(about: Mapping[str, Any]) -> StreamDefinition:
    return stream_from_dict({key: about[key] for key in ("name", "columns", "partitioned_by", "options")})


def _stream(name: str, *below: str) -> str:
    return "/".join(("/streams", quote(name, safe=""), *below))
