"""The doctor's view of the log: whether state.db is the lake's, and every stored row as it was acknowledged."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headwater.catalog.definitions import P_ACKNOWLEDGED, P_KIND, P_OFFSET, P_OPTION
from headwater.catalog.iceberg import Tables
from headwater.catalog.identity import P_STATE, load_properties, record_state
from headwater.catalog.streams import streams_of
from headwater.catalog.topics import Topics
from headwater.cli.checks import Check, Repair, failed
from headwater.cli.screen import counted, sized
from headwater.config import LakePaths, Settings
from headwater.errors import Conflict, HeadwaterError
from headwater.observability.failpoints import failpoint
from headwater.state.sqlite import connect, is_open, transaction
from headwater.topics.log import LogTopic
from headwater.topics.log_entries import entry_checksum
from headwater.topics.log_integrity import check_log, check_not_stale, check_tables, create_log, read_state
from headwater.topics.log_tables import CHANGES, find_topic
from headwater.types import TOPICS, StreamDefinition, TableName

ENTRIES = (
    "SELECT id, topic, first_offset, rows, appended_at, schema, bytes, checksum, payload FROM log_entries ORDER BY id"
)
_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class TopicInLog:
    """A topic with its log in SQLite, and the streams that Kafka connectors read into it."""

    topic: LogTopic
    kafka_streams: tuple[StreamDefinition, ...] = ()


def check_stored(paths: LakePaths, settings: Settings) -> Iterator[Check]:
    """Whether the log is the one that the catalog knows, and nothing of it has changed."""
    try:
        expected = load_properties(paths.catalog, settings.busy_timeout).get(P_STATE)
        check_log(paths.state, expected, settings.busy_timeout)
        rows = _check_rows(paths, settings)
        yield rows
        if rows.status == "fail":  # it offers the repair already
            return
        for each in topics_in_log(paths, settings):
            _check_end(each.topic, paths, settings)
    except HeadwaterError as error:
        yield lost_log(failed("log entries", error), paths, settings)


def _check_rows(paths: LakePaths, settings: Settings) -> Check:
    name = "log entries"
    damaged: list[int] = []
    count = size = 0
    with closing(connect(paths.state, settings.busy_timeout, read_only=True)) as db:
        db.execute("BEGIN")
        try:
            is_old = read_state(db, paths.state) is None
            if not is_old:
                check_tables(db)
            for entry, *header, checksum, payload in db.execute(ENTRIES):
                count, size = count + 1, size + len(payload)
                crc = zlib.crc32(payload)
                if checksum != (crc if is_old else entry_checksum(header, crc)):
                    damaged.append(entry)
        except sqlite3.Error as error:
            return lost_log(Check(name, "fail", f"entries cannot be read: {error}"), paths, settings)
    if damaged:
        listed = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        message = f"{len(damaged)} of {count} entries do not match their checksum: {listed}"
        return lost_log(Check(name, "fail", message), paths, settings)
    return Check(name, "ok", f"waiting entries match their checksums: {count}, {sized(size)}")


def _check_end(topic: LogTopic, paths: LakePaths, settings: Settings) -> None:
    with closing(connect(paths.state, settings.busy_timeout, read_only=True)) as db:
        row = find_topic(db, topic)
    check_not_stale(topic, None if row is None else row[1])


def lost_log(check: Check, paths: LakePaths, settings: Settings) -> Check:
    """The check of a log that cannot be used, with what is lost without it and the repair that goes on without it."""
    lost = losses(paths, settings)
    repair = Repair(
        f"set {paths.state.name} aside and start a new log. {lost}",
        lambda: start_new_log(paths, settings),
        "--start-new-log",
    )
    action = (
        f"Put {paths.state.name} back or restore the lake from a backup. To go on without it, stop the service and run "
        f"`headwater doctor --repair --start-new-log`. {lost}"
    )
    return Check(check.name, "fail", check.message, action, repair)


def losses(paths: LakePaths, settings: Settings) -> str:
    """What is lost with the log, as far as the tables can tell."""
    records, messages = [], []
    for each in topics_in_log(paths, settings):
        topic = each.topic
        lost = f'records of topic "{topic.name}" from offset {topic.committed} on'
        if topic.acknowledged > topic.committed:
            lost += f" (at least {counted(topic.acknowledged - topic.committed, 'record')})"
        records.append(lost)
        messages += [_kafka_losses(stream) for stream in each.kafka_streams]
    parts = [
        "Offsets after the committed ones are assigned again, retries of producers are not recognised, and stopped "
        "streams start again.",
        *messages,
    ]
    if records:
        parts.append(f"What is lost: {'; '.join(records)}, unless everything had been committed.")
    return " ".join(parts)


def _kafka_losses(stream: StreamDefinition) -> str:
    source = f'Stream "{stream.name}" forgets how far it has read Kafka topic "{stream.options.kafka_topic}"'
    if stream.options.kafka_start == "latest":
        return f"{source}: it skips what Kafka receives before the stream starts again."
    return f"{source}: it stores every message that Kafka still has once more."


def topics_in_log(paths: LakePaths, settings: Settings) -> list[TopicInLog]:
    """The topics with their log in SQLite, as far as they can be read."""
    found = []
    with closing(Tables(paths.catalog, paths.warehouse, settings.busy_timeout)) as tables:
        for name in tables.names(TOPICS):
            try:
                metadata = tables.load(TableName.topic(name)).metadata
                properties = metadata.properties
                if properties.get(P_KIND) == "topic" and properties.get(P_OPTION + "log", "sqlite") == "sqlite":
                    committed, acknowledged = int(properties[P_OFFSET]), int(properties.get(P_ACKNOWLEDGED, "0"))
                    topic = LogTopic(str(metadata.table_uuid), name, committed, acknowledged=acknowledged)
                    found.append(TopicInLog(topic, _kafka_streams(tables, name)))
            except (HeadwaterError, ValueError, KeyError):  # the checks of tables report it
                continue
    return found


def _kafka_streams(tables: Tables, topic: str) -> tuple[StreamDefinition, ...]:
    try:
        streams = [stream.definition for stream in streams_of(Topics(tables).load(topic))]
    except HeadwaterError:  # the checks of streams report it
        return ()
    return tuple(stream for stream in streams if stream.options.connector == "kafka")


def start_new_log(paths: LakePaths, settings: Settings) -> None:
    """Set the log's file aside and make a new one; Conflict while another process uses the lake.

    The old file goes first, and then its id: from there on nothing but the new log is accepted, so that the marks that
    would betray an older one can be lowered. A crash in between leaves no log; the lake is refused, and this is
    repeated.
    """
    timeout = settings.busy_timeout
    _check_unused(paths)
    fresh = paths.state.with_name("state.db.new")
    for suffix in _SUFFIXES:
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    state = create_log(fresh, timeout)
    topics = [each.topic for each in topics_in_log(paths, settings)]
    with closing(connect(fresh, timeout)) as db:
        with transaction(db, write=True):  # a log that lacks the topic of a table with records counts as an older one
            db.executemany(CHANGES["topic"], [(each.id, each.name, each.committed, each.committed) for each in topics])
        db.execute("PRAGMA journal_mode=DELETE")  # one file, which can be renamed
    failpoint("new_log.created")
    _set_aside(paths.state, load_properties(paths.catalog, timeout).get(P_STATE, "unknown"))
    failpoint("new_log.set_aside")
    record_state(paths.catalog, timeout, state.id, replace=True)
    failpoint("new_log.recorded")
    with closing(Tables(paths.catalog, paths.warehouse, timeout)) as tables:
        for topic in topics:
            if topic.acknowledged > topic.committed:  # or the new log would count as one that has lost records
                table = tables.load_for_commit(TableName.topic(topic.name))
                with table.transaction() as changes:
                    changes.set_properties({P_ACKNOWLEDGED: str(topic.committed)})
    failpoint("new_log.lowered")
    fresh.rename(paths.state)
    connect(paths.state, timeout).close()  # puts it back into WAL mode


def _check_unused(paths: LakePaths) -> None:
    """Conflict if anything has the lake open: it would go on to acknowledge records into the file that is set aside.

    The catalog tells, which every open lake holds: the log's own file may be gone, or damaged.
    """
    if is_open(paths.catalog):
        raise Conflict(
            f'lake in "{paths.root}" is in use',
            detail=f"Another program has {paths.catalog.name} open.",
            hint="Stop the service and everything else that uses the lake, and repeat the command.",
        )


def _set_aside(state: Path, id: str) -> None:
    """Rename the log's files after the id that the catalog knows, never onto a file that exists.

    The database goes first: without its WAL it would be an older log that is not noticed. If that is all that happened
    before a crash, the WAL joins it under the same name when this is repeated.
    """
    present = [suffix for suffix in _SUFFIXES if state.with_name(state.name + suffix).exists()]
    name, count = f"{state.name}.lost-{id}", 1
    while any(state.with_name(name + suffix).exists() for suffix in present):
        count += 1
        name = f"{state.name}.lost-{id}-{count}"
    for suffix in present:
        state.with_name(state.name + suffix).rename(state.with_name(name + suffix))
