"""The one Spark session of a process: its settings as a pure value, its start, and a lazy holder for it.

Nothing here starts Spark until someone asks for a session: a query that DuckDB answers never pays for a JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.errors import InvalidSetting
from headwater.spark.preflight import check_executors, check_master
from headwater.spark.scratch import Claim, claim
from headwater.spark.slots import slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"
LOOPBACK = "127.0.0.1"
LOG4J = Path(__file__).with_name("log4j2.properties")
SOCKETS_MAX = 50
"""The longest folder whose sockets still have a path that every system takes (104 bytes on macOS, 108 on Linux)."""
STOP_TIMEOUT = 15.0
"""Seconds that a JVM has to end by itself."""
PRELOAD = ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "headwater.spark.spool")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """What a session depends on.

    `catalog_uri` is a JDBC URI; `preload` names modules that tasks import; `sockets` is a folder with a short path, by
    which local workers are reached (over TCP without it, which costs every job about 40 ms); `jvm` are further options
    of the driver's. `host` is the address that the driver binds to, `secret` what a cluster's processes share, and
    `umask` what the JVM and its workers create files with. Without `own_group` the JVM is in the process group of this
    process.
    """

    warehouse: str
    catalog_uri: str
    scratch: Path
    master: str = "local[*]"
    driver_memory: str = "1g"
    shuffle_partitions: int = 4
    preload: tuple[str, ...] = PRELOAD
    sockets: Path | None = None
    jvm: tuple[str, ...] = ()
    host: str = LOOPBACK
    secret: str = field(default="", repr=False)
    umask: int = 0o077
    own_group: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)


def conf(settings: SparkSettings, jars: Sequence[Path]) -> dict[str, str]:
    """Every Spark setting of a session whose temporary files go into `settings.scratch`; `extra` wins."""
    return {
        **_process_conf(settings, jars),
        **_security_conf(settings),
        **_catalog_conf(settings),
        **_sql_conf(settings),
        **_worker_conf(settings),
        **_quiet_conf(),
        **settings.extra,
    }


def _process_conf(settings: SparkSettings, jars: Sequence[Path]) -> dict[str, str]:
    scratch = _checked(settings.scratch, ",")
    class_path = ":".join(_checked(jar, ":") for jar in jars)
    return {
        "spark.app.name": "headwater",
        **slots(settings.master),
        "spark.driver.memory": settings.driver_memory,
        # Not spark.jars: JDBC connections after the first one do not find classes loaded from there.
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        "spark.driver.extraJavaOptions": " ".join(
            _java_option(option)
            for option in (
                f"-Djava.io.tmpdir={scratch}/tmp",
                f"-Dheadwater.log={scratch}/spark.log",
                f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
                "-XX:+ExitOnOutOfMemoryError",
                *settings.jvm,
            )
        ),
        "spark.local.dir": scratch,
        "spark.scheduler.mode": "FAIR",
        "spark.driver.host": settings.host,
        "spark.driver.bindAddress": settings.host,
        # Hadoop's files get their mode from here, and not from the umask of the process.
        "spark.hadoop.fs.permissions.umask-mode": f"{settings.umask:03o}",
    }


def _security_conf(settings: SparkSettings) -> dict[str, str]:
    """Whoever connects to a port of Spark's proves to know a secret, and what goes over it is encrypted.

    In local mode Spark generates the secret. A standalone master accepts only its own secret, and one without a secret
    accepts none.
    """
    if not _local(settings) and not settings.secret:
        if settings.host == LOOPBACK or "spark.authenticate" in settings.extra:
            return {}
        raise InvalidSetting(
            'setting "spark_host" needs the setting "spark_secret"',
            detail="Without a secret, everyone who reaches the driver's ports can run code in it.",
            hint="Set spark.authenticate.secret for the cluster's master and workers, and spark_secret to the same; "
            'or, in a network that you trust, set spark_conf = { "spark.authenticate" = "false" }.',
        )
    return {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        **({"spark.authenticate.secret": settings.secret} if settings.secret else {}),
    }


def _catalog_conf(settings: SparkSettings) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.uri": settings.catalog_uri,
        f"{prefix}.warehouse": settings.warehouse,
        # Python commits to the same tables: a cached one would be stale.
        f"{prefix}.cache-enabled": "false",
    }


def _sql_conf(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        # ${env:NAME} in a query would read the service's environment, and ${spark...} its catalog's password.
        "spark.sql.variable.substitute": "false",
        # The parser would evaluate VALUES itself and leave nothing of them for the gate to look at.
        "spark.sql.parser.eagerEvalOfUnresolvedInlineTable": "false",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.warehouse.dir": f"{settings.scratch}/warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Without verified checksums a flipped bit in a page gives wrong results and no error.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    }


def _worker_conf(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.python.daemon.module": "headwater.spark.daemon",
        "spark.executorEnv.HEADWATER_PRELOAD": ",".join(settings.preload),
        "spark.executorEnv.HEADWATER_UMASK": f"{settings.umask:03o}",
        **(_socket_conf(settings.sockets) if settings.sockets and _local(settings) else {}),
    }


def _socket_conf(sockets: Path) -> dict[str, str]:
    if len(str(sockets)) > SOCKETS_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(sockets)}


def _quiet_conf() -> dict[str, str]:
    """No user interface, no progress bars, and little memory for the history that a user interface would show."""
    return {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.dagGraph.retainedRootRDDs": "50",
        "spark.sql.ui.retainedExecutions": "20",
    }


def _local(settings: SparkSettings) -> bool:
    return settings.master == "local" or settings.master.startswith("local[")


def _checked(path: Path, separator: str) -> str:
    if separator in str(path):
        raise InvalidSetting(
            f'path "{path}" cannot be passed to Spark',
            detail=f'Spark takes "{separator}" as a separator.',
            hint="Move the folder to a path without it.",
        )
    return str(path)


def _java_option(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def start(settings: SparkSettings, jars: Sequence[Path]) -> SparkSession:
    """Start Spark in a scratch folder of its own, after sweeping those of dead processes."""
    from headwater.spark.gateway import launch

    check_master(settings.master)
    own = claim(settings.scratch.resolve())
    try:
        placed = replace(settings, scratch=own.folder, sockets=own.sockets)
        session = launch(conf(placed, jars), own.folder / "jvm.log", settings.umask, own_group=settings.own_group)
    except BaseException:
        own.release()
        raise
    # The folder lives exactly as long as the JVM, and the gateway is what PySpark keeps for exactly as long.
    session.sparkContext._gateway.claim = own
    if not _local(settings):
        try:
            check_executors(session, settings.warehouse, jars)
        except BaseException:
            stop(session)
            raise
    return session


def stop(session: SparkSession, timeout: float = STOP_TIMEOUT) -> None:
    """Stop the session, end its JVM and remove its scratch folder; safe when the JVM has already died."""
    from headwater.spark.gateway import end

    own: Claim | None = vars(session.sparkContext._gateway).get("claim")
    end(session, timeout)
    if own:
        own.release()


def is_alive(session: SparkSession) -> bool:
    """Whether the session can still run jobs."""
    from headwater.spark.gateway import is_alive as jvm_is_alive

    return jvm_is_alive(session)


SparkState = Literal["not started", "starting", "ready"]


class SparkEngine:
    """Holds at most one session: started on first use, once for all threads, and again if its JVM has died."""

    def __init__(
        self,
        start: Callable[[], SparkSession],
        *,
        stop: Callable[[SparkSession], None] = stop,
        alive: Callable[[SparkSession], bool] = is_alive,
    ) -> None:
        self._start = start
        self._stop = stop
        self._alive = alive
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._starting = False

    @property
    def state(self) -> SparkState:
        """How far the session is; asking does not start it, and says nothing about its health."""
        if self._session is not None:
            return "ready"
        return "starting" if self._starting else "not started"

    @property
    def session(self) -> SparkSession:
        """The running session; the first caller starts it while the others wait."""
        with self._lock:
            if self._session is not None and not self._alive(self._session):
                self._discard()
            if self._session is None:
                self._starting = True
                try:
                    self._session = self._start()
                finally:
                    self._starting = False
            return self._session

    def stop(self) -> None:
        """End the session and its JVM, if any; a later `session` starts a new one."""
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._stop(session)
