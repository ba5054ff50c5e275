"""Generated requests against the running service: it never breaks, and it answers as /openapi.json says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema as BaseOpenAPISchema

import headwater
from headwater.api.serve import Service

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with headwater.init(tmp_path_factory.mktemp("lake")) as lake:
        lake.sql("CREATE TOPIC orders (order_id BIGINT NOT NULL, customer STRING)")
        lake.topic("orders").append([{"order_id": 1, "customer": "ada"}])
        service = Service(lake, port=0)
        yield service.start()
        service.stop()


@pytest.fixture(scope="module")
def api(url: str) -> BaseOpenAPISchema:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    assert isinstance(schema, BaseOpenAPISchema)
    return schema


OPERATIONS = [
    "create_topic",
    "list_topics",
    "describe_topic",
    "alter_topic",
    "list_topic_schemas",
    "drop_topic",
    "append_records",
    "parquet_stats",
    "parquet_schema",
    "recommend",
    "apply_recommendations",
    "list_snapshots",
    "list_view_snapshots",
    "rollback_topic",
    "cherry_pick_snapshot",
    "list_refs",
    "list_tags",
    "list_branches",
    "create_tag",
    "drop_tag",
    "create_branch",
    "drop_branch",
    "query_changes",
    "diff_topic",
    "list_maintenance",
    "list_views",
    "describe_view",
    "alter_view",
    "drop_view",
    "refresh_view",
    "query_view",
    "list_refreshes",
    "list_all_refreshes",
    "explain_refresh",
    "verify_view",
    "compact_view",
    "create_stream",
    "list_streams",
    "describe_stream",
    "alter_stream",
    "drop_stream",
    "stream_states",
    "stream_state",
    "start_stream",
    "stop_stream",
    "restart_stream",
    "run_query",
    "read_query",
    "cancel_query",
    "list_queries",
    "health",
    "ready",
    "metrics",
    "version",
]
STARTS_SPARK = [
    *("flush_topic", "flush", "create_view", "explain_view", "delete_rows", "update_rows"),
    *("maintain", "maintain_topic", "compact_topic"),
]
"""Of the operations on views, these make one; the others find none, and say so. Rows are changed by Spark."""
NEVER_END = ["tail_topic", "tail_view"]
"""Their answers last for as long as the client stays, unless it asks for what there is."""
WITHOUT_INPUT = [
    "list_topics",
    "list_views",
    "list_streams",
    "stream_states",
    "list_queries",
    "health",
    "ready",
    "metrics",
    "version",
]
"""Nothing can be wrong in a request to these."""
CASES = [
    (name, mode)
    for name in (*OPERATIONS, *NEVER_END)
    for mode in GenerationMode
    if mode is not GenerationMode.NEGATIVE or name not in (*WITHOUT_INPUT, *NEVER_END)
]


def test_every_operation_is_generated(api: BaseOpenAPISchema) -> None:
    described = [operation.ok().definition.raw["operationId"] for operation in api.get_all_operations()]
    assert sorted(described) == sorted(OPERATIONS + STARTS_SPARK + NEVER_END)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda value: getattr(value, "value", value))
def test_generated_requests(api: BaseOpenAPISchema, name: str, mode: GenerationMode) -> None:
    operation = api.find_operation_by_id(name)
    has_input = bool(list(operation.iter_parameters()) or list(operation.body))
    assert has_input == (name not in WITHOUT_INPUT)

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(mode))
    def generated(case: schemathesis.Case) -> None:
        if name in NEVER_END:
            case.query = {**(case.query or {}), "follow": "false"}
        without_spark(case).call_and_validate(checks=CHECKS, timeout=30)

    generated()


def without_spark(case: schemathesis.Case) -> schemathesis.Case:
    """The same request; a query of it goes to DuckDB or nowhere."""
    if isinstance(case.body, dict) and case.body.get("engine", "auto") in ("auto", "spark") and "sql" in case.body:
        case.body = {**case.body, "engine": "duckdb"}
    return case
