"""An Iceberg view beside each materialized view: `mv.<name>` folds `views.<name>`, and other engines read plain rows.

It is a convenience for others; Headwater itself never reads it.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

from headwater.catalog.iceberg import NAME, named_errors
from headwater.catalog.views import P_READ_SIGNED, STATES, View
from headwater.storage.writer import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

NAMESPACE = "mv"
_FORGET = text(
    "DELETE FROM iceberg_tables WHERE catalog_name = :catalog AND table_namespace = :namespace "
    "AND table_name = :name AND iceberg_type = 'VIEW'"
)


def publish(view: View, session: SparkSession) -> None:
    """Make or replace the Iceberg view. It cancels rows that take others back, so it is right at every snapshot."""
    rows = view.table.metadata.properties[P_READ_SIGNED].replace(f"`{STATES}`", f"{NAME}.{view.table_name}")
    try:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {NAME}.{NAMESPACE}")
        session.sql(f"CREATE OR REPLACE VIEW {NAME}.{NAMESPACE}.{view.name} AS {rows}")
    except Exception:
        log.warning("iceberg view was not made", extra={"view": view.name}, exc_info=True)


def withdraw(name: str, catalog: SqlCatalog) -> None:
    """Remove the Iceberg view; without Spark, which would take seconds to start for it."""
    with named_errors(), catalog.engine.begin() as connection:
        connection.execute(_FORGET, {"catalog": catalog.name, "namespace": NAMESPACE, "name": name})
    folder: Path = local_path(str(catalog.properties["warehouse"]).rstrip("/")) / NAMESPACE / name
    shutil.rmtree(folder, ignore_errors=True)
