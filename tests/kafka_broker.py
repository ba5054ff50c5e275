"""A real Kafka broker for tests: one process in KRaft mode, on loopback, from pinned Maven artifacts.

It keeps its port and its data folder over a stop, a kill and a restart, so that clients meet the same broker again.
Only the process that was started here is ever ended. What the broker said is in `said()`, for messages of failures.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headwater.config import default_cache
from headwater.spark.java import find_java
from headwater.spark.packages import ensure_packages

LOCK_FILE = Path(__file__).with_name("kafka_packages.lock")
CLUSTER = "aGVhZHdhdGVyLXRlc3RzIQ"
READY = 180.0
"""Seconds that a start may take: on a busy machine, one JVM after another needs more than a minute."""
ATTEMPTS = 5
STARTED, IN_USE = b"Kafka Server started", "Address already in use"
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")

# Internal topics are small and a dead broker's session is short, so that a start and a restart take seconds.
# Nothing is forgotten by age: messages of tests have dates of their own, and Kafka goes by these.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=8388608
log.retention.ms=-1
"""


class Broker:
    """One broker with its folder and its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._log = folder / "broker.log"
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._known = False
        jars = ensure_packages(default_cache(), print, find_java(), groups=("broker",), lock_file=LOCK_FILE)
        behind = Path(pyspark.__file__).parent / "jars" / "*"
        self._class_path = os.pathsep.join([*map(str, jars), str(behind)])

    # -- the process --------------------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Start it, on the data that it left if there is any, and return when it answers."""
        assert not self.running, "the broker is running"
        if not self._properties.exists():
            self._format()
        for attempt in range(ATTEMPTS):
            try:
                self._run()
                return self
            except AssertionError:
                if attempt == ATTEMPTS - 1 or IN_USE not in self.said(100_000):
                    raise
                self._move()  # somebody took a port since it was chosen
        raise AssertionError

    def _run(self) -> None:
        before = self._log.stat().st_size
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        atexit.register(self.kill)  # whatever ends the tests, it does not outlive them
        try:
            self._wait_until_ready(before)
        except BaseException:
            self.kill()
            raise

    def _move(self) -> None:
        """Take other ports, if no client knows the ones that it has."""
        if self._known:
            time.sleep(1)
            return
        self.port, self._controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        shutil.rmtree(self.folder / "data")
        self._format()

    def stop(self, timeout: float = 60.0) -> None:
        """End it in order; kill it if it takes longer than `timeout`."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again: same data, same port."""
        self.kill() if kill else self.stop()
        self.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self, characters: int = 4000) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-characters:] if self._log.exists() else ""

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = _PROPERTIES.format(port=self.port, controller=self._controller, data=self.folder / "data")
        self._properties.write_text(text)
        command = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties))
        with self._log.open("ab") as output:
            subprocess.run(command, stdout=output, stderr=output, check=True, timeout=READY)

    def _java(self, main: str, *arguments: str) -> list[str]:
        level = "-Dorg.apache.logging.log4j.level=INFO"
        return [str(find_java().executable), *_JVM, level, "-cp", self._class_path, main, *arguments]

    def _wait_until_ready(self, before: int) -> None:
        """Until it says so behind byte `before` of its log: that the port answers could be another's doing."""
        until = time.monotonic() + READY
        while STARTED not in self._log.read_bytes()[before:]:
            assert self.running, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.05)
        with self.admin() as admin:
            while not admin.list_topics(timeout=READY).brokers:
                assert time.monotonic() < until, self.said()
        self._known = True

    # -- its topics ---------------------------------------------------------------------------------------------

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        yield AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic and return its name when every partition can be written to."""
        with self.admin() as admin:
            _done(admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]))
            self._wait_for_partitions(admin, name, partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        with self.admin() as admin:
            _done(admin.create_partitions([NewPartitions(name, total)]))
            self._wait_for_partitions(admin, name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return when the broker does not take messages for it any more."""
        with self.admin() as admin:
            _done(admin.delete_topics([name]))
            until = time.monotonic() + READY
            while admin.list_topics(name, timeout=READY).topics[name].error is None:
                assert time.monotonic() < until, self.said()
                time.sleep(0.02)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """Have Kafka forget a partition's messages before an offset, as retention does."""
        with self.admin() as admin:
            _done(admin.delete_records([TopicPartition(name, partition, before)]))

    def reserve(self, name: str, user: str) -> None:
        """Let nobody but `user` read a topic from now on."""
        allowed = (ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.READ, AclPermissionType.ALLOW)
        with self.admin() as admin:
            _done(admin.create_acls([AclBinding(ResourceType.TOPIC, name, *allowed)]))

    def _wait_for_partitions(self, admin: AdminClient, name: str, partitions: int) -> None:
        until = time.monotonic() + READY
        while time.monotonic() < until:
            found = admin.list_topics(name, timeout=READY).topics[name].partitions.values()
            if len(found) == partitions and all(each.leader >= 0 for each in found):
                return
            time.sleep(0.02)
        raise AssertionError(self.said())


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        try:
            future.result(timeout=READY)
        except KafkaException as error:
            raise AssertionError(str(error)) from error


def free_port() -> int:
    """A port that nobody listens to, below those from which the system takes the ports of outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
