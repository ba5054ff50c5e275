"""RemoteLake: statements to routes, answers to results."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, assert_never
from urllib.parse import quote, urlsplit

import httpx

from headwater import __version__
from headwater.client.answers import ack, error_of, ingested, problem_error
from headwater.client.bodies import NDJSON, body_of
from headwater.client.care import RemoteCare
from headwater.client.parquet import RemoteParquet
from headwater.client.run import RemoteRun, query_body
from headwater.client.snapshots import RemoteSnapshots
from headwater.client.streams import RemoteStreams
from headwater.client.tail import RemoteTail, TailLike, tail_params
from headwater.client.views import RemoteViews
from headwater.errors import (
    Backpressure,
    HeadwaterError,
    InvalidSetting,
    SchemaChanged,
    ServiceUnreachable,
    Unavailable,
)
from headwater.serving.result import Result
from headwater.serving.tail_request import tail_request
from headwater.serving.topic_answers import altered, changed_rows, described, flushed, listed, schemas
from headwater.sql.alter import alter_of
from headwater.sql.care_statements import checked_steps
from headwater.sql.parse import parse
from headwater.sql.schema_files import definition_to_dict
from headwater.sql.statements import (
    AlterTopic,
    CareStatement,
    CreateTopic,
    CreateView,
    DescribeTopic,
    DescribeView,
    DropTopic,
    Explain,
    FlushTopic,
    Maintain,
    MaintenanceStep,
    Optimize,
    ParquetStatement,
    Query,
    RefreshView,
    RowStatement,
    ShowSchemas,
    ShowTopics,
    SnapshotStatement,
    Statement,
    StreamStatement,
    UpdateRows,
    ViewStatement,
)
from headwater.sql.view_definition import checked_view
from headwater.topics.ingest import Ingested
from headwater.topics.produce import Ack, Format, Source
from headwater.types import TopicDefinition

if TYPE_CHECKING:
    from headwater.engine.handle import TopicHandle
    from headwater.engine.view_handle import ViewHandle
    from headwater.serving.query import Cancel

MAX_ROWS = 1_000_000
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 60.0
MAX_PAUSE = 5.0


class LakeLike(Protocol):
    """What a surface needs of a lake, whether it is open here or behind a service."""

    def execute(self, statement: Statement, cancel: Cancel | None = None) -> Result: ...

    def append(self, name: str, blocks: Iterable[Any], format: Format, source: Source) -> Ack: ...

    def refresh_view(
        self, statement: RefreshView, progress: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Result: ...

    def flush(
        self, name: str | None = None, progress: Callable[[Ingested], None] = lambda _: None
    ) -> list[Ingested]: ...

    def take_care(
        self,
        statement: Maintain | Optimize,
        progress: Callable[[dict[str, Any]], None] = lambda _: None,
        cancel: Cancel | None = None,
    ) -> Result: ...

    def tail(
        self,
        name: str,
        start: str | int | datetime = "latest",
        *,
        after: str | None = None,
        where: str | None = None,
        columns: Sequence[str] = (),
        follow: bool = True,
        limit: int | None = None,
    ) -> TailLike: ...

    def close(self) -> None: ...


class RemoteLake:
    """The lake that the service at `url` serves. Threads may share it."""

    def __init__(self, url: str, timeout: float = 30.0, *, retry_seconds: float = RETRY_SECONDS) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSetting(f'url "{url}" is not valid', hint="Write http://127.0.0.1:8420.")
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._reached = False
        # A proxy from the environment is for other machines.
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._client = httpx.Client(
            base_url=f"{self.url}/api/v1",
            timeout=self._patience(timeout),
            trust_env=not local,
            headers={"User-Agent": f"headwater/{__version__}"},
        )
        self._views = RemoteViews(self._json, self._lines)
        self._snapshots = RemoteSnapshots(self._json)
        self.streams = RemoteStreams(self._json)
        self._care = RemoteCare(self._json, self._lines)
        self._parquet = RemoteParquet(self._json)

    def _patience(self, read: float | None) -> httpx.Timeout:
        return httpx.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout), read=read, pool=None)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- statements ---------------------------------------------------------------------------------------------

    def sql(self, text: str, **options: Any) -> Result:
        """Run one statement of any kind; `options` (engine, tail, max_rows, timeout) are a query's."""
        return self.execute(parse(text, **options))

    def execute(self, statement: Statement, cancel: Cancel | None = None) -> Result:
        """Run a statement value; a query's result streams."""
        if isinstance(statement, ViewStatement):
            return self._views.run(statement)
        if isinstance(statement, StreamStatement):
            return self.streams.run(statement)
        if isinstance(statement, SnapshotStatement):
            return self._snapshots.run(statement)
        if isinstance(statement, CareStatement):
            return self._care.run(statement)
        if isinstance(statement, ParquetStatement):
            return self._parquet.run(statement)
        if isinstance(statement, RowStatement):
            return self._change_rows(statement)
        match statement:
            case Query() | Explain():
                return self._query(statement, cancel)
            case CreateTopic(definition, if_not_exists):
                made = self._json(
                    "POST", "/topics", params={"if_not_exists": if_not_exists}, json=definition_to_dict(definition)
                )
                return Result.done(made["status"], made["notices"])
            case DropTopic(name, if_exists):
                return Result.done(self._json("DELETE", _topic(name), params={"if_exists": if_exists})["status"])
            case ShowTopics():
                return listed(self.topics_summary())
            case DescribeTopic(name):
                return described(self.describe(name))
            case AlterTopic(name, changes, dry_run):
                body = {"changes": [str(change) for change in changes], "dry_run": dry_run}
                return altered(self._json("PATCH", _topic(name), slow=True, json=body))
            case ShowSchemas(name):
                return schemas(self._json("GET", f"{_topic(name)}/schemas")["schemas"])
            case FlushTopic(name):
                return flushed(self.flush(name))
            case _:
                assert_never(statement)

    def _change_rows(self, statement: RowStatement) -> Result:
        verb, body = "delete", {"where": statement.condition or "TRUE"}  # type: tuple[str, dict[str, Any]]
        if isinstance(statement, UpdateRows):
            verb, body["set"] = "update", dict(statement.assignments)
        return changed_rows(self._json("POST", f"{_topic(statement.topic)}/{verb}", slow=True, json=body))

    def topics_summary(self) -> list[dict[str, Any]]:
        """One line about every topic, as plain data."""
        topics: list[dict[str, Any]] = self._json("GET", "/topics")["topics"]
        return topics

    def describe(self, name: str) -> dict[str, Any]:
        """Everything about a topic, as plain data."""
        return self._json("GET", _topic(name))

    def alter_topic(self, name: str, *changes: str, dry_run: bool = False) -> Result:
        """Make changes such as "ADD COLUMN discount DOUBLE", all of them or none: what ALTER TOPIC takes."""
        return self.execute(alter_of(name, changes, dry_run=dry_run))

    def version(self) -> str:
        """The service's version; also the quickest way to see that it answers."""
        return str(self._json("GET", "/version")["version"])

    def flush(self, name: str | None = None, progress: Callable[[Ingested], None] = lambda _: None) -> list[Ingested]:
        """Commit what waits in the log now; `progress` hears of each commit as soon as it is done."""
        path = "/flush" if name is None else f"{_topic(name)}/flush"
        committed: list[Ingested] = []
        for commit in self._lines("POST", path):
            committed.append(ingested(commit))
            progress(committed[-1])
        return committed

    def topic(self, name: str) -> TopicHandle:
        """The topic `name`, which must exist."""
        from headwater.engine.handle import TopicHandle

        return TopicHandle(self, str(self.describe(name)["topic"]))

    def create_topic(self, definition: TopicDefinition, *, if_not_exists: bool = False) -> TopicHandle:
        """Create a topic from a definition value."""
        self.execute(CreateTopic(definition, if_not_exists))
        return self.topic(definition.name)

    # -- views --------------------------------------------------------------------------------------------------

    def view(self, name: str) -> ViewHandle:
        """The materialized view `name`, which must exist."""
        from headwater.engine.view_handle import ViewHandle

        return ViewHandle(self, str(self.execute(DescribeView(name)).info["view"]))

    def create_view(
        self, name: str, query: str, *, or_replace: bool = False, if_not_exists: bool = False, **options: object
    ) -> ViewHandle:
        """Create a materialized view and compute it; `options` are those that WITH takes."""
        self.execute(CreateView(checked_view(name, query, options), or_replace, if_not_exists))
        return self.view(name)

    def refresh_view(
        self, statement: RefreshView, progress: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Result:
        """Refresh a view, and those below it; `progress` hears of each plan when it begins."""
        return self._views.refresh(statement, progress)

    # -- care ---------------------------------------------------------------------------------------------------

    def maintain(
        self, name: str | None = None, *, only: Sequence[MaintenanceStep] = (), dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Take care of a topic or a view, or of all tables; each step, with its outcome and what it did."""
        return list(self.execute(Maintain(name, checked_steps(only), dry_run)).info["steps"])

    def take_care(
        self,
        statement: Maintain | Optimize,
        progress: Callable[[dict[str, Any]], None] = lambda _: None,
        cancel: Cancel | None = None,
    ) -> Result:
        """Run the statement; `progress` hears of each step. The work goes on when this process ends."""
        return self._care.take_care(statement, progress)

    # -- records ------------------------------------------------------------------------------------------------

    def append(self, name: str, blocks: Iterable[Any], format: Format, source: Source) -> Ack:
        """Store one request; waits and tries again when the service is busy, and, if a producer is named, also when the
        connection breaks, because then the service can tell a repeated request."""
        body = body_of(blocks, format)
        headers = body.headers | (
            {"Headwater-Producer": source.producer, "Headwater-Sequence": str(source.sequence)}
            if source.producer is not None
            else {}
        )
        deadline, attempt = time.monotonic() + self._retry_seconds, 0
        while True:
            try:
                return ack(self._json("POST", f"{_topic(name)}/records", content=body.chunks(), headers=headers))
            except (Backpressure, SchemaChanged, Unavailable) as failed:
                pause = self._pause(failed, source, attempt)
                if pause is None or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            attempt += 1

    def _pause(self, failed: Backpressure | SchemaChanged | Unavailable, source: Source, attempt: int) -> float | None:
        """Seconds after which a request may be sent again; None if it must not be."""
        backoff = min(MAX_PAUSE, 0.1 * 2.0**attempt) * random.uniform(0.5, 1.0)
        if isinstance(failed, Backpressure):
            return max(float(failed.retry_after), backoff)
        if isinstance(failed, SchemaChanged):  # nothing was stored: the records are to be read in the new columns
            return backoff
        return backoff if source.producer is not None and self._reached else None

    def tail(
        self,
        name: str,
        start: str | int | datetime = "latest",
        *,
        after: str | None = None,
        where: str | None = None,
        columns: Sequence[str] = (),
        follow: bool = True,
        limit: int | None = None,
    ) -> RemoteTail:
        """The rows of a topic, or the changes of a view, as they come; see `Lake.tail`."""
        asked = tail_request(name, start, after=after, where=where, columns=columns)
        params = tail_params(asked, start, follow, limit)
        return RemoteTail(self._client, self.url, asked.name, params, after, self._named, self._retry_seconds)

    # -- queries ------------------------------------------------------------------------------------------------

    def _query(self, statement: Query | Explain, cancel: Cancel | None) -> Result:
        query = statement.query if isinstance(statement, Explain) else statement
        run = RemoteRun(self.url, self._client, query_body(statement), self._patience(None))
        if cancel is not None:
            cancel.check()
            cancel.attach(run)
        try:
            with self._named():
                run.start()
        except HeadwaterError:
            if cancel is not None:
                cancel.check()
            raise
        about = run.about
        return Result(
            run.schema,
            run.batches(),
            max_rows=query.max_rows or MAX_ROWS,
            info=about.get("info", {}),
            notices=about.get("notices", ()),
            close=run.close,
        )

    # -- HTTP ---------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, *, slow: bool = False, **request: Any) -> dict[str, Any]:
        if slow:
            request["timeout"] = self._patience(None)
        with self._named():
            response = self._client.request(method, path, **request)
            if response.is_success:
                answer: dict[str, Any] = response.json()
                return answer
        raise error_of(response, self.url)

    def _lines(self, method: str, path: str, **request: Any) -> Iterator[dict[str, Any]]:
        """The answers of work that takes long, each as soon as it is there; raises the problem that ends them."""
        headers, patience = {"Accept": NDJSON}, self._patience(None)
        with self._named(), self._client.stream(method, path, headers=headers, timeout=patience, **request) as response:
            if not response.is_success:
                response.read()
                raise error_of(response, self.url)
            for line in response.iter_lines():
                answer: dict[str, Any] = json.loads(line)
                if "problem" in answer:
                    raise problem_error(answer["problem"], answer["problem"]["status"])
                yield answer

    def _named(self) -> _Named:
        return _Named(self)


class _Named:
    """Turns httpx's failures into Headwater's, and remembers that the service has answered once."""

    def __init__(self, lake: RemoteLake) -> None:
        self._lake = lake

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failed: BaseException | None, at: object) -> None:
        url = self._lake.url
        if failed is None or isinstance(failed, HeadwaterError):
            self._lake._reached = True
        elif isinstance(failed, httpx.ConnectError | httpx.ConnectTimeout):
            raise ServiceUnreachable(
                f'no service answers at "{url}"',
                detail=f"{str(failed).rstrip('.')}.",
                hint="Start it with `headwater serve`, or name another with --url.",
            ) from None
        elif isinstance(failed, httpx.TimeoutException):
            raise ServiceUnreachable(f'service at "{url}" did not answer in time', hint="Try again.") from None
        elif isinstance(failed, httpx.HTTPError | ValueError):
            raise Unavailable(f'connection to "{url}" broke', detail=f"{str(failed).rstrip('.')}.") from None


def _topic(name: str) -> str:
    return f"/topics/{quote(name, safe='')}"
