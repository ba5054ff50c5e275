"""Parts of the OpenAPI description that several routes share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from headwater.api.models import Problem
from headwater.api.problems import MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]

_SCHEMA = {"$ref": "#/components/schemas/Problem"}


def problems(*statuses: int) -> Responses:
    """The problems that a route answers with; any other, too, has this shape."""
    described: Responses = {status: _problem(f"{HTTPStatus(status).phrase}.") for status in (400, 403, *statuses, 503)}
    return {**described, "default": {**_problem("Any other error."), "model": Problem}}


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": _SCHEMA}}}


def body(description: str, content: dict[str, Any]) -> dict[str, Any]:
    """A request body that the route reads itself."""
    return {"requestBody": {"required": True, "description": description, "content": content}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema that stands by itself: what it refers to is put in its place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return {key: _inlined(item, definitions) for key, item in schema.items()}


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if (name := str(value.get("$ref", "")).removeprefix("#/$defs/")) in definitions:
        rest = {key: item for key, item in value.items() if key != "$ref"}
        return _inlined({**definitions[name], **rest}, definitions)
    return {key: _inlined(item, definitions) for key, item in value.items()}


def text(*examples: str) -> dict[str, Any]:
    """A body of text, with examples."""
    return {"schema": {"type": "string"}, "example": examples[0]} if examples else {"schema": {"type": "string"}}


def binary() -> dict[str, Any]:
    return {"schema": {"type": "string", "format": "binary"}}
