"""Connections: other systems that only the operator names, with their addresses, files and credentials.

They are tables of the configuration (`[connections.NAME]`). A statement refers to one by its name, so a person who may
create a stream can neither choose where the service connects to nor read what it knows. Each type is a model of its own
that validates its table; `Connection` is their union.

Secrets are references, `env:NAME` or `file:PATH`. They are resolved when a client is opened and appear in no message.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from headwater.errors import InvalidOption, InvalidSetting

log = logging.getLogger(__name__)

BROKER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
BROKERS = rf"{BROKER}(?:\s*,\s*{BROKER})*"
RESERVED = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "enable.partition.eof"),
        *("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "transactional.id"),
    )
)
"""Settings of the Kafka client that Headwater's correctness depends on."""

TUNING = frozenset(
    (
        *("auto.offset.reset", "isolation.level", "check.crcs", "client.id", "client.rack", "group.id"),
        *("fetch.min.bytes", "fetch.max.bytes", "fetch.wait.max.ms", "fetch.message.max.bytes"),
        *("max.partition.fetch.bytes", "fetch.error.backoff.ms", "queued.min.messages", "session.timeout.ms"),
        *("linger.ms", "queue.buffering.max.ms", "batch.size", "batch.num.messages", "message.max.bytes"),
        *("compression.type", "compression.codec", "compression.level", "request.timeout.ms", "message.timeout.ms"),
        *("delivery.timeout.ms", "transaction.timeout.ms", "partitioner", "sticky.partitioning.linger.ms"),
        *("retries", "message.send.max.retries", "retry.backoff.ms", "retry.backoff.max.ms"),
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "connections.max.idle.ms", "metadata.max.age.ms"),
        *("topic.metadata.refresh.interval.ms", "socket.timeout.ms", "socket.keepalive.enable", "socket.nagle.disable"),
    )
)
"""The settings of the Kafka client that a statement may make: none names a file, an address, code or a credential."""

_SETTING = re.compile(r"[a-z][a-z0-9._]{0,127}")
_SECRET = re.compile(r"password|secret|\.pem$|\.jaas|sasl\.oauthbearer\.config")
REFERENCE = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)?$"
_REFERENCE = re.compile(REFERENCE)


def _check_client_options(options: dict[str, str]) -> dict[str, str]:
    """The options. Messages never show a value: it may be a secret in the wrong place."""
    for name, value in options.items():
        if not _SETTING.fullmatch(name):
            raise ValueError(f'"{name[:64]}" is not a setting of the Kafka client')
        if name in RESERVED:
            raise ValueError(f'Headwater itself sets "{name}"')
        if value.startswith(("env:", "file:")) and not (value and _REFERENCE.fullmatch(value)):
            raise ValueError(f'the reference of "{name}" is neither env:NAME nor file:/absolute/path')
        if _SECRET.search(name) and not (value and _REFERENCE.fullmatch(value)):
            raise ValueError(f'"{name}" is a secret: refer to it with env:NAME or file:/absolute/path')
    return options


class KafkaConnection(BaseModel):
    """Brokers, and the settings of librdkafka with which they are reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Literal["kafka"]
    bootstrap_servers: Annotated[str, StringConstraints(pattern=rf"^{BROKERS}$")]
    options: Annotated[dict[str, str], AfterValidator(_check_client_options)] = Field(default_factory=dict, repr=False)


Connection = KafkaConnection
Connections = Mapping[str, Connection]


def find_connection(connections: Connections, name: str) -> tuple[str, Connection]:
    """The connection `name` with its name; InvalidOption if the operator has not configured it.

    Definitions from before connections name brokers instead: they use the one connection that has exactly these.
    """
    if name in connections:
        return name, connections[name]
    brokers = _broker_set(name)
    same = [(each, found) for each, found in connections.items() if _broker_set(found.bootstrap_servers) == brokers]
    if len(same) == 1:
        return same[0]
    configured = f"Configured are: {', '.join(sorted(connections))}." if connections else "None is configured."
    if re.fullmatch(BROKERS, name):
        detail = f"Brokers are named in the configuration, not in statements. {configured}"
        hint = f'Add a table [connections.NAME] with type = "kafka" and bootstrap_servers = "{name}" to headwater.toml.'
    else:
        detail, hint = configured, f"Add a table [connections.{name}] to headwater.toml, and restart the service."
    raise InvalidOption(f'connection "{name}" is not configured', detail=detail, hint=hint, option="connection")


def kafka_client(
    connections: Connections,
    name: str,
    tuning: Iterable[tuple[str, str]] = (),
    owner: str = "",
    *,
    transactional: bool = False,
) -> dict[str, object]:
    """The settings with which librdkafka reaches the brokers of the connection `name`, secrets included.

    `tuning` are the settings that the statement of `owner` makes; InvalidOption if a consumer, or with `transactional`
    a transactional producer, cannot use them.
    """
    found_name, connection = find_connection(connections, name)
    own = dict(tuning)
    _check_tuning(own, owner)
    if own and transactional:
        # What librdkafka allows depends on pairs of settings, of which the operator may have made one.
        shared = {option: value for option, value in connection.options.items() if option in TUNING}
        known = {option: value for option, value in shared.items() if not value.startswith(("env:", "file:"))}
        _check_producer({**known, **own}, owner)
    try:
        resolved = {option: resolve_reference(value) for option, value in connection.options.items()}
    except LookupError:
        raise InvalidSetting(
            f'connection "{found_name}" cannot be used',
            detail="A secret that its options refer to cannot be read.",
            hint=f"Check the references in [connections.{found_name}] of headwater.toml, and that the service can read "
            "the variables and files that they name.",
        ) from None
    return {**resolved, **own, "bootstrap.servers": connection.bootstrap_servers}


def refused_client(name: str, error: object, settings: Mapping[str, object]) -> InvalidSetting:
    """The error for a connection whose settings librdkafka refuses.

    What librdkafka says may quote files and values, so it goes to the operator's log, with the secrets of `settings`
    masked, and not to the person who asked.
    """
    text = str(error)
    for option, value in settings.items():
        if _SECRET.search(option) and value:
            text = text.replace(str(value), "***")
    log.error("kafka client refuses its settings", extra={"connection": name, "error": text})
    return InvalidSetting(
        f'connection "{name}" cannot be used',
        detail="The Kafka client refuses its settings; the log of the service says which.",
        hint="Correct the connection in headwater.toml.",
    )


def _check_tuning(tuning: Mapping[str, str], owner: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    if refused := next((name for name in tuning if name not in TUNING), None):
        raise InvalidOption(
            f'{owner} cannot set "{refused}" in kafka_options',
            detail="Statements tune the Kafka client. Brokers, files and credentials are those of its connection.",
            option="kafka_options",
        )
    if not tuning:
        return
    try:  # apart from the connection's settings, so that what librdkafka says is about these alone
        Consumer({"group.id": "headwater", **tuning, "auto.offset.reset": "error", "log_level": 0}).close()
    except (KafkaException, TypeError, ValueError) as error:
        raise _refused_tuning(owner, error) from None


def _check_producer(tuning: Mapping[str, str], owner: str) -> None:
    """The same for a transactional producer, which refuses what a consumer ignores; no broker is asked."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**tuning, "transactional.id": "headwater", "log_level": 0})
    except (KafkaException, TypeError, ValueError) as error:
        raise _refused_tuning(owner, error) from None


def _refused_tuning(owner: str, error: Exception) -> InvalidOption:
    first = error.args[0] if error.args else error
    said = first.str() if hasattr(first, "str") else str(first)
    return InvalidOption(
        f"{owner} has kafka_options that cannot be used",
        detail=f"{said}.",
        hint="The settings are those of librdkafka, as 'name=value, name=value'.",
        option="kafka_options",
    )


def resolve_reference(value: str) -> str:
    """The value, or what it refers to as env:NAME or file:PATH; LookupError if that cannot be read."""
    scheme, _, place = value.partition(":")
    try:
        if scheme == "env":
            return os.environ[place]
        if scheme == "file":
            return Path(place).read_text(encoding="utf-8").removesuffix("\n")
    except (KeyError, OSError, UnicodeDecodeError):
        raise LookupError from None
    return value


def _broker_set(text: str) -> frozenset[str]:
    return frozenset(broker.strip() for broker in text.split(","))
