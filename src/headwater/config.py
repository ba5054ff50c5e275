"""Settings: one frozen value from headwater.toml, HEADWATER_* variables and keyword arguments; read at the edges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from zlib import crc32

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from headwater.connections import REFERENCE, Connection
from headwater.errors import InvalidSetting, LakeNotFound

CONFIG_FILE = "headwater.toml"
MB = 1024**2

ConnectionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
_CONNECTION = "Name the brokers in a table [connections.NAME], and set kafka_connection to NAME."
REPLACED = {"kafka_bootstrap_servers": _CONNECTION, "kafka_options": _CONNECTION}
"""Settings of earlier versions, and what takes their place."""


def _split_names(value: Any) -> Any:
    return [name for part in value.split(",") if (name := part.strip())] if isinstance(value, str) else value


HostNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names)]
"""Names as a list, or separated by commas."""


class Settings(BaseSettings):
    """What can be set for a lake and its service. Every field is documented in docs/reference/settings.md."""

    model_config = SettingsConfigDict(env_prefix="HEADWATER_", frozen=True, extra="forbid")
    toml_file: ClassVar[Path | None] = None

    host: str = Field("127.0.0.1", description="Address that `headwater serve` binds to.")
    port: int = Field(8420, ge=0, le=65535, description="Port of `headwater serve`; 0 picks a free one.")
    allowed_hosts: HostNames = Field(
        (),
        description="Host names under which the service answers, besides localhost and the address that it is bound "
        "to; `*` allows any.",
    )
    max_connections: int = Field(
        512, ge=1, description="Connections that the service holds at once, at most half of the files it may open."
    )
    idle_timeout: int = Field(30, ge=1, description="Seconds after which a connection without requests is closed.")
    header_timeout: float = Field(10, gt=0, description="Seconds that a client has to send the headers of a request.")
    body_timeout: float = Field(
        30,
        gt=0,
        description="Seconds that the service waits for a request's body in all, and one more for every 1,000 bytes "
        "of it.",
    )
    send_timeout: float = Field(
        120,
        gt=0,
        description="Seconds after which the connection of a client that does not read what is sent to it is closed.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="From which level on `headwater serve` logs its own events."
    )

    file_access: Literal["owner", "group"] = Field(
        "owner", description="Who may open the files that Headwater creates: their owner, or the owner's group as well."
    )

    memory_limit: int = Field(1024 * MB, ge=256 * MB, description="Bytes that the service's Python side may use.")
    max_tail_bytes: int = Field(
        256 * MB, ge=1 * MB, description="Unflushed bytes in the log at which producers are told to wait."
    )
    max_body_bytes: int = Field(
        256 * MB,
        ge=1 * MB,
        description="Largest body of one produce request: as it is sent, decompressed, and as its records are decoded.",
    )
    max_request_bytes: int = Field(
        1 * MB, ge=64 * 1024, description="Largest body of a request that carries no records, such as a query."
    )
    max_record_bytes: int = Field(16 * MB, ge=1024, description="Largest single record.")
    max_reported_rejects: int = Field(10, ge=1, description="Bad rows that a rejection names.")
    producer_horizon: float = Field(86_400, gt=0, description="Seconds for which a producer's sequence is remembered.")
    auto_flush: bool = Field(True, description="In process, commit the log when it is full instead of refusing.")

    query_timeout: float = Field(300, gt=0, description="Seconds after which a query is stopped.")
    query_max_rows: int = Field(1_000_000, ge=1, description="Rows that a result held in memory may have.")
    query_memory: int = Field(512 * MB, ge=64 * MB, description="Bytes that DuckDB may use for all queries together.")
    query_sync_seconds: float = Field(
        10, ge=0, description="Seconds that POST /api/v1/query waits before it answers with an id."
    )
    query_worker: Literal["service", "always", "never"] = Field(
        "service",
        description="Whether queries on Spark have a process of their own: under `headwater serve`, always, or never.",
    )
    query_worker_memory: str = Field("1g", pattern=r"^\d+[mg]$", description="Memory of the query worker's Spark.")
    query_stop_seconds: float = Field(
        5, gt=0, le=300, description="Seconds that a query on Spark has to stop before the query worker is killed."
    )
    query_max_result_bytes: int = Field(
        4096 * MB, ge=1 * MB, description="Bytes of one result that the service stores: a paged one, or one of Spark's."
    )
    query_max_scratch_bytes: int = Field(
        16_384 * MB, ge=1 * MB, description="Bytes of temporary files that queries may have together, on each engine."
    )
    max_tails: int = Field(64, ge=1, description="Tails that the service's clients may follow at once.")
    query_concurrency: int = Field(4, ge=1, description="Queries that run at once in the service.")
    duckdb_max_bytes: int = Field(
        4096 * MB, ge=0, description="Bytes to read above which a query goes to Spark by itself."
    )
    verify_checksums: bool = Field(
        True,
        description="Verify the columns that DuckDB reads, once per process and file. Spark always verifies.",
    )

    record_usage: bool = Field(
        True, description="Remember which columns queries read and filter by; recommendations are drawn from it."
    )

    stream_commit_interval: float = Field(
        0.5,
        gt=0,
        description="Seconds that a record waits to be committed at the most while a stream reads its topic.",
    )
    ingest_poll: float = Field(0.5, gt=0, description="Seconds between the ingester's looks at the log.")
    ingest_max_bytes: int = Field(512 * MB, ge=1 * MB, description="Log bytes that one commit takes at the most.")
    sort_memory: int = Field(
        256 * MB, ge=16 * MB, description="Bytes in which a compaction task sorts; more rows are sorted on disk."
    )
    refresh_poll: float = Field(1, gt=0, description="Seconds between the refresher's looks at views and topics.")
    max_concurrent_refreshes: int = Field(2, ge=1, le=64, description="Views that the service refreshes at once.")
    refresh_retry: float = Field(
        1, gt=0, description="Seconds before a failed refresh is tried again; twice as many after each further failure."
    )
    refresh_retry_max: float = Field(
        300, gt=0, description="Seconds between two tries at the most, and between looks at a view that is broken."
    )
    refresh_wait: float = Field(
        60, ge=0, description="Seconds for which a query waits for another process that refreshes the view it reads."
    )
    lease_ttl: float = Field(
        30,
        gt=0,
        description="Seconds until an unrenewed lease ends; a dead process loses its leases at once.",
    )
    view_history: int = Field(1000, ge=1, description="Refreshes of each view that are remembered.")
    maintenance: bool = Field(True, description="Whether the service takes care of tables by itself.")
    maintenance_interval: float = Field(
        600, gt=0, description="Seconds between two looks at what tables need; the first comes soon after the start."
    )
    maintenance_history: int = Field(1000, ge=1, description="Steps of maintenance that are remembered of each table.")
    orphan_age: float = Field(
        259_200, ge=3600, description="Seconds after which a file that no snapshot refers to may be deleted."
    )
    view_snapshot_retention: float = Field(
        86_400, ge=60, description="Seconds for which past states of materialized views can be read."
    )
    view_min_snapshots: int = Field(
        10, ge=1, description="Past states of a materialized view that are kept however old they are."
    )
    view_max_snapshots: int = Field(
        1000, ge=1, description="Past states of a materialized view that are kept at the most, however young they are."
    )
    busy_timeout: float = Field(30, ge=0, description="Seconds to wait for a locked SQLite file.")

    connections: dict[ConnectionName, Connection] = Field(
        default_factory=dict,
        description="Other systems by name, as tables [connections.NAME]: guides/connections.md describes them.",
    )
    kafka_connection: str = Field(
        "", description="Connection to the brokers that store the log of topics with log = 'kafka'."
    )
    kafka_topic_prefix: str = Field(
        "headwater",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="How the name of the Kafka topic begins that holds the log; the lake's id follows.",
    )
    kafka_replication_factor: int = Field(
        0, ge=0, le=100, description="Replicas of that topic when it is made; 0 leaves it to the brokers."
    )
    kafka_timeout: float = Field(
        30, gt=0, description="Seconds after which an append or a read that Kafka does not answer fails."
    )

    spark_master: str = Field("local[*]", description="Spark master.")
    spark_host: str = Field(
        "127.0.0.1", description="Address that Spark's driver binds to; with a cluster, one that its executors reach."
    )
    spark_secret: str = Field(
        "",
        pattern=REFERENCE,
        description="Secret that a cluster's master, workers and this driver share, as env:NAME or file:PATH.",
    )
    spark_memory: str = Field("2g", pattern=r"^\d+[mg]$", description="Memory of the Spark driver.")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="More Spark settings.")
    cache_dir: Path | None = Field(None, description="Where JVM packages are kept; ~/.cache/headwater by default.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if cls.toml_file is not None and cls.toml_file.exists():
            sources += (TomlConfigSettingsSource(settings_cls, cls.toml_file),)
        return sources

    @property
    def umask(self) -> int:
        """The bits of file modes that `file_access` takes away."""
        return 0o007 if self.file_access == "group" else 0o077

    @property
    def cache(self) -> Path:
        return self.cache_dir or default_cache()


def default_cache() -> Path:
    """Where JVM packages are kept when no lake says otherwise."""
    if chosen := os.environ.get("HEADWATER_CACHE_DIR"):
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"


def load_settings(toml_file: Path | None = None, **overrides: Any) -> Settings:
    """Settings of a lake: keyword arguments win over variables, variables over the file, the file over defaults."""
    for name, instead in REPLACED.items():
        if f"HEADWATER_{name.upper()}" in os.environ:  # pydantic ignores variables of no setting
            raise InvalidSetting(f'setting "{name}" is not valid', detail="There is no such setting.", hint=instead)
    bound = type("Settings", (Settings,), {"toml_file": toml_file, "__module__": Settings.__module__})
    try:
        loaded = bound(**overrides)
    except ValidationError as invalid:
        raise _invalid_setting(invalid, toml_file) from None
    except ValueError as broken:  # a TOML syntax error
        raise InvalidSetting(
            f'settings file "{toml_file}" cannot be read', detail=f"{broken}.", hint="Correct the file."
        ) from None
    assert isinstance(loaded, Settings)
    return loaded


def _invalid_setting(invalid: ValidationError, toml_file: Path | None) -> InvalidSetting:
    import difflib

    first = invalid.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    hint = REPLACED.get(name)
    if hint is None and first["type"] == "extra_forbidden" and near:
        hint = f'Did you mean "{near[0]}"?'
    where = f"It comes from a keyword argument, a HEADWATER_ variable or {toml_file}." if toml_file else None
    reason = "There is no such setting." if first["type"] == "extra_forbidden" else f"{first['msg']}."
    return InvalidSetting(f'setting "{name}" is not valid', detail=" ".join(filter(None, (reason, where))), hint=hint)


def is_writable(path: Path) -> bool:
    """Whether this process may write a file of the lake, and make others beside it, as SQLite does."""
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def read_only_uri(path: Path) -> str:
    """The URI by which SQLite reads a database of the lake.

    Beside one in WAL mode SQLite makes two more files. Where it cannot, a database that has none of them is read as it
    is: nobody who could write it has it open.
    """
    alone = not is_writable(path) and not path.with_name(f"{path.name}-wal").exists()
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if alone else ''}"


@dataclass(frozen=True, slots=True)
class LakePaths:
    """Where the parts of an embedded lake are."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / CONFIG_FILE

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.db"

    @property
    def state(self) -> Path:
        return self.root / "state.db"

    @property
    def kafka_index(self) -> Path:
        """What is known of the log in Kafka; made again from there if it is lost."""
        return self.root / "kafka-log.db"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def streams(self) -> Path:
        """Checkpoints of continuous views."""
        return self.root / "streams"

    @property
    def scratch(self) -> Path:
        """What lives no longer than its process; beside the user's other caches where the lake cannot be written."""
        if os.access(self.root, os.W_OK):
            return self.root / "scratch"
        return default_cache() / "scratch" / f"{crc32(str(self.root).encode()):08x}"

    @classmethod
    def existing(cls, root: str | Path) -> LakePaths:
        """The paths of a lake that exists; LakeNotFound otherwise."""
        paths = cls(Path(root).resolve())
        if not paths.config.exists():
            raise LakeNotFound(
                f'no lake in "{root}"',
                detail=f"There is no {CONFIG_FILE} in that folder.",
                hint=f"Create one with `headwater init {root}`, or name another with -C or HEADWATER_LAKE.",
            )
        return paths
