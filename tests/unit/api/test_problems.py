"""Errors as problem documents and back: what one side raises is what the other side raises."""

from __future__ import annotations

import inspect
import json

import httpx
import pytest

from headwater import errors
from headwater.api.problems import problem, respond
from headwater.client.answers import error_of
from headwater.errors import Backpressure, HeadwaterError, Unavailable

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, HeadwaterError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_survives_the_way_over_http(kind: type[HeadwaterError]) -> None:
    more = {"retry_after": 7} if kind is Backpressure else {}
    sent = kind('topic "ä" failed', detail="Because.", hint="Do this.", rejects=[{"row": 1}], **more)
    answer = respond(sent)
    assert answer.status_code == kind.status
    response = httpx.Response(answer.status_code, content=bytes(answer.body), headers=dict(answer.headers))
    received = error_of(response, "http://localhost")
    assert type(received) is kind
    assert (received.message, received.detail, received.hint) == (sent.message, sent.detail, sent.hint)
    assert received.data["rejects"] == [{"row": 1}]
    if kind is Backpressure:
        assert answer.headers["retry-after"] == "7"
        assert isinstance(received, Backpressure)
        assert received.retry_after == 7


def test_a_problem_leaves_out_what_is_not_known_and_keeps_its_own_members() -> None:
    document = problem(errors.TopicNotFound("gone", status=1, title="x", more=2))
    assert document == {
        "type": "urn:headwater:error:topic_not_found",
        "title": "gone",
        "status": 404,
        "code": "topic_not_found",
        "more": 2,
    }


def test_lone_surrogates_do_not_break_the_answer() -> None:
    body = bytes(respond(errors.InvalidInput("bad \ud800 text")).body)
    assert "bad" in json.loads(body)["title"]


def test_an_answer_from_something_else_is_said_to_be_one() -> None:
    stranger = error_of(httpx.Response(502, text="<html>bad gateway</html>"), "http://localhost")
    assert isinstance(stranger, Unavailable)
    assert "502" in stranger.message


def test_an_unknown_code_becomes_the_nearest_error() -> None:
    newer = {"code": "too_new", "title": "x"}
    assert type(error_of(httpx.Response(404, json=newer), "u")) is errors.NotFound
    assert type(error_of(httpx.Response(418, json=newer), "u")) is HeadwaterError
