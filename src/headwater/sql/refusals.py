"""Statements that Headwater knows but does not run, and what to use instead: data for the parser's errors."""

from __future__ import annotations

from collections.abc import Mapping

_PRODUCE = "Use `headwater produce` to append records to a topic."
_IN_PLACE = "Use UPDATE or DELETE to change records of a topic, and `headwater produce` to append some."
_SETTINGS = (
    "Settings are made in headwater.toml and HEADWATER_* variables; a topic's options by CREATE TOPIC ... WITH (...)."
)
_NO_CODE = "Queries cannot run code or procedures, or load files."
_NO_SESSION = "Statements stand for themselves: there is no session to change."

STATEMENTS: Mapping[str, str | None] = {
    "INSERT": _PRODUCE,
    "COPY": _PRODUCE,
    "LOAD": _PRODUCE,
    "IMPORT": _PRODUCE,
    "MERGE": _IN_PLACE,
    "REPLACE": _IN_PLACE,
    "TRUNCATE": "Use DELETE FROM name WHERE TRUE.",
    "COMMENT": "Use CREATE TOPIC ... COMMENT '...'.",
    "SET": _SETTINGS,
    "RESET": _SETTINGS,
    "PRAGMA": _SETTINGS,
    "CALL": _NO_CODE,
    "EXECUTE": _NO_CODE,
    "BEGIN": _NO_CODE,
    "DECLARE": _NO_CODE,
    "ADD": _NO_CODE,
    "LIST": _NO_CODE,
    "INSTALL": _NO_CODE,
    "ATTACH": _NO_CODE,
    "DETACH": _NO_CODE,
    "DFS": _NO_CODE,
    "USE": _NO_SESSION,
    "CACHE": _NO_SESSION,
    "UNCACHE": _NO_SESSION,
    "CLEAR": _NO_SESSION,
    "COMMIT": _NO_SESSION,
    "LOCK": _NO_SESSION,
    "UNLOCK": _NO_SESSION,
    "EXPORT": "Use a query, and `headwater query --arrow FILE` or --csv.",
    "GRANT": None,
    "REVOKE": None,
    "ANALYZE": "Statistics are written with the files. Use EXPLAIN ANALYZE to measure a query.",
    "VACUUM": "Use MAINTAIN, which also removes old snapshots and orphaned files.",
    "MSCK": None,
    "REPAIR": None,
}
"""First words of SQL that Headwater never runs, with a hint."""

OBJECTS: tuple[str, ...] = (
    "TABLE",
    "TABLES",
    "VIEW",
    "VIEWS",
    "DATABASE",
    "DATABASES",
    "SCHEMA",
    "SCHEMAS",
    "NAMESPACE",
    "NAMESPACES",
    "CATALOG",
    "CATALOGS",
    "FUNCTION",
    "FUNCTIONS",
    "INDEX",
    "VARIABLE",
    "EXTERNAL",
    "TEMPORARY",
    "TEMP",
    "GLOBAL",
    "PROCEDURE",
    "PROCEDURES",
    "COLUMNS",
    "PARTITIONS",
    "TBLPROPERTIES",
    "QUERY",
    "TRANSACTION",
    "USER",
    "ROLE",
)
"""What SQL can create, drop, show and describe, and Headwater cannot."""

INSTEAD: Mapping[str, str] = {
    "CREATE": "Use CREATE TOPIC or STREAM name (columns), or CREATE MATERIALIZED VIEW name AS query.",
    "DROP": "Use DROP TOPIC name, DROP STREAM name, or DROP MATERIALIZED VIEW name.",
    "ALTER": "Use ALTER TOPIC name ADD COLUMN ..., or ALTER STREAM or MATERIALIZED VIEW name SET (option = value).",
    "SHOW": "Use SHOW TOPICS, SHOW STREAMS, SHOW MATERIALIZED VIEWS, SHOW REFRESHES or SHOW MAINTENANCE.",
    "DESCRIBE": "Use DESCRIBE TOPIC name, DESCRIBE STREAM name, or DESCRIBE MATERIALIZED VIEW name.",
    "REFRESH": "Use REFRESH MATERIALIZED VIEW name; topics are always fresh, and FLUSH commits what waits in the log.",
    "VERIFY": "Use VERIFY MATERIALIZED VIEW name.",
    "COMPACT": "Use COMPACT MATERIALIZED VIEW name.",
    "DELETE": "Use DELETE FROM topic WHERE condition.",
    "ROLLBACK": "Use ROLLBACK TOPIC name TO VERSION id; statements stand for themselves, and are not undone by it.",
    "CHERRY": "Use CHERRY PICK VERSION id INTO topic.",
    "DIFF": "Use DIFF TOPIC name BETWEEN id AND id.",
    "RECOMMEND": "Use RECOMMEND FOR topic.",
    "START": "Use START STREAM name; statements stand for themselves, and there are no transactions.",
    "STOP": "Use STOP STREAM name.",
    "RESTART": "Use RESTART STREAM name.",
}
"""The statements of Headwater that start with the same word."""

VIEW_INSTEAD: Mapping[str, str] = {
    "CREATE": "Use CREATE MATERIALIZED VIEW name AS query.",
    "DROP": "Use DROP MATERIALIZED VIEW name.",
    "SHOW": "Use SHOW MATERIALIZED VIEWS.",
    "DESCRIBE": "Use DESCRIBE MATERIALIZED VIEW name.",
}
"""The same for who says VIEW: only materialized ones are kept."""
