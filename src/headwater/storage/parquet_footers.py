"""What the footers of a table's files say: sizes, codecs, encodings, pages and types, column by column.

A data file never changes, so its footer is read once and what matters of it is kept. It is read here, and not by
Arrow, because Arrow does not tell how many pages have which encoding, and ends the process on some damaged footers.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from pyiceberg.schema import Schema

from headwater.storage.checksums import damaged, missing, verify_file
from headwater.storage.seal import read_end
from headwater.storage.thrift import Struct, read_struct
from headwater.storage.writer import local_path

MAX_FILES = 20_000
THREADS = 8
_PAGE_HEAD = 4096

_CODECS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4_hadoop", "zstd", "lz4")
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_REPETITIONS = ("required", "optional", "repeated")
_ENCODINGS = {
    0: "plain",
    2: "dictionary",
    3: "rle",
    4: "bit_packed",
    5: "delta",
    6: "delta_length",
    7: "delta_strings",
    8: "dictionary",
    9: "byte_stream_split",
}
_LOGICAL = {1: "STRING", 2: "MAP", 3: "LIST", 4: "ENUM", 6: "DATE", 11: "UNKNOWN", 12: "JSON", 13: "BSON", 14: "UUID"}
_UNITS = {1: "MILLIS", 2: "MICROS", 3: "NANOS"}
_DATA_PAGES, _DICTIONARY_PAGE = (0, 3), 2


@dataclass(frozen=True, slots=True)
class LeafType:
    """A Parquet column as a file's schema has it."""

    path: str
    field_id: int | None
    physical: str
    logical: str
    repetition: str


@dataclass(frozen=True, slots=True)
class LeafFacts:
    """A Parquet column of one file, its row groups together. `pages` are data pages by encoding; empty if unknown."""

    type: LeafType
    compressed: int
    uncompressed: int
    values: int
    codecs: frozenset[str]
    encodings: frozenset[str]
    pages: tuple[tuple[str, int], ...]
    dictionary_pages: int
    bloom_bytes: int
    page_index: bool


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file's footer says, and whether pages have checksums (`sealed`: the whole file has)."""

    path: str
    rows: int
    row_groups: int
    writer: str
    sealed: bool
    checksums: bool
    sorting: bool
    leaves: tuple[LeafFacts, ...]


def field_id(of: LeafType, schema: Schema) -> int | None:
    """The field of the table that a file's column is; by name in files without ids, which other tools write."""
    if of.field_id is not None or of.path not in schema.column_names:
        return of.field_id
    return schema.find_field(of.path).field_id


class Footers:
    """Footers by path, up to a number of files, the least recently used leaving first."""

    def __init__(self, max_files: int = MAX_FILES) -> None:
        self._max_files = max_files
        self._held: OrderedDict[str, FileFacts] = OrderedDict()
        self._lock = Lock()

    def read(self, paths: Sequence[str]) -> list[FileFacts]:
        """What the footers of these files say, in their order; Corrupt names the first that is damaged."""
        with ThreadPoolExecutor(THREADS, "headwater-footers") as pool:
            return list(pool.map(self._one, paths))

    def _one(self, path: str) -> FileFacts:
        with self._lock:
            if (held := self._held.get(path)) is not None:
                self._held.move_to_end(path)
                return held
        found = read_facts(path)
        with self._lock:
            self._held[path] = found
            while len(self._held) > self._max_files:
                self._held.popitem(last=False)
        return found


def read_facts(location: str) -> FileFacts:
    """What a file's footer says, once it has been verified; Corrupt if it is not there, or damaged."""
    path = local_path(location)
    try:
        sealed = verify_file(path, columns=())
        with path.open("rb", buffering=0) as file:
            footer = read_end(file.fileno(), path.stat().st_size)[0]
            metadata, _ = read_struct(footer)
            return _facts(location, metadata, sealed, sealed or _has_page_checksum(file.fileno(), metadata))
    except FileNotFoundError:
        raise missing(path) from None
    except (ValueError, KeyError, IndexError) as wrong:
        raise damaged(path, f"Its footer cannot be read: {wrong}.") from None


def _facts(location: str, metadata: Struct, sealed: bool, checksums: bool) -> FileFacts:
    groups = metadata[4]
    types = list(_leaf_types(metadata[2]))
    chunks = [[group[1][place] for group in groups] for place in range(len(types))]
    leaves = tuple(_leaf(of, parts) for of, parts in zip(types, chunks, strict=True))
    writer = metadata.get(6, b"").decode("utf-8", "replace")
    sorting = bool(groups) and all(group.get(4) for group in groups)
    return FileFacts(location, metadata[3], len(groups), writer, sealed, checksums, sorting, leaves)


def _leaf(of: LeafType, chunks: Sequence[Struct]) -> LeafFacts:
    """The facts of a column from its chunks, one of each row group."""
    parts = [chunk[3] for chunk in chunks]
    pages: dict[str, int] = {}
    dictionaries = 0
    for kind, encoding, count in (stat for part in parts for stat in _page_counts(part)):
        if kind in _DATA_PAGES:
            pages[encoding] = pages.get(encoding, 0) + count
        dictionaries += count if kind == _DICTIONARY_PAGE else 0
    encodings = set(pages) or {name for part in parts for name in _listed_encodings(part)}
    return LeafFacts(
        of,
        sum(part[7] for part in parts),
        sum(part[6] for part in parts),
        sum(part[5] for part in parts),
        frozenset(_CODECS[part[4]] for part in parts),
        frozenset(encodings),
        tuple(sorted(pages.items())),
        dictionaries,
        sum(part.get(15, 0) if 14 in part else 0 for part in parts),
        bool(chunks) and all(4 in chunk and 6 in chunk for chunk in chunks),
    )


def _page_counts(part: Struct) -> Iterator[tuple[int, str, int]]:
    for stat in part.get(13, ()):
        yield stat[1], _ENCODINGS.get(stat[2], "other"), stat[3]


def _listed_encodings(part: Struct) -> Iterator[str]:
    """A chunk's encodings where pages are not counted; RLE is that of levels, unless it is the only one."""
    names = [_ENCODINGS.get(each, "other") for each in part.get(2, ())]
    yield from [name for name in names if name not in ("rle", "bit_packed")] or names


def _has_page_checksum(handle: int, metadata: Struct) -> bool:
    """Whether the first page has a checksum; a writer gives one to all of them or to none."""
    if not metadata[4] or not metadata[4][0][1]:
        return False
    chunk = metadata[4][0][1][0][3]
    start = min(filter(None, (chunk.get(11), chunk[9])))
    header, _ = read_struct(os.pread(handle, _PAGE_HEAD, start))
    return 4 in header


def _leaf_types(elements: Sequence[Struct]) -> Iterator[LeafType]:
    """The leaves below the schema's root, in the order of the file's columns."""
    rest = iter(elements)
    for _ in range(next(rest).get(5, 0)):
        yield from _below(rest, "", 0)


def _below(rest: Iterator[Struct], above: str, repetition: int) -> Iterator[LeafType]:
    element = next(rest)
    path = f"{above}.{element[4].decode()}" if above else element[4].decode()
    # What repeats, or may be missing, above a leaf makes the leaf so.
    repetition = max(repetition, element.get(3, 0))
    if children := element.get(5, 0):
        for _ in range(children):
            yield from _below(rest, path, repetition)
        return
    physical = _TYPES[element[1]]
    if physical == "FIXED_LEN_BYTE_ARRAY":
        physical += f"({element.get(2, 0)})"
    yield LeafType(path, element.get(9), physical, _logical(element), _REPETITIONS[repetition])


def _logical(element: Struct) -> str:
    """What the values mean, in Parquet's words; empty for a plain physical type."""
    union: Struct = element.get(10, {})
    kind = next(iter(union), 0)
    said: Struct = union.get(kind, {})
    if kind == 5:
        return f"DECIMAL({said.get(2)}, {said.get(1)})"
    if kind in (7, 8):
        unit = _UNITS.get(next(iter(said.get(2, {})), 0), "?")
        return f"{'TIME' if kind == 7 else 'TIMESTAMP'}({unit}{', UTC' if said.get(1) else ''})"
    if kind == 10:
        return f"INT({said.get(1)}, {'signed' if said.get(2) else 'unsigned'})"
    return _LOGICAL.get(kind, "STRING" if not union and element.get(6) == 0 else "")
