"""How options speak of Kafka: a connection by its name, a topic, and the settings of the client that a user may make.

Options are stored with the definition in the lake, where every reader sees them. So none of them is a secret, and none
names an address or a file: those are the operator's, see `headwater.connections`.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.connections import TUNING
from headwater.errors import InvalidInput
from headwater.sql.cursor import closest
from headwater.sql.option_pairs import PairValues

CONNECTION = r"[A-Za-z0-9_.:\[\]-][A-Za-z0-9_.:,\[\] -]{0,1023}"
"""The name of a connection; or brokers, which definitions from before connections have in its place."""
TOPIC = r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}"
TARGET = rf"{CONNECTION}/{TOPIC}"
"""Where a view sends its rows: 'connection/topic'."""


def split_target(target: str) -> tuple[str, str]:
    """The connection and the topic of a target."""
    connection, _, topic = target.rpartition("/")
    return connection, topic


def upgrade_kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options as the catalog has them, from before connections or not, as statements write them today.

    Brokers stand for the connection that has them. Settings that only a connection may make are left out: nothing is
    opened with less than what they said, because it takes a connection to open anything.
    """
    upgraded = dict(options)
    if brokers := upgraded.pop("bootstrap_servers", ""):
        upgraded.setdefault("connection", brokers)
    if pairs := upgraded.get("kafka_options"):
        allowed = [pair for pair in pairs.split(",") if pair.partition("=")[0].strip() in TUNING]
        upgraded["kafka_options"] = ", ".join(pair.strip() for pair in allowed)
    return upgraded


def _setting(name: str) -> str:
    if name in TUNING:
        return name
    guess = closest(name, tuple(sorted(TUNING)))
    raise InvalidInput(
        "",
        detail=f'"{name[:64]}" is not a setting that statements may make. Brokers, files and credentials are those of '
        "the connection.",
        hint=f"Did you mean '{guess}'?" if guess else None,
    )


def _value(value: str) -> str:
    if not value or "," in value or not value.isprintable() or len(value) > 1024:
        raise InvalidInput("", detail="Values are printable texts without commas.")
    return value


CLIENT_SETTINGS = PairValues(
    _value,
    "It takes settings that tune the Kafka client, by name: 'fetch.min.bytes=1024, compression.type=zstd'.",
    name=_setting,
)
