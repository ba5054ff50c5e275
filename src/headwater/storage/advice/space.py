"""Encodings and codecs of columns: each that a column can have is tried, and the smallest that is worth it wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.catalog.topics import Topic
from headwater.sql.definition import encodes
from headwater.sql.option_pairs import ENCODINGS
from headwater.storage.advice.measure import Columns, Written, timed, written
from headwater.storage.advice.values import Confidence, Effect, Kind, Recommendation
from headwater.storage.layout import Layout, Leaf, codecs, leaves
from headwater.types import SYSTEM_COLUMNS, Pairs

COLUMN_GAIN = 0.03
"""The share of its bytes that a column must save,"""
TABLE_GAIN = 0.005
"""and the share of the table's."""
RARE, RARE_GAIN = ("byte_stream_split",), 0.1
"""Encodings that not every reader of Parquet knows, and what a column must save to be worth that."""
CODECS = ("zstd:1", "zstd:3", "zstd:6", "zstd:9")
"""What is tried beside the codec that a column has; higher levels take many times as long for a few percent."""
SLOWER_WRITES = 20
"""A percent less of the table may cost so many percent more of the time to write it: bytes are kept, and read again."""
NOISE = 0.001
"""Seconds that say nothing."""
SLOWER_READS = 2.0
"""At the most: levels of a codec are read alike, and short times are measured badly."""
HARDLY = 0.01
"""The share by which a column may grow without a codec, if reading it gets much quicker,"""
QUICKER = 0.7
"""that is, takes at the most this share of the time."""
LARGE = 0.05
"""The share of the table that a column has for which that matters."""
SURE_ROWS, SOME_ROWS, SURE_GAIN = 20_000, 5_000, 0.1

_WHY = {
    "dictionary": "its values repeat, and a dictionary of them is smaller",
    "plain": "dictionaries and deltas cost more than they save on these values",
    "delta": "neighbouring values are close to each other",
    "byte_stream_split": "bytes at the same place of values resemble each other; Daft and Spark's Parquet source, "
    "unlike Iceberg's readers, do not read this encoding",
    "delta_length": "its values hardly repeat, and compress better without a dictionary",
    "delta_strings": "neighbouring values begin alike",
}


_Change = Callable[[Layout, Mapping[str, str]], Layout]


@dataclass(frozen=True, slots=True)
class _Trial:
    """A setting of a column, and the layout in which every column that can has it."""

    name: str
    layout: Layout


def advise_space(topic: Topic, sample: pa.Table, layout: Layout) -> Iterator[Recommendation]:
    """Encodings first, then codecs for columns that are encoded so."""
    settable = [leaf for leaf in leaves(sample.schema) if leaf.column.split(".")[0] not in SYSTEM_COLUMNS]
    columns, now = Columns(sample), written(sample, layout)
    worth = _Worth(columns, now.bytes, timed(sample, layout)[0])
    chosen = worth.best(_smaller(now, settable, _encodings(topic, settable, layout), sample), layout, _with_encodings)
    encoded = _with_encodings(layout, chosen)
    yield from _told("encoding", columns, sample, layout, encoded, chosen)
    now = written(sample, encoded) if chosen else now
    packed = worth.best(_smaller(now, settable, _codecs(settable, encoded), sample), encoded, _with_codecs)
    rest = [leaf for leaf in settable if leaf.column not in packed]
    packed |= _unpacked(columns, sample, encoded, now, rest)
    yield from _told("compression", columns, sample, encoded, _with_codecs(encoded, packed), packed)


def _encodings(topic: Topic, settable: Sequence[Leaf], layout: Layout) -> Iterator[_Trial]:
    said = dict(layout.encoding_columns)  # which beats a dictionary
    free = {leaf.column: "dictionary" for leaf in settable if not leaf.setting(said)}
    yield _Trial("dictionary", _with_encodings(layout, free))
    for name in ENCODINGS:
        fitting = {leaf.column: name for leaf in settable if encodes(name, topic.schema.find_type(leaf.column))}
        yield _Trial(name, _with_encodings(layout, fitting))


def _codecs(settable: Sequence[Leaf], layout: Layout) -> Iterator[_Trial]:
    for name in CODECS:
        yield _Trial(name, _with_codecs(layout, {leaf.column: name for leaf in settable}))


def _with_encodings(layout: Layout, chosen: Mapping[str, str]) -> Layout:
    """The layout with these encodings; a dictionary is a setting of its own."""
    switched = {column: "on" for column, name in chosen.items() if name == "dictionary"}
    others = {column: name for column, name in chosen.items() if name != "dictionary"}
    return replace(
        layout,
        encoding_columns=with_pairs(layout.encoding_columns, others),
        dictionary_columns=with_pairs(layout.dictionary_columns, switched),
    )


def _with_codecs(layout: Layout, chosen: Mapping[str, str]) -> Layout:
    return replace(layout, compression_columns=with_pairs(layout.compression_columns, chosen))


def with_pairs(pairs: Pairs, more: Mapping[str, str]) -> Pairs:
    """The pairs with some set or added."""
    return tuple({**dict(pairs), **more}.items())


def _smaller(
    now: Written, settable: Sequence[Leaf], trials: Iterator[_Trial], sample: pa.Table
) -> dict[str, list[str]]:
    """The settings with which columns are so much smaller that it matters, the smallest first."""
    found: dict[str, list[tuple[int, str]]] = {}
    for trial in trials:
        sizes = written(sample, trial.layout).columns
        for leaf in settable:
            if _matters(now.columns[leaf.path], sizes[leaf.path], now.bytes, trial.name):
                found.setdefault(leaf.column, []).append((sizes[leaf.path], trial.name))
    return {column: [name for _, name in sorted(tried)] for column, tried in found.items()}


def _matters(before: int, after: int, table: int, name: str) -> bool:
    share = RARE_GAIN if name in RARE else COLUMN_GAIN
    return before - after >= max(share * before, TABLE_GAIN * table)


@dataclass(frozen=True, slots=True)
class _Worth:
    """Weighs bytes against time, for a table of so many bytes that takes so long to write."""

    columns: Columns
    bytes: int
    seconds: float

    def best(self, tried: Mapping[str, Sequence[str]], layout: Layout, changed: _Change) -> dict[str, str]:
        """For each column the smallest setting that is worth the time that writing and reading it takes."""
        found = {}
        for column, names in tried.items():
            effects = ((name, self.columns.effect(column, layout, changed(layout, {column: name}))) for name in names)
            if (best := next((name for name, effect in effects if self._pays(effect)), None)) is not None:
                found[column] = best
        return found

    def _pays(self, effect: Effect) -> bool:
        saved = ((effect.bytes_before or 0) - (effect.bytes_after or 0)) / self.bytes
        slower = (effect.write_seconds_after or 0) - (effect.write_seconds_before or 0) - NOISE
        reads = (effect.read_seconds_after or 0) - SLOWER_READS * (effect.read_seconds_before or 0) - NOISE
        return slower <= SLOWER_WRITES * saved * self.seconds and reads <= 0


def _unpacked(columns: Columns, sample: pa.Table, layout: Layout, now: Written, rest: Sequence[Leaf]) -> dict[str, str]:
    """Large columns that hardly compress, and are read much quicker without a codec."""
    large = {leaf.column: leaf for leaf in rest if now.columns[leaf.path] >= LARGE * now.bytes}
    compressed = {path for path, (codec, _) in codecs(layout, sample.schema).items() if codec != "none"}
    bare = _with_codecs(layout, dict.fromkeys(large, "none"))
    sizes = written(sample, bare).columns if large else {}
    found = {}
    for column, leaf in large.items():
        if leaf.path in compressed and sizes[leaf.path] <= (1 + HARDLY) * now.columns[leaf.path]:
            effect = columns.effect(column, layout, _with_codecs(layout, {column: "none"}))
            if (effect.read_seconds_after or 0) + NOISE <= QUICKER * (effect.read_seconds_before or 0):
                found[column] = "none"
    return found


def _told(
    kind: Kind, columns: Columns, sample: pa.Table, before: Layout, after: Layout, chosen: Mapping[str, str]
) -> Iterator[Recommendation]:
    current: Callable[[str], str] = _encoding_now(before) if kind == "encoding" else _codec_now(before, sample)
    for column, name in sorted(chosen.items()):
        effect = columns.effect(column, before, after)
        option = _option(kind, name)
        yield Recommendation(
            kind=kind,
            columns=(column,),
            current=current(column),
            proposed=name,
            effect=effect,
            why=_why(kind, name),
            confidence=_confidence(sample.num_rows, effect),
            option=option,
            value=pairs_text(getattr(after, option)),
        )


def _option(kind: Kind, name: str) -> str:
    if kind == "compression":
        return "compression_columns"
    return "dictionary_columns" if name == "dictionary" else "encoding_columns"


def pairs_text(pairs: Pairs) -> str:
    """Pairs as an option takes them."""
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _encoding_now(layout: Layout) -> Callable[[str], str]:
    encodings, switches = dict(layout.encoding_columns), dict(layout.dictionary_columns)
    return lambda column: encodings.get(column) or f"dictionary {switches.get(column, layout.dictionary)}"


def _codec_now(layout: Layout, sample: pa.Table) -> Callable[[str], str]:
    found = codecs(layout, sample.schema)
    now = {leaf.column: found[leaf.path] for leaf in leaves(sample.schema)}
    return lambda column: ":".join(str(part) for part in now[column] if part is not None)


def _why(kind: Kind, name: str) -> str:
    if kind == "encoding":
        return _WHY[name]
    if name == "none":
        return "its values hardly compress, and are read quicker as they are"
    return "a higher level finds more that repeats, and reading takes no longer"


def _confidence(rows: int, effect: Effect) -> Confidence:
    before, after = effect.bytes_before or 0, effect.bytes_after or 0
    if rows < SOME_ROWS:
        return "low"
    return "high" if rows >= SURE_ROWS and before - after >= SURE_GAIN * before else "medium"
