"""Rewrites the paths in the Iceberg metadata of one table, so that it names its files where they are now.

Iceberg records absolute paths in table metadata, manifest lists, manifests and position delete files; everything else
stays byte for byte: snapshot ids, statistics, tags, sequence numbers. Every file is replaced under its own name by a
rename, and a path that is rewritten already stays: after a crash, the same call finishes the work.

A file that is damaged stays as it is, and the others are rewritten: what could be read before can be read afterwards.
What the system refuses, such as space on the disk, ends the rewriting (Unavailable), because it can be repeated. Files
outside of the lake are never written.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.catalog.avro_frames import check_frames
from headwater.catalog.damage import MetadataKind, unreadable
from headwater.catalog.durable_files import is_inside, local_name, local_path, sync_file
from headwater.errors import Corrupt, HeadwaterError, Unavailable, system_error
from headwater.observability.failpoints import failpoint

Record = dict[str, Any]
T = TypeVar("T")

_PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
_POSITION_DELETES = 1
_DELETED = 2
_DELETED_PATH = 2147483546
"""The field id of the column `file_path` in position delete files."""
_UNSUPPORTED_CODECS = ("snappy", "zstandard", "lz4")
"""Codecs of Avro files that fastavro reads only with further packages; Iceberg's writers use deflate by default."""
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class FolderChange:
    """From which folders a lake came, and where it is now."""

    old: tuple[Path, ...]
    new: Path

    def location(self, location: str) -> str:
        """The location in the new folder; one that is in none of these folders is not the lake's, and stays."""
        name = local_name(location)
        # The new folder comes first: it may lie below an old one.
        for root in (self.new, *self.old):
            if is_inside(location, root / "warehouse"):
                return f"{location[: len(location) - len(name)]}{self.new}{name[len(str(root)) :]}"
        return location

    def path(self, location: str) -> Path:
        """Where the file of a location is now."""
        return local_path(self.location(location))


@dataclass(frozen=True, slots=True)
class TableRewrite:
    """What was found in a table: its properties, and what is damaged."""

    properties: Mapping[str, str]
    damage: Sequence[Corrupt]


def rewrite_table(metadata_location: str, change: FolderChange) -> TableRewrite:
    """Rewrite everything that a table's current metadata refers to, and the metadata last.

    Corrupt is raised for a table that would read wrongly if only a part of it was rewritten: it stays in its old place.
    """
    rewriter = _Rewriter(change)
    document = rewriter.rewrite_table(change.path(metadata_location))
    return TableRewrite(document.get("properties") or {}, rewriter.damage)


def rewrite_view(metadata_location: str, change: FolderChange) -> TableRewrite:
    """Rewrite the metadata of an Iceberg view."""
    rewriter = _Rewriter(change)
    rewriter.rewrite_document(change.path(metadata_location))
    return TableRewrite({}, rewriter.damage)


class _Rewriter:
    """Rewrites the files of one table, each once."""

    def __init__(self, change: FolderChange) -> None:
        self._change = change
        self._done: set[Path] = set()
        self.damage: list[Corrupt] = []

    def rewrite_table(self, current: Path) -> Record:
        """Rewrite a table; the current metadata, empty if they cannot be read."""
        change = self._change

        def read() -> tuple[list[Path], list[Path], Record]:
            document = _read_json(current)
            lists = [change.path(each["manifest-list"]) for each in document.get("snapshots", ())]
            log = [change.path(each["metadata-file"]) for each in document.get("metadata-log", ())]
            return lists, log, _moved_document(document, change)

        if (found := self._read("metadata file", current, read)) is None:
            return {}
        lists, log, document = found
        for path in lists:
            self._rewrite_manifest_list(path)
        for path in log:
            if is_inside(str(path), change.new) and path.exists():  # Iceberg deletes old ones, and nothing needs them
                self.rewrite_document(path)
        failpoint("relocate.manifests_rewritten")
        _write_json(current, document)
        return document

    def rewrite_document(self, path: Path) -> None:
        """Rewrite one file of table or view metadata."""
        document = self._read("metadata file", path, lambda: _moved_document(_read_json(path), self._change))
        if document is not None:
            _write_json(path, document)

    def _rewrite_manifest_list(self, path: Path) -> None:
        if not self._is_due(path):
            return

        def read() -> bytes:
            source = _AvroFile.read(path)
            return source.encode(map(self._moved_manifest, source.records))

        if (data := self._read("manifest list", path, read)) is not None:
            _write(path, data)

    def _moved_manifest(self, record: Record) -> Record:
        manifest = self._change.path(record["manifest_path"])
        self._rewrite_manifest(manifest)
        moved = record | {"manifest_path": self._change.location(record["manifest_path"])}
        # Readers trust the length, and paths of another length make other files.
        return moved | {"manifest_length": manifest.stat().st_size} if manifest.exists() else moved

    def _rewrite_manifest(self, path: Path) -> None:
        if not self._is_due(path):
            return

        def read() -> bytes:
            source = _AvroFile.read(path)
            return source.encode(map(self._moved_entry, source.records))

        if (data := self._read("manifest", path, read)) is not None:
            _write(path, data)

    def _moved_entry(self, entry: Record) -> Record:
        file = dict(entry["data_file"])
        file["file_path"] = self._change.location(file["file_path"])
        if file.get("referenced_data_file"):
            file["referenced_data_file"] = self._change.location(file["referenced_data_file"])
        if file.get("content") == _POSITION_DELETES and entry["status"] != _DELETED:
            file |= self._moved_deletes(file, local_path(file["file_path"]))
        return entry | {"data_file": file}

    def _moved_deletes(self, file: Record, path: Path) -> Record:
        """Rewrite a position delete file; what its manifest says about the new one.

        One that still named the old paths would delete nothing: without it, no part of the table is right.
        """
        form = str(file["file_format"]).upper()
        if form == "PUFFIN":  # a deletion vector names its file in the manifest only
            return {}
        if form != "PARQUET":
            raise _unmovable(path, f"Position delete files in the format {form} are not supported.")
        if self._is_due(path):
            try:
                data = _moved_positions(path, self._change)
            except Exception as error:
                _raise_if_of_system(error, path)
                raise _unmovable(path, "It is a position delete file, and missing or damaged.") from error
            _write(path, data)
        # The bounds of the paths are gone rather than wrong: readers then look into the file.
        bounds = {
            key: [each for each in file[key] if each["key"] != _DELETED_PATH]
            for key in ("lower_bounds", "upper_bounds")
            if file.get(key)
        }
        return {"file_size_in_bytes": path.stat().st_size, "split_offsets": None, **bounds}

    def _is_due(self, path: Path) -> bool:
        """Whether a file is still to be rewritten, from now on by the caller."""
        if not is_inside(str(path), self._change.new):
            raise _unmovable(path, "It is outside of the lake.")
        if path in self._done:
            return False
        self._done.add(path)
        return True

    def _read(self, kind: MetadataKind, path: Path, work: Callable[[], T]) -> T | None:
        """What `work` makes of a file; None, and a note of the damage, if it cannot be read."""
        try:
            return work()
        except HeadwaterError:
            raise
        except Exception as error:  # readers of damaged bytes raise anything
            _raise_if_of_system(error, path)
            found = unreadable(kind, str(path), error)
            if not isinstance(found, Corrupt):
                raise found from error
            self.damage.append(found)
            return None


def _unmovable(path: Path, reason: str) -> Corrupt:
    """The error for a file without which the table must not be moved."""
    return Corrupt(
        f'file "{path}" cannot be moved',
        detail=f"{reason} The table stays where it was.",
        hint="Move the lake back, rewrite the table there with the engine that wrote it, and move the lake then.",
        file=str(path),
    )


def _raise_if_of_system(error: Exception, path: Path) -> None:
    """Raise Unavailable if the file may be sound and the system did not let it be read or written."""
    if (found := system_error(error)) is not None:
        raise found from error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.EIO):
        said = getattr(error, "strerror", None) or "out of memory"
        raise Unavailable(
            f'file "{path}" cannot be read or written',
            detail=f"The system says: {said}.",
            hint="Try again. If the disk fails, copy the lake to another one first, without the files that are lost.",
        ) from error


# -- contents ---------------------------------------------------------------------------------------------------------


def _moved_document(document: Record, change: FolderChange) -> Record:
    """Table or view metadata with its paths changed; what Iceberg does not define as a path stays as it is."""
    move = change.location
    moved = document | {"location": move(document["location"])}
    for key, paths in (
        ("snapshots", ("manifest-list",)),
        ("metadata-log", ("metadata-file",)),
        ("statistics", ("statistics-path",)),
        ("partition-statistics", ("statistics-path",)),
    ):
        if document.get(key):
            moved[key] = [each | {path: move(each[path]) for path in paths} for each in document[key]]
    if properties := document.get("properties"):
        moved["properties"] = properties | {key: move(properties[key]) for key in _PATH_PROPERTIES if key in properties}
    return moved


@dataclass(frozen=True, slots=True)
class _AvroFile:
    """The header and the records of an Avro file, with dates and times as the numbers that are stored: some do not fit
    into Python's types."""

    header: Mapping[str, str]
    records: Iterator[Record]

    @classmethod
    def read(cls, path: Path) -> _AvroFile:
        body = path.read_bytes()
        check_frames(body)
        blocks = fastavro.block_reader(BytesIO(body))
        if (codec := blocks.metadata.get("avro.codec")) in _UNSUPPORTED_CODECS:
            raise _unmovable(path, f"Avro files that are compressed with {codec} are not supported.")
        return cls(dict(blocks.metadata), _records(blocks))

    def encode(self, records: Iterable[Record]) -> bytes:
        """The bytes of the same file with other records."""
        target = BytesIO()
        fastavro.writer(
            target,
            json.loads(self.header["avro.schema"]),
            records,
            codec=self.header.get("avro.codec", "null"),
            metadata={key: value for key, value in self.header.items() if not key.startswith("avro.")},
        )
        return target.getvalue()


def _records(blocks: Any) -> Iterator[Record]:
    schema: Any = None
    for block in blocks:
        schema = schema or fastavro.parse_schema(_without_logical_types(block.writer_schema))
        stream: BinaryIO = block.bytes_
        for _ in range(block.num_records):
            yield fastavro.schemaless_reader(stream, schema, None)  # type: ignore[misc]


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return schema


def _moved_positions(path: Path, change: FolderChange) -> bytes:
    """A position delete file with its paths changed."""
    target = BytesIO()
    with pq.ParquetFile(path) as source, pq.ParquetWriter(target, source.schema_arrow, compression="zstd") as writer:
        for batch in source.iter_batches():
            position = batch.schema.get_field_index("file_path")
            moved = [change.location(each) for each in batch.column(position).to_pylist()]
            field = batch.schema.field(position)
            writer.write_batch(batch.set_column(position, field, pa.array(moved, field.type)))
    return target.getvalue()


# -- files ------------------------------------------------------------------------------------------------------------


def _read_json(path: Path) -> Record:
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    data = json.dumps(document, separators=(",", ":")).encode()
    with path.open("rb") as old:
        compressed = old.read(2) == _GZIP
    _write(path, gzip.compress(data, mtime=0) if compressed else data)


def _write(path: Path, data: bytes) -> None:
    """Replace a file durably; it keeps its permissions. Unavailable if the system does not let it."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.chmod(path.stat().st_mode & 0o777)
        sync_file(part)
        part.replace(path)
        # Hadoop's checksum of the old bytes, which Spark would compare with the new ones.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        sync_file(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        _raise_if_of_system(error, path)
        raise Unavailable(f'file "{path}" cannot be written', detail=f"The system says: {error.strerror}.") from error


def remove_parts(folder: Path) -> None:
    """Delete what an interrupted rewrite left."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def is_empty(folder: Path) -> bool:
    """Whether a folder has nothing in it, or does not exist."""
    try:
        return next(os.scandir(folder), None) is None
    except FileNotFoundError:
        return True
