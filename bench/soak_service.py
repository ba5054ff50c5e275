"""The service of `bench.soak --without-spark`: HTTP over a lake, without background work that needs the JVM."""

from __future__ import annotations

import os
import sys

import headwater
from headwater.api.serve import serve


def main() -> None:
    # Not a context: `serve` closes the lake.
    lake = headwater.open(os.environ["HEADWATER_LAKE"])
    serve(lake, port=0, on_ready=lambda url: sys.stdout.write(f"{url}\n"))


if __name__ == "__main__":
    main()
