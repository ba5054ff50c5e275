"""A service that cannot do its work says why, and ends."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headwater.api.serve import serve
from headwater.engine import Lake
from headwater.errors import InvalidSetting


def test_a_service_that_cannot_start_its_background_work_ends_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake.init(tmp_path / "lake", spark_master="spark://127.0.0.1:1", maintenance=False)
    with caplog.at_level(logging.WARNING), pytest.raises(InvalidSetting, match=r"spark\.cores\.max"):
        serve(lake, port=0, on_ready=lambda _: lake.start_background())
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
