"""A result as a table, CSV, JSON, NDJSON or an Arrow file. All but the table stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headwater.cli.screen import Screen, counted, timed
from headwater.cli.table import Cell, Column, column, lay_out, render
from headwater.errors import InvalidInput, ResultTooLarge
from headwater.storage.encode import joined_bytes, json_texts, json_values, plain_texts, to_json_lines, unique_names

if TYPE_CHECKING:
    from headwater.serving.result import Result

Form = Literal["table", "csv", "json", "ndjson", "arrow"]
SHOWN_ROWS = 100
"""Rows that a table on a terminal shows unless asked for more."""
TABLE_ROWS = 1_000_000
"""Rows that a table may have at all: it is held in memory, because its widths depend on every row."""

_CSV_QUOTED = '[",\r\n]|^$|^\\s|\\s$'


def first_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to `limit` rows; what is beyond them is not read."""
    left = limit
    for batch in batches:
        if left is not None and batch.num_rows >= left:
            yield batch.slice(0, left)
            return
        left = None if left is None else left - batch.num_rows
        yield batch


class Written:
    """How many rows went out, and whether the limit left some behind."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.rows = 0
        self.cut = False

    def take(self, result: Result) -> Iterator[pa.RecordBatch]:
        """The result's batches up to the limit, counted."""
        for batch in first_rows(result.batches(), None if self.limit is None else self.limit + 1):
            if self.limit is not None and self.rows + batch.num_rows > self.limit:
                self.cut = True
                batch = batch.slice(0, self.limit - self.rows)
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch
        result.close()


def write_result(result: Result, form: Form, screen: Screen, limit: int | None, file: Path | None = None) -> Written:
    """Write a result in one form; `limit` None writes all of it."""
    written = Written(limit)
    match form:
        case "table":
            _write_table(result, written, screen)
        case "csv":
            _write_csv(result, written, screen)
        case "ndjson":
            for batch in written.take(result):
                screen.write_bytes(to_json_lines(batch))
        case "json":
            write_json_rows(result, written, screen)
            screen.write("\n")
        case "arrow":
            assert file is not None
            _write_arrow(result, written, screen, file)
    screen.flush()
    return written


def say_written(written: Written, screen: Screen, result: Result, seconds: float, to: Path | None = None) -> None:
    """Tell how many rows came, from where and how quickly; and always when rows were left out."""
    if written.cut:
        screen.note(f"only the first {counted(written.rows, 'row')} are shown; --max-rows 0 gives all of them")
    if to is not None:
        screen.note(f"{counted(written.rows, 'row')} written to {to}")
        return
    engine = (result.info.get("plan") or {}).get("engine")
    spent = timed(seconds) if screen.shows_timing else None
    screen.aside(" · ".join(filter(None, (counted(written.rows, "row"), spent, engine))))


# -- table ------------------------------------------------------------------------------------------------------


def _write_table(result: Result, written: Written, screen: Screen) -> None:
    schema, batches = result.schema, []
    for batch in written.take(result):
        batches.append(batch)
        if written.rows > TABLE_ROWS:
            result.close()
            raise ResultTooLarge(
                f"table has more than {TABLE_ROWS} rows",
                hint="Add a LIMIT or --max-rows, or use --csv, --ndjson or --arrow, which stream.",
            )
    table = pa.Table.from_batches(batches, schema=schema)
    layout = lay_out(columns_of(table), screen.width if screen.is_terminal else None)
    screen.write("\n".join(render(layout, screen.dim, screen.bold)) + "\n")
    if layout.left_out:
        screen.note(f"{counted(layout.left_out, 'column')} left out for lack of room; --json or --csv shows all")


def columns_of(table: pa.Table) -> list[Column]:
    """The table's columns as text."""
    return [_column(name, table.column(place)) for place, name in enumerate(table.schema.names)]


def _column(name: str, chunks: pa.ChunkedArray) -> Column:
    of = chunks.type
    right = pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of)
    return column(name, [cell for chunk in chunks.chunks for cell in _cells(chunk)], right=right)


def _cells(array: pa.Array) -> list[Cell]:
    values = json_values(array)
    return [None if value is None else value if isinstance(value, str) else _text(value) for value in values]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- csv --------------------------------------------------------------------------------------------------------


def _write_csv(result: Result, written: Written, screen: Screen) -> None:
    head = pa.array(result.schema.names, pa.string())
    screen.write_bytes((",".join(_csv_quoted(head).to_pylist()) + "\n").encode())
    for batch in written.take(result):
        screen.write_bytes(to_csv(batch))


def to_csv(batch: pa.RecordBatch) -> bytes:
    """The rows as CSV lines: a null is empty, an empty text is `""`, nested values are JSON."""
    pieces: list[Any] = []
    for place, array in enumerate(batch.columns):
        pieces += ["," if place else "", _csv_texts(array).fill_null("")]
    return joined_bytes([*pieces, "\n"])


def _csv_texts(array: pa.Array) -> pa.Array:
    of = array.type
    if pa.types.is_integer(of) or pa.types.is_decimal(of) or pa.types.is_date(of) or pa.types.is_boolean(of):
        return plain_texts(array)
    if pa.types.is_nested(of):
        return _csv_quoted(pc.if_else(array.is_valid(), json_texts(array), pa.scalar(None, pa.string())))
    return _csv_quoted(pa.array([None if value is None else str(value) for value in json_values(array)], pa.string()))


def _csv_quoted(texts: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(pc.match_substring_regex(texts, _CSV_QUOTED), quoted, texts)


# -- json -------------------------------------------------------------------------------------------------------


def write_json_rows(result: Result, written: Written, screen: Screen) -> None:
    """Write the rows as one JSON array of objects, without a line end."""
    screen.write("[")
    first = True
    for batch in written.take(result):
        lines = to_json_lines(batch).rstrip(b"\n").replace(b"\n", b",\n")
        screen.write_bytes((b"" if first else b",\n") + lines)
        first = False
    screen.write("]")


def write_json_results(results: Iterator[Result], screen: Screen) -> None:
    """Write one JSON array with an object for each statement: columns, rows, notices."""
    screen.write("[")
    for place, result in enumerate(results):
        columns = json.dumps(json_columns(result.schema), ensure_ascii=False)
        screen.write(("," if place else "") + f'{{"columns": {columns}, "rows": ')
        write_json_rows(result, Written(None), screen)
        screen.write(f', "notices": {json.dumps(list(result.notices), ensure_ascii=False)}}}')
    screen.write("]\n")
    screen.flush()


def json_columns(schema: pa.Schema) -> list[dict[str, str]]:
    """The columns' names, as the rows' objects use them, and their types."""
    names = unique_names(schema.names)
    return [{"name": name, "type": str(field.type)} for name, field in zip(names, schema, strict=True)]


def json_objects(result: Result) -> list[dict[str, Any]]:
    """A small result as Python data for one JSON document."""
    rows: list[dict[str, Any]] = []
    for batch in result.batches():
        rows += [json.loads(line) for line in to_json_lines(batch).splitlines()]
    return rows


# -- arrow ------------------------------------------------------------------------------------------------------


def _write_arrow(result: Result, written: Written, screen: Screen, file: Path) -> None:
    if str(file) == "-":
        with pa.ipc.new_stream(_Stdout(screen), result.schema) as stream:
            for batch in written.take(result):
                stream.write_batch(batch)
        return
    part = file.with_name(file.name + ".part")
    try:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, result.schema) as writer:
            for batch in written.take(result):
                writer.write_batch(batch)
        part.replace(file)  # a file of this name is whole, however the query ended
    except OSError as error:
        raise InvalidInput(f'file "{file}" cannot be written', detail=f"{error}.") from None
    finally:
        part.unlink(missing_ok=True)


class _Stdout:
    """Standard output as the sink of an Arrow stream."""

    closed = False

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, data: bytes) -> int:
        self._screen.write_bytes(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
