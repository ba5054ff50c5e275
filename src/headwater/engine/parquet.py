"""The statements about a topic's files: what they are made of, what would be better; and other files into a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import pyarrow as pa

from headwater.catalog.topics import Topic, Topics
from headwater.serving.parquet_answers import (
    advice_info,
    recommended,
    schema_info,
    shown_schema,
    shown_stats,
    stats_info,
)
from headwater.serving.result import Result
from headwater.serving.usage import UsageRecorder
from headwater.sources.convert import Converter, Limits
from headwater.sources.files import FileFormat, plan_files
from headwater.sql.alter import alter_of
from headwater.sql.statements import AlterTopic, ParquetStatement, Recommend, ShowParquetSchema, ShowParquetStats
from headwater.state.conversions import Conversions
from headwater.state.usage import TopicUsage
from headwater.storage.advice import Recommendation, change_of, read_sample, recommend
from headwater.storage.distincts import Distincts
from headwater.storage.parquet_footers import Footers
from headwater.storage.parquet_stats import files_schema, table_stats
from headwater.storage.scan import ManifestCache

if TYPE_CHECKING:
    from headwater.engine.lake import Lake

Alter = Callable[[AlterTopic], Result]


class ParquetStatements:
    """Answers them for the topics of one lake; remembers footers and sketches, because files never change."""

    def __init__(self, topics: Topics, usage: UsageRecorder, manifests: ManifestCache, alter: Alter) -> None:
        self._topics = topics
        self._usage = usage
        self._alter = alter
        self._manifests = manifests
        self._footers = Footers()
        self._distincts = Distincts()

    def run(self, statement: ParquetStatement) -> Result:
        match statement:
            case ShowParquetStats(name, distinct):
                distincts = self._distincts if distinct else None
                topic = self._topics.load(name)
                return shown_stats(stats_info(table_stats(topic, self._manifests, self._footers, distincts)))
            case ShowParquetSchema(name):
                return shown_schema(schema_info(files_schema(self._topics.load(name), self._manifests, self._footers)))
            case Recommend():
                return self._recommend(statement)
            case _:
                assert_never(statement)

    def _recommend(self, statement: Recommend) -> Result:
        topic = self._topics.load(statement.topic)
        sample, usage = read_sample(topic, self._manifests, statement.sample_rows), self._usage.of(topic.id)
        found = recommend(topic, sample, usage)
        change = change_of(found)
        applied = statement.apply and change is not None
        if applied and change is not None:
            self._alter(alter_of(topic.name, [change]))
        return recommended(_info(topic, found, sample, usage, change, applied))


def convert(
    lake: Lake,
    name: str,
    paths: Iterable[str | Path],
    format: FileFormat | None,
    *,
    dry_run: bool,
    progress: Callable[[Mapping[str, Any]], None],
) -> list[dict[str, Any]]:
    """Bring files into a topic of an open lake; what became of each."""
    settings = lake.settings
    converter = Converter(
        lake.topics,
        lake.append,
        Conversions(lake.paths.state, settings.busy_timeout),
        lambda: lake.spark,
        Limits(settings.max_record_bytes, settings.max_reported_rejects),
    )
    lake.topics.load(name)  # before files are looked for
    done = converter.run(name, plan_files(paths, format), dry_run=dry_run, progress=progress)
    return [asdict(each) for each in done]


def _info(
    topic: Topic,
    found: tuple[Recommendation, ...],
    sample: pa.Table,
    usage: TopicUsage,
    change: str | None,
    applied: bool,
) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "sample_rows": sample.num_rows,
        "queries": usage.queries,
        "recommendations": [advice_info(each, topic.name) for each in found],
        "statement": None if change is None else f"ALTER TOPIC {topic.name} {change}",
        "applied": applied,
        "notices": _notices(topic, found, sample, usage, applied),
    }


def _notices(
    topic: Topic, found: tuple[Recommendation, ...], sample: pa.Table, usage: TopicUsage, applied: bool
) -> list[str]:
    """What the reader should know about how sure this is, and about what comes next."""
    said = []
    if not sample.num_rows:
        said.append(f'topic "{topic.name}" has no committed rows to try anything on; FLUSH commits what waits')
    elif not usage.queries:
        said.append("no queries of the topic are known: only space was looked at")
    if applied:
        said.append(f"new files are written so; OPTIMIZE {topic.name} FULL rewrites those that are there")
    elif found:
        said.append(f"nothing was changed; RECOMMEND FOR {topic.name} APPLY makes all of these changes")
    return said
