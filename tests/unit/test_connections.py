"""Connections: what the operator may configure, what a statement may say, and what nobody gets to see."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import load_settings
from headwater.connections import RESERVED, TUNING, KafkaConnection, find_connection, kafka_client, refused_client
from headwater.engine import Lake
from headwater.errors import HeadwaterError, InvalidOption, InvalidSetting
from headwater.sql.kafka_texts import upgrade_kafka_options
from headwater.sql.stream_options import parse_stream_options

LOCAL = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}
SECRET = "hunter2-is-not-shown"

LIBRDKAFKA = """
builtin.features metadata.broker.list bootstrap.servers message.copy.max.bytes receive.message.max.bytes
max.in.flight debug socket.send.buffer.bytes broker.address.family enable.sparse.connections log_level
log.queue log_cb open_cb default_topic_conf broker.version.fallback security.protocol ssl.cipher.suites
ssl.curves.list ssl.sigalgs.list ssl.key.location ssl.key.password ssl.key.pem ssl.certificate.location
ssl.certificate.pem ssl.ca.location ssl.ca.pem ssl.ca.certificate.stores ssl.crl.location https.ca.location
https.ca.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.engine.location ssl.engine.id
enable.ssl.certificate.verification ssl.endpoint.identification.algorithm sasl.mechanisms sasl.mechanism
sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.kinit.cmd sasl.kerberos.keytab sasl.username
sasl.password sasl.oauthbearer.config enable.sasl.oauthbearer.unsecure.jwt sasl.oauthbearer.method
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions
sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.grant.type sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.metadata.authentication.type plugin.library.paths interceptors group.instance.id
enable.auto.commit enable.auto.offset.store enable.partition.eof offset.store.path offset.store.method
queued.max.messages.kbytes transactional.id client.dns.lookup enable.metrics.push
consume.callback.max.messages
"""
"""Settings of librdkafka that no statement may make, as its documentation lists them."""


@pytest.mark.parametrize("name", LIBRDKAFKA.split())
def test_a_statement_cannot_name_brokers_files_code_or_credentials(name: str) -> None:
    options = {"connector": "kafka", "connection": "local", "kafka_topic": "t", "kafka_options": {name: "x"}}
    with pytest.raises(InvalidOption, match='option "kafka_options" does not take') as refused:
        parse_stream_options(options)
    assert "is not a setting that statements may make" in str(refused.value.detail)
    with pytest.raises(InvalidOption, match=f'stream "s" cannot set "{name}"'):
        kafka_client({"local": KafkaConnection(**LOCAL)}, "local", [(name, "x")], 'stream "s"')


@given(st.text("abcdefghijklmnopqrstuvwxyz._", min_size=1, max_size=40))
def test_what_is_not_known_is_refused(name: str) -> None:
    connections = {"local": KafkaConnection(**LOCAL)}
    if name not in TUNING:
        with pytest.raises(InvalidOption):
            kafka_client(connections, "local", [(name, "1")], "x")


def test_every_setting_that_statements_may_make_is_one_of_librdkafkas() -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    for name in sorted(TUNING):
        try:
            Consumer({"group.id": "x", "log_level": 0, name: "no such value"}).close()
        except KafkaException as refused:
            assert refused.args[0].code() == KafkaError._INVALID_ARG
            assert "No such configuration property" not in refused.args[0].str(), name


def configured(**table: Any) -> dict[str, Any]:
    return {"connections": {"orders": {**LOCAL, **table}}}


@pytest.mark.parametrize(
    "table",
    [
        {"options": {"sasl.password": SECRET}},
        {"options": {"ssl.key.pem": SECRET}},
        {"options": {"sasl.oauthbearer.client.secret": SECRET}},
        {"options": {"sasl.password": f"env:{SECRET}"}},  # no name of a variable
        {"options": {"sasl.password": "file:relative"}},
        {"options": {"client.id": "file:"}},
        {"options": {"bootstrap.servers": "b:1"}},
        {"options": {"enable.auto.commit": "true"}},
        {"options": {"Not A Setting": "x"}},
        {"options": {"sasl.password": 5}},
        {"bootstrap_servers": "no port"},
        {"bootstrap_servers": ""},
        {"type": "paper"},
        {"password": SECRET},
    ],
)
def test_tables_that_are_refused_without_their_values(table: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=r'setting "connections\.orders') as refused:
        load_settings(**configured(**table))
    assert SECRET not in f"{refused.value} {refused.value.detail} {refused.value.hint}"


@pytest.mark.parametrize("name", ["", "1a", "a.b", "a:1", "a b", "x" * 64])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidSetting):
        load_settings(connections={name: LOCAL})


def test_settings_that_connections_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load_settings(kafka_bootstrap_servers="a:1")
    assert "[connections.NAME]" in str(refused.value.hint)
    monkeypatch.setenv("HEADWATER_KAFKA_OPTIONS", "{}")
    with pytest.raises(InvalidSetting, match='setting "kafka_options" is not valid'):
        load_settings()


def test_secrets_come_from_the_environment_or_a_file_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    toml = tmp_path / "headwater.toml"
    toml.write_text(
        '[connections.orders]\ntype = "kafka"\nbootstrap_servers = "a:1, b:2"\n'
        f'[connections.orders.options]\n"sasl.username" = "env:USER_OF_KAFKA"\n"sasl.password" = "file:{file}"\n'
    )
    connections = load_settings(toml).connections
    for _ in ("no variable", "no file"):
        with pytest.raises(InvalidSetting, match='connection "orders" cannot be used') as refused:
            kafka_client(connections, "orders")
        assert refused.value.detail == "A secret that its options refer to cannot be read."
        monkeypatch.setenv("USER_OF_KAFKA", "lake")
    file.write_text(f"{SECRET}\n")
    client = kafka_client(connections, "orders", [("fetch.min.bytes", "10")], "x")
    assert client == {
        "bootstrap.servers": "a:1, b:2",
        "sasl.username": "lake",
        "sasl.password": SECRET,
        "fetch.min.bytes": "10",
    }
    assert "sasl.password" not in repr(connections)


def test_variables_configure_connections_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CONNECTIONS", json.dumps({"local": LOCAL}))
    assert load_settings().connections == {"local": KafkaConnection(**LOCAL)}


def test_brokers_of_an_earlier_definition_stand_for_their_connection() -> None:
    two = KafkaConnection(type="kafka", bootstrap_servers="a:1, b:2")
    assert find_connection({"two": two}, "b:2,a:1") == ("two", two)
    for connections in ({}, {"one": KafkaConnection(**LOCAL)}, {"two": two, "same": two}):
        with pytest.raises(InvalidOption, match='connection "b:2,a:1" is not configured') as refused:
            find_connection(connections, "b:2,a:1")
        assert "[connections.NAME]" in str(refused.value.hint)
    upgraded = upgrade_kafka_options(
        {"bootstrap_servers": "a:1", "kafka_options": "sasl.password=env:KAFKA_P, auto.offset.reset=earliest, x=y"}
    )
    assert upgraded == {"connection": "a:1", "kafka_options": "auto.offset.reset=earliest"}
    assert upgrade_kafka_options({"kafka_options": "ssl.key.location=/etc/passwd"}) == {"kafka_options": ""}


def test_what_librdkafka_says_of_files_goes_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        refused = refused_client(
            "orders", "ssl.ca.location failed: No such file: /etc/secret, hunter2", {"sasl.password": "hunter2"}
        )
    assert "/etc/secret" not in f"{refused} {refused.detail} {refused.hint}"
    assert caplog.records[0].__dict__["error"].endswith("/etc/secret, ***")


def test_settings_that_a_transactional_producer_refuses_are_the_statements() -> None:
    """A consumer ignores them, so that the view was created, and its operator was asked to correct the connection."""
    longer = [("message.timeout.ms", "900000")]
    connection = {"type": "kafka", "bootstrap_servers": "localhost:1"}
    plain = {"c": KafkaConnection.model_validate(connection)}
    kafka_client(plain, "c", longer, "v")
    with pytest.raises(InvalidOption, match="kafka_options that cannot be used") as refused:
        kafka_client(plain, "c", longer, "v", transactional=True)
    assert "transaction.timeout.ms" in str(refused.value.detail)
    both = {"c": KafkaConnection.model_validate({**connection, "options": {"transaction.timeout.ms": "900000"}})}
    assert kafka_client(both, "c", longer, "v", transactional=True)["message.timeout.ms"] == "900000"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE STREAM s (n BIGINT) WITH (connector = 'kafka', connection = 'evil.example:9092', kafka_topic = 't')",
        "CREATE STREAM s (n BIGINT) WITH (connector = 'kafka', connection = 'other', kafka_topic = 't')",
        "CREATE STREAM s (n BIGINT) WITH (connector = 'kafka', bootstrap_servers = 'evil:1', kafka_topic = 't')",
        "CREATE STREAM s (n BIGINT) WITH (connector = 'kafka', connection = 'orders', kafka_topic = 't', "
        "kafka_options = 'sasl.oauthbearer.token.endpoint.url=http://evil.example/')",
    ],
)
def test_a_statement_reaches_no_other_brokers(tmp_path: Path, statement: str) -> None:
    with Lake.init(tmp_path, **configured()) as lake:
        with pytest.raises(HeadwaterError):
            lake.sql(statement)
        assert lake.sql("SHOW STREAMS").rows() == []
        assert "kafka_options" in statement or lake.topics.names() == []


def test_nothing_of_a_connection_but_its_name_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", SECRET)
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "env:ORDERS_PASSWORD"}
    options["sasl.password"] = "env:ORDERS_PASSWORD"
    with Lake.init(tmp_path, **configured(options=options)) as lake:
        lake.sql("CREATE STREAM s (n BIGINT) WITH (connector = 'kafka', connection = 'orders', kafka_topic = 't')")
        shown = json.dumps([(each := lake.sql("DESCRIBE STREAM s")).rows(), each.info], default=str)
        assert "orders" in shown
        assert "127.0.0.1:1" not in shown and SECRET not in shown and "ORDERS_PASSWORD" not in shown
        stored = json.dumps(dict(lake.topics.load("s").table.metadata.properties))
        assert "127.0.0.1:1" not in stored and SECRET not in stored
    assert os.environ["ORDERS_PASSWORD"] == SECRET


def test_what_headwater_sets_itself_is_refused_in_both_places() -> None:
    assert {"auto.offset.reset"} == RESERVED & TUNING  # of statements, it is Headwater's own policy of that name
