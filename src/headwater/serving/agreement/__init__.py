"""Two engines, one answer: which queries DuckDB answers exactly as Spark does, and in which words.

`agree` is the whole of it: Spark SQL goes in, DuckDB SQL or a reason comes out. Every node of a query must be proven:
its types are computed by Spark's rules, conversions are written out, and what differs for some values only is checked
by the SQL itself, which then raises. Whoever runs it asks Spark after any error of DuckDB. The tables of proven
functions are data; the differential tests run every entry over both engines.
"""

from headwater.serving.agreement.aggregates import AGGREGATES, FRAMED, RANKINGS
from headwater.serving.agreement.functions import CASTS, SCALARS
from headwater.serving.agreement.mistakes import no_table
from headwater.serving.agreement.shape import output_schema, shaped
from headwater.serving.agreement.translate import agree, scan_needs
from headwater.serving.agreement.values import CHECK, Agreed, Folded, Mistake, OutputColumn, ScanNeeds, Unproven

__all__ = [
    "AGGREGATES",
    "CASTS",
    "CHECK",
    "FRAMED",
    "RANKINGS",
    "SCALARS",
    "Agreed",
    "Folded",
    "Mistake",
    "OutputColumn",
    "ScanNeeds",
    "Unproven",
    "agree",
    "no_table",
    "output_schema",
    "scan_needs",
    "shaped",
]
