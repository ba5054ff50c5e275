"""From bytes, rows and tables to validated Arrow of a topic's schema. Reads nothing else, writes nothing."""

from headwater.storage.decode.blocks import csv_blocks, json_blocks, ndjson_blocks
from headwater.storage.decode.decoder import RecordDecoder
from headwater.storage.decode.outcome import Decoded, Reject, rejection
from headwater.storage.decode.sizes import Account, ignore_size

__all__ = [
    "Account",
    "Decoded",
    "RecordDecoder",
    "Reject",
    "csv_blocks",
    "ignore_size",
    "json_blocks",
    "ndjson_blocks",
    "rejection",
]
