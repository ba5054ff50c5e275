"""A lake behind a service holds topics as an open one does, down to commits and rows that are changed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headwater
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import InvalidOption, TopicNotFound
from headwater.sql.parse import parse
from headwater.sql.statements import CreateTopic

pytestmark = pytest.mark.spark


def test_topics_are_held_as_the_lake_holds_them(lake: Lake, remote: RemoteLake) -> None:
    with headwater.connect(remote.url) as connected:
        statement = parse("CREATE TOPIC held (id BIGINT NOT NULL, v DOUBLE)")
        assert isinstance(statement, CreateTopic)
        made = connected.create_topic(statement.definition)
        assert made.append([{"id": 1, "v": 0.5}], producer="p", sequence=1).rows == 1
        assert made.append(pa.table({"id": [1], "v": [0.5]}), producer="p", sequence=1).repeated
        held, local = connected.topic("held"), lake.topic("held")
        assert held.append('{"id": 2}\n').rows == 1
        assert sum(len(commit.offsets) for commit in held.flush()) == 2
        assert held.describe() == local.describe()
        assert held.schemas() == local.schemas()
        assert held.snapshots() == local.snapshots() != []
        assert held.read_at(held.snapshots()[0]["snapshot"]).rows() == connected.sql("SELECT * FROM held").rows()
        assert held.delete("id = 1")["rows"] == 1
        asked = "SELECT count(*) AS n FROM held"
        assert connected.sql(asked, engine="duckdb", timeout=30).info["plan"]["engine"] == "duckdb"
        with pytest.raises(InvalidOption, match='query option "engin" does not exist') as mistaken:
            connected.sql(asked, engin="duckdb")
        assert mistaken.value.hint == 'Did you mean "engine"?'
        held.alter("ADD COLUMN w INT")
        assert len(held.schemas()) == 2
        assert held.schemas() == local.schemas()
        with pytest.raises(TopicNotFound, match="hold"):
            connected.topic("hold")
        connected.sql("DROP TOPIC held")
