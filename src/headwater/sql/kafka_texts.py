"""How Kafka is spoken of in options: brokers, topics, and the settings of the client that a user may make.

Settings are kept with the definition in the lake, where every reader sees them: secrets are named, never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headwater.errors import InvalidInput
from headwater.sql.option_pairs import PairValues

_BROKER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
SERVERS = rf"{_BROKER}(?:\s*,\s*{_BROKER})*"
TOPIC = r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}"
TARGET = rf"{SERVERS}/{TOPIC}"
"""Where a view sends its rows: 'host:port,host:port/topic'."""

_NAME = re.compile(r"[a-z][a-z0-9._]{0,127}")
_ENVIRONMENT = "env:"
_VARIABLE = re.compile(r"env:KAFKA_[A-Za-z0-9_]{1,122}")
"""Only such: other variables of the service are not for whoever may create a stream to send to a broker."""
_SECRET = re.compile(r"password|secret|\.pem\b")
_OURS = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "enable.partition.eof"),
        *("enable.auto.commit", "enable.auto.offset.store"),
    )
)
CODE = frozenset(
    (
        *("plugin.library.paths", "sasl.kerberos.kinit.cmd", "ssl.engine.location", "ssl.providers"),
        *("sasl.oauthbearer.assertion.jwt.template.file",),
    )
)
"""Settings by which the client would run or load what they name."""


def split_target(target: str) -> tuple[str, str]:
    """The brokers and the topic of a target."""
    servers, _, topic = target.rpartition("/")
    return servers, topic


def resolved(value: str, environment: Mapping[str, str]) -> str | None:
    """The value of a setting, or of the variable that it names; None if that is not set."""
    return environment.get(value.removeprefix(_ENVIRONMENT)) if value.startswith(_ENVIRONMENT) else value


def _setting(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput("", detail=f'"{name[:64]}" is no setting of the Kafka client.')
    if name in _OURS:
        raise InvalidInput("", detail=f'"{name}" is set by Headwater itself.')
    if name in CODE:
        raise InvalidInput("", detail=f'"{name}" would run code, which options cannot.')
    return name


def _value(value: str) -> str:
    if not value or "," in value or not value.isprintable() or len(value) > 1024:
        raise InvalidInput("", detail="Values are printable texts without commas.")
    if value.startswith(_ENVIRONMENT) and not _VARIABLE.fullmatch(value):
        raise InvalidInput("", detail=f'"{value[:64]}" does not name a variable of the environment, env:KAFKA_...')
    return value


class ClientSettings(PairValues):
    """Settings of the client; those that are secrets name a variable of the environment."""

    __slots__ = ()

    def read(self, given: object) -> tuple[tuple[str, str], ...]:
        pairs = PairValues.read(self, given)
        for name, value in pairs:
            if _SECRET.search(name) and not value.startswith(_ENVIRONMENT):
                raise InvalidInput(
                    "",
                    detail=f'"{name}" is a secret, and options are stored where every reader of the lake sees them.',
                    hint=f"Put it into a variable of the environment, and write '{name}=env:KAFKA_NAME'.",
                )
        return pairs


CLIENT_SETTINGS = ClientSettings(
    _value,
    "It takes settings of the Kafka client by name: 'security.protocol=SASL_SSL, sasl.password=env:KAFKA_PASSWORD'.",
    name=_setting,
)
