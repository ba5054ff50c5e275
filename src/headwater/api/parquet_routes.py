"""/api/v1/topics/{topic}/parquet: what a topic's files are made of, and what would be better."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from headwater.api.described import problems
from headwater.api.parquet_models import ApplyBody, ParquetSchema, ParquetStats, Recommendations
from headwater.api.state import Shared, State
from headwater.api.topic_routes import TopicPath
from headwater.sql.parquet_statements import MAX_SAMPLE, MIN_SAMPLE
from headwater.sql.statements import SAMPLED_ROWS, ParquetStatement, Recommend, ShowParquetSchema, ShowParquetStats

router = APIRouter(prefix="/api/v1/topics/{topic}/parquet", tags=["care"])

SampleRows = Annotated[int, Query(ge=MIN_SAMPLE, le=MAX_SAMPLE, description="Rows to try recommendations on.")]


@router.get("/stats", operation_id="parquet_stats", response_model=ParquetStats, responses=problems(404))
async def parquet_stats(
    shared: Shared,
    topic: TopicPath,
    distinct: Annotated[bool, Query(description="Estimate the number of different values, which reads data.")] = True,
) -> dict[str, Any]:
    """Sizes, codecs, encodings, bounds and distinct values of a topic's columns, as its committed files have them."""
    return await _run(shared, ShowParquetStats(topic, distinct))


@router.get("/schema", operation_id="parquet_schema", response_model=ParquetSchema, responses=problems(404))
async def parquet_schema(shared: Shared, topic: TopicPath) -> dict[str, Any]:
    """The Parquet types of a topic's columns in its newest file, and how other files differ."""
    return await _run(shared, ShowParquetSchema(topic))


@router.get("/recommendations", operation_id="recommend", response_model=Recommendations, responses=problems(404))
async def recommendations(shared: Shared, topic: TopicPath, sample_rows: SampleRows = SAMPLED_ROWS) -> dict[str, Any]:
    """What would store a topic in less space or read it with less work, each idea tried on a sample of its rows."""
    return await _run(shared, Recommend(topic, sample_rows=sample_rows))


@router.post(
    "/recommendations",
    operation_id="apply_recommendations",
    response_model=Recommendations,
    responses=problems(404, 409),
)
async def apply_recommendations(shared: Shared, topic: TopicPath, body: ApplyBody | None = None) -> dict[str, Any]:
    """Look for recommendations and alter the topic by all of them at once. Files that are there stay as they are."""
    asked = body or ApplyBody.model_validate({})
    return await _run(shared, Recommend(topic, apply=True, sample_rows=asked.sample_rows))


async def _run(shared: State, statement: ParquetStatement) -> dict[str, Any]:
    return dict(await shared.call_slow(lambda: shared.lake.execute(statement).info))
