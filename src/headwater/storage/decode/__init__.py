"""From bytes, rows and tables to validated Arrow of a topic's schema. Reads nothing else, writes nothing."""

from headwater.storage.decode.blocks import csv_blocks, ndjson_blocks
from headwater.storage.decode.decoder import RecordDecoder
from headwater.storage.decode.outcome import Decoded, Reject, rejection

__all__ = ["Decoded", "RecordDecoder", "Reject", "csv_blocks", "ndjson_blocks", "rejection"]
