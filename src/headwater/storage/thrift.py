"""Thrift's compact protocol, as far as Parquet's small structs need it: bytes into plain values by field number.

Parquet's libraries keep page headers and bloom filter headers to themselves; footers are read by Arrow.
"""

from __future__ import annotations

from typing import Any

Struct = dict[int, Any]
"""A struct's fields by number: bool, int, float, bytes, list, dict or another struct."""

MAX_DEPTH = 8
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)


def read_struct(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at `at`, and where it ends; ValueError if there is none."""
    reader = _Reader(data, at)
    try:
        return reader.struct(0), reader.at
    except IndexError:
        raise ValueError("a header ends early") from None


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def struct(self, depth: int) -> Struct:
        if depth > MAX_DEPTH:
            raise ValueError("a header is nested too deeply")
        fields: Struct = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _DOUBLE:
            return self._take(8)
        if kind in (_TRUE, _FALSE, _BYTE):  # a bool inside a list: as a field it has its value in its type
            return self._byte()
        raise ValueError(f"a header has a value of type {kind}")  # no struct that is read here has a map

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        return [self._value(head & 15, depth) for _ in range(count)]

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _take(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size]
        if len(found) != size:
            raise ValueError("a header ends early")
        self.at += size
        return found

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a header has a number without an end")
