"""The TCP ports on which a process and its children listen, from /proc."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

LISTEN = "0A"


def descendants(pid: int) -> set[int]:
    """The process, its children and theirs."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of every socket that accepts connections."""
    inodes = set()
    for process in descendants(pid):
        try:
            links = [str(each.readlink()) for each in Path(f"/proc/{process}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    found = ipaddress.ip_address(packed)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
