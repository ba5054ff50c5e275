"""A continuous view that runs, on every surface: status, stop, start, metrics, its changes, and the command line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headwater.cli.main import main
from headwater.client import RemoteLake
from headwater.engine import Lake
from headwater.errors import StreamNotFound

pytestmark = pytest.mark.spark

QUERY = (
    "SELECT TUMBLE_START(at, INTERVAL '1 minute') AS minute, city, count(*) AS n FROM clicks "
    "GROUP BY TUMBLE(at, INTERVAL '1 minute'), city"
)


RATES = ("input_rows_per_s", "processed_rows_per_s", "last_batch_at", "batch_seconds")


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def click(lake: Lake, *clicks: tuple[str, str]) -> None:
    lake.topic("clicks").append([{"at": f"2026-01-01T10:{at}Z", "city": city} for at, city in clicks])
    lake.flush("clicks")


@pytest.fixture(scope="module")
def view(lake: Lake) -> Iterator[str]:
    """A continuous view that this process keeps."""
    columns = "at TIMESTAMP, city STRING"
    lake.sql(f"CREATE STREAM clicks ({columns}) WITH (timestamp_field = 'at', max_out_of_orderness = '10 seconds')")
    click(lake, ("00:01", "rome"), ("00:02", "rome"))
    lake.sql(f"CREATE MATERIALIZED VIEW per_minute AS {QUERY} WITH (refresh = 'continuous')")
    yield "per_minute"
    lake.streams.stop_background()
    lake.sql("DROP MATERIALIZED VIEW per_minute")


def test_from_idle_to_running_to_stopped(
    lake: Lake, remote: RemoteLake, http: httpx.Client, url: str, view: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(*arguments: str) -> str:
        assert main(["--url", url, *arguments]) == 0
        return capsys.readouterr().out

    (idle,) = http.get("/status/streams").json()["streams"]
    assert (idle["name"], idle["kind"], idle["state"], idle["sources"]) == (view, "view", "idle", ["clicks"])
    changes: list[dict[str, Any]] = []
    tail = remote.tail(view)
    reader = threading.Thread(target=lambda: changes.extend(tail), daemon=True)
    reader.start()

    lake.streams.start_background()
    wait_for(lambda: remote.streams.status(view)[0].state == "running")
    click(lake, ("00:30", "oslo"), ("01:30", "rome"))
    wait_for(lambda: len(changes) >= 2)
    assert {row["_op"] for row in changes} == {"~"}
    assert {(row["minute"].minute, row["city"], row["n"]) for row in changes} >= {(0, "oslo", 1), (1, "rome", 1)}

    place = f"/streams/{view}/status"
    wait_for(lambda: http.get(place).json()["watermark"] == "2026-01-01T10:01:20Z")  # the batch that closes windows

    def settled() -> dict[str, Any]:
        told = [http.get(place).json(), json.loads(cli("stream", "status", view, "--json"))]
        first, second = ({key: value for key, value in each.items() if key not in RATES} for each in told)
        return dict(first) if first == second else {}

    wait_for(lambda: bool(settled()))  # Spark tells of a batch a moment after it is in the view
    running = http.get(place).json()
    assert running["rows_in"] >= 2
    assert running["query"].startswith("SELECT TUMBLE_START")
    assert running["watermark"] is not None
    assert remote.streams.status()[0].name == lake.streams.status()[0].name
    assert f"{view} " in cli("stream", "status")
    assert "state:                  running" in cli("stream", "status", view)
    scraped = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
    assert f'headwater_stream_running{{kind="view",stream="{view}"}} 1.0' in scraped
    assert f'headwater_stream_rows_in_total{{kind="view",stream="{view}"}}' in scraped

    assert cli("stream", "stop", view) == f"{view}: stopped\n"
    assert remote.streams.status(view)[0].state == "stopped"
    assert http.post(f"/streams/{view}/start").json()["state"] in ("starting", "running")
    wait_for(lambda: lake.streams.status(view)[0].state == "running")
    assert remote.streams.restart(view).state in ("starting", "running")
    assert remote.streams.stop(view).state == "stopped"
    tail.close()
    reader.join(60)
    assert not reader.is_alive()
    with pytest.raises(StreamNotFound):
        remote.streams.stop("never")
