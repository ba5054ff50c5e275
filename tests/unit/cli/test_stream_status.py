"""A job's status as lines for a person, as metrics, and through JSON and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headwater.cli.stream import status_lines
from headwater.client.streams import status_of
from headwater.observability.metrics import Metrics
from headwater.streaming.status import StreamStatus

AT = datetime(2026, 11, 16, 12, tzinfo=UTC)
SALES = StreamStatus(
    "hourly_sales",
    "view",
    "running",
    query="SELECT city,\n  count(*)\nFROM orders GROUP BY city",
    sources=("orders", "rates"),
    epoch=7,
    watermark=AT,
    input_rows_per_s=12345.6,
    batch_seconds=0.25,
    lag_rows=1200,
    rows_in=5000,
    rows_out=40,
    late_rows=3,
    state_rows=10,
    state_bytes=2048,
    restarts=1,
)
FEED = StreamStatus("feed", "connector", "waiting", last_error="the broker is gone", next_start=AT)

MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))
COUNTS = st.integers(0, 2**53)
STATUSES = st.builds(
    StreamStatus,
    st.text(min_size=1),
    st.sampled_from(["view", "connector"]),
    st.sampled_from(["running", "waiting", "idle"]),
    query=st.none() | st.text(),
    sources=st.lists(st.text()).map(tuple),
    watermark=MOMENTS,
    started_at=MOMENTS,
    next_start=MOMENTS,
    rows_in=COUNTS,
    lag_rows=st.none() | COUNTS,
    input_rows_per_s=st.none() | st.floats(0, 1e9),
)


def test_lines_tell_what_is_known() -> None:
    assert status_lines(SALES.describe()) == [
        "name:                   hourly_sales",
        "kind:                   view",
        "state:                  running",
        "query:                  SELECT city, count(*) FROM orders GROUP BY city",
        "sources:                orders, rates",
        "epoch:                  7",
        "input rows per s:       12,346",
        "batch seconds:          250 ms",
        "watermark:              2026-11-16 12:00:00 UTC",
        "lag rows:               1,200",
        "rows in:                5,000",
        "rows out:               40",
        "late rows:              3",
        "skipped changes:        0",
        "state rows:             10",
        "state bytes:            2.0 KB",
        "restarts:               1",
    ]


@given(STATUSES)
def test_a_status_survives_json(status: StreamStatus) -> None:
    plain = json.loads(json.dumps(status.describe(), default=lambda moment: moment.isoformat()))
    assert status_of({**plain, "said_by_a_later_service": 1}) == status


def test_metrics_tell_what_was_seen_last() -> None:
    metrics = Metrics()
    assert not samples(metrics)
    metrics.streams.measure([SALES, FEED])
    found = samples(metrics)
    assert found["headwater_stream_rows_in_total", "hourly_sales"] == 5000
    assert found["headwater_stream_late_rows_total", "hourly_sales"] == 3
    assert found["headwater_stream_restarts_total", "feed"] == 0
    assert found["headwater_stream_running", "hourly_sales"] == 1
    assert found["headwater_stream_running", "feed"] == 0
    assert found["headwater_stream_state_bytes", "hourly_sales"] == 2048
    assert found["headwater_stream_lag_rows", "hourly_sales"] == 1200
    assert found["headwater_stream_batch_seconds", "hourly_sales"] == 0.25
    age = (datetime.now(UTC) - AT).total_seconds()
    assert abs(found["headwater_stream_watermark_age_seconds", "hourly_sales"] - age) < 60
    assert ("headwater_stream_state_rows", "feed") not in found  # not known is not 0
    metrics.streams.measure([FEED])
    assert {name for _, name in samples(metrics)} == {"feed"}


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, sample.labels["stream"]): sample.value
        for family in families
        if family.name.startswith("headwater_stream_")
        for sample in family.samples
    }
