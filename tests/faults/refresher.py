"""A service without HTTP that refreshes views until it dies, or runs one statement; failpoints come from the
environment."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from headwater.engine import Lake


def main() -> None:
    path, ready, *statement = sys.argv[1:]
    with Lake.open(path, spark_master="local[1]", lease_ttl=2, refresh_poll=0.1, refresh_retry=0.1) as lake:
        if statement:
            lake.sql(statement[0])
            return
        lake.start_background()
        lake.spark  # noqa: B018  from here on it works, or dies
        Path(ready).touch()
        threading.Event().wait()


if __name__ == "__main__":
    main()
