"""Settings: one frozen value from headwater.toml, HEADWATER_* variables and keyword arguments; read at the edges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from headwater.errors import InvalidSetting, LakeNotFound

CONFIG_FILE = "headwater.toml"
MB = 1024**2


class Settings(BaseSettings):
    """What can be set for a lake and its service. Every field is documented in docs/reference/settings.md."""

    model_config = SettingsConfigDict(env_prefix="HEADWATER_", frozen=True, extra="forbid")
    toml_file: ClassVar[Path | None] = None

    host: str = Field("127.0.0.1", description="Address that `headwater serve` binds to.")
    port: int = Field(8420, ge=0, le=65535, description="Port of `headwater serve`; 0 picks a free one.")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="From which level on `headwater serve` logs its own events."
    )

    memory_limit: int = Field(1024 * MB, ge=256 * MB, description="Bytes that the service's Python side may use.")
    max_tail_bytes: int = Field(
        256 * MB, ge=1 * MB, description="Unflushed bytes in the log at which producers are told to wait."
    )
    max_body_bytes: int = Field(256 * MB, ge=1 * MB, description="Largest body of one produce request.")
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
    lease_ttl: float = Field(30, gt=0, description="Seconds after which a dead process's lease can be taken.")
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
    busy_timeout: float = Field(30, ge=0, description="Seconds to wait for a locked SQLite file.")

    kafka_bootstrap_servers: str = Field(
        "", description="Brokers that keep the log of topics with log = 'kafka', as host:port, separated by commas."
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
    kafka_options: dict[str, str] = Field(
        default_factory=dict,
        description="More settings of librdkafka for the log; a value env:NAME is read from the environment.",
    )

    spark_master: str = Field("local[*]", description="Spark master.")
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
    def cache(self) -> Path:
        return self.cache_dir or default_cache()


def default_cache() -> Path:
    """Where JVM packages are kept when no lake says otherwise."""
    if chosen := os.environ.get("HEADWATER_CACHE_DIR"):
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"


def load_settings(toml_file: Path | None = None, **overrides: Any) -> Settings:
    """Settings of a lake: keyword arguments win over variables, variables over the file, the file over defaults."""
    bound = type("Settings", (Settings,), {"toml_file": toml_file, "__module__": Settings.__module__})
    try:
        loaded = bound(**overrides)
    except ValidationError as invalid:
        raise _invalid_setting(invalid, toml_file) from None
    except ValueError as broken:  # a TOML syntax error
        raise InvalidSetting(f'settings file "{toml_file}" cannot be read', detail=f"{broken}.") from None
    assert isinstance(loaded, Settings)
    return loaded


def _invalid_setting(invalid: ValidationError, toml_file: Path | None) -> InvalidSetting:
    import difflib

    first = invalid.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    hint = f'Did you mean "{near[0]}"?' if first["type"] == "extra_forbidden" and near else None
    where = f"It comes from a keyword argument, a HEADWATER_ variable or {toml_file}." if toml_file else None
    reason = "There is no such setting." if first["type"] == "extra_forbidden" else f"{first['msg']}."
    return InvalidSetting(f'setting "{name}" is not valid', detail=" ".join(filter(None, (reason, where))), hint=hint)


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
        return self.root / "scratch"

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
