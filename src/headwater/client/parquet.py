"""Statements about a topic's files to routes, answers to results."""

from __future__ import annotations

from typing import assert_never
from urllib.parse import quote

from headwater.client.views import Json
from headwater.serving.parquet_answers import recommended, shown_schema, shown_stats
from headwater.serving.result import Result
from headwater.sql.statements import ParquetStatement, Recommend, ShowParquetSchema, ShowParquetStats


class RemoteParquet:
    """Answers statements about the files of topics behind a service."""

    def __init__(self, json: Json) -> None:
        self._json = json

    def run(self, statement: ParquetStatement) -> Result:
        match statement:
            case ShowParquetStats(topic, distinct):
                return shown_stats(self._json("GET", _path(topic, "stats"), slow=True, params={"distinct": distinct}))
            case ShowParquetSchema(topic):
                return shown_schema(self._json("GET", _path(topic, "schema"), slow=True))
            case Recommend(topic, apply, rows):
                path, asked = _path(topic, "recommendations"), {"sample_rows": rows}
                if apply:
                    return recommended(self._json("POST", path, slow=True, json=asked))
                return recommended(self._json("GET", path, slow=True, params=asked))
            case _:
                assert_never(statement)


def _path(topic: str, what: str) -> str:
    return f"/topics/{quote(topic, safe='')}/parquet/{what}"
