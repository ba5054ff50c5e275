"""The statements about topics: CREATE, ALTER, DROP, SHOW, DESCRIBE and FLUSH, each answered by a small result."""

from __future__ import annotations

from typing import assert_never

from headwater.catalog.evolve import Evolution
from headwater.catalog.topics import Topic, Topics
from headwater.catalog.views import Views
from headwater.engine.intake import Intake
from headwater.errors import Corrupt, LakeMoved, TopicExists, TopicNotFound, ViewExists, ViewInUse
from headwater.serving.result import Result
from headwater.serving.topic_answers import altered, described, flushed, listed, schemas
from headwater.sql.definition import notices
from headwater.sql.statements import (
    AlterTopic,
    CreateTopic,
    DescribeTopic,
    DropTopic,
    FlushTopic,
    ShowSchemas,
    ShowTopics,
    TopicStatement,
)
from headwater.topics.dead_letters import dead_definition
from headwater.topics.describe import damaged_summary, description, summary
from headwater.topics.evolution import Evolver, told
from headwater.topics.evolution_history import schema_history
from headwater.topics.ingest import log_topic
from headwater.topics.log import Log, LogTopic
from headwater.types import DEAD_SUFFIX, TableName, TopicDefinition


def create_dead(topics: Topics, definition: TopicDefinition) -> None:
    """Make the topic of a topic's dead letters, unless one of the two is there."""
    # Before the topic itself: a topic that promises dead letters always has them.
    name = definition.name
    if not topics.exists(name) and not topics.exists(name + DEAD_SUFFIX):
        topics.create(dead_definition(name, definition.options.log))


def keep_promises(topics: Topics, topic: Topic, planned: Evolution) -> None:
    """See that an altered topic has the dead letters that it is going to promise."""
    if planned.definition.options.on_invalid == "dead_letter" and not topics.exists(topic.name + DEAD_SUFFIX):
        topics.create(dead_definition(topic.name, topic.definition.options.log))


class TopicStatements:
    """Answers statements about the topics of one lake."""

    def __init__(self, topics: Topics, views: Views, log: Log, intake: Intake, evolver: Evolver) -> None:
        self._topics = topics
        self._views = views
        self._log = log
        self._intake = intake
        self._evolver = evolver

    def run(self, statement: TopicStatement) -> Result:
        match statement:
            case CreateTopic(definition, if_not_exists):
                return self._create(definition, if_not_exists)
            case DropTopic(name, if_exists):
                return self._drop(name, if_exists)
            case ShowTopics():
                return self._list()
            case DescribeTopic(name):
                return described(description(self._topics.load(name), self._log))
            case AlterTopic():
                return altered(told(self._evolver.run(statement), statement))
            case ShowSchemas(name):
                return schemas(schema_history(self._topics.load(name)))
            case FlushTopic(only):
                return flushed(self._intake.flush(only))
            case _:
                assert_never(statement)

    def _list(self) -> Result:
        found, damaged = self._topics.survey()
        lines = [*(summary(topic, self._log) for topic in found), *map(damaged_summary, damaged)]
        return listed(sorted(lines, key=lambda line: str(line["topic"])))

    def _create(self, definition: TopicDefinition, if_not_exists: bool) -> Result:
        name = definition.name
        if self._views.exists(name):
            raise ViewExists(f'"{name}" is a materialized view', hint="A topic and a view never have the same name.")
        if definition.options.log == "kafka":  # before the topic is: a topic whose log answers can be appended to
            self._log.stats(LogTopic("", name, 0, "kafka"))
        try:
            if definition.options.on_invalid == "dead_letter":
                create_dead(self._topics, definition)
            self._topics.create(definition)
        except TopicExists:
            if not if_not_exists:
                raise
            return Result.done(f'topic "{name}" exists already')
        return Result.done(f'topic "{name}" created', notices(definition))

    def _drop(self, name: str, if_exists: bool) -> Result:
        try:
            if not self._topics.exists(name):
                self._topics.load(name)  # raises, with a suggestion
            self._check_unread(name)
            self._drop_one(name)
        except TopicNotFound:
            if not if_exists:
                raise
            return Result.done(f'topic "{name}" does not exist')
        if self._topics.exists(name + DEAD_SUFFIX):
            self._drop_one(name + DEAD_SUFFIX)
        return Result.done(f'topic "{name}" dropped')

    def _check_unread(self, name: str) -> None:
        """ViewInUse while views read the topic or its dead letters, which go with it."""
        tables = (TableName.topic(name), TableName.topic(name + DEAD_SUFFIX))
        if readers := sorted({view.name for table in tables for view in self._views.readers_of(table)}):
            raise ViewInUse(
                f'topic "{name}" is read by materialized views',
                detail=f"They are: {', '.join(readers)}.",
                hint="Drop those first.",
                views=readers,
            )

    def _drop_one(self, name: str) -> None:
        try:
            topic = self._topics.drop(name)
        except (Corrupt, LakeMoved):  # a table that could not be relocated names another folder; it is not deleted
            self._drop_damaged(name)
            return
        self._log.drop(log_topic(topic))
        self._topics.tables.delete_folder(topic.table.location())

    def _drop_damaged(self, name: str) -> None:
        """Drop a topic of which only the catalog's line can be read: the log knows it by its name, too."""
        folder = self._topics.drop_damaged(name)
        for topic in self._log.waiting():
            if topic.name == name:
                self._log.drop(topic)
        if folder is not None:
            self._topics.tables.delete_folder(str(folder))
