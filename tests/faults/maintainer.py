"""Takes care of the topic `t` as it will be needed so many days from now; may die at any failpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from headwater.engine import Lake
from headwater.sql.care_statements import checked_steps


def main() -> None:
    path, days, *steps = sys.argv[1:]
    with Lake.open(Path(path), lease_ttl=0.5) as lake:
        lake.care.now = lambda: time.time() + float(days) * 86_400
        lake.maintain("t", only=checked_steps(steps))


if __name__ == "__main__":
    main()
