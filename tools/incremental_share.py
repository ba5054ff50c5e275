"""How much of Spark SQL a view may use and still refresh incrementally: counted over Spark's own documentation.

Every built-in function comes with examples. An example counts if the text that Headwater writes for the parsed query
means to Spark what the original text means: that is what CREATE asks before it takes a query apart. The forms below do
the same for operators, literals and clauses. `python -m tools.incremental_share` prints both shares and what is missing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.views.analyse import Opaque
from headwater.views.define import check_same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXAMPLE = re.compile(r"^\s*> (SELECT\b.*?);[ \t]*$", re.MULTILINE | re.DOTALL | re.IGNORECASE)

COLUMNS: Mapping[str, str] = {
    "i": "1",
    "l": "2L",
    "f": "CAST(0.5 AS FLOAT)",
    "d": "1.5D",
    "w": "CAST(1 AS DECIMAL(38,18))",
    "s": "'a'",
    "b": "TRUE",
    "x": "X'00'",
    "dt": "DATE '2026-01-02'",
    "ts": "TIMESTAMP '2026-01-02 03:04:05'",
    "ntz": "TIMESTAMP_NTZ '2026-01-02 03:04:05'",
    "a": "ARRAY(1, 2)",
    "m": "MAP('k', 1)",
    "r": "NAMED_STRUCT('y', 1, 'z', 'a')",
}
"""Columns of the relation `t` that the forms read, each with a value of its type."""

EXPRESSIONS = (
    *("i + l - d * f / w % i", "i DIV 2", "-i", "+i", "~i", "i & 1 | 2 ^ 3", "i << 2", "i >> 1", "i >>> 1", "s || 'b'"),
    *("i = 1", "i == 1", "i != 1", "i <> 1", "i <=> NULL", "i < l AND l <= d OR NOT b", "!b"),
    *("s IS NULL", "s IS NOT NULL", "b IS TRUE", "b IS NOT TRUE", "b IS FALSE", "b IS NOT FALSE", "b IS UNKNOWN"),
    *("b IS NOT UNKNOWN", "i IS DISTINCT FROM l", "i IS NOT DISTINCT FROM l", "i IN (1, 2)", "i NOT IN (1, 2)"),
    *("i BETWEEN 1 AND 2", "i NOT BETWEEN 1 AND 2", "s LIKE 'a%'", "s NOT LIKE 'a%'", "s LIKE 'a/%' ESCAPE '/'"),
    *("s ILIKE 'A%'", "s NOT ILIKE 'A%'", "s RLIKE 'a+'", "s NOT RLIKE 'a+'", "s REGEXP 'a'", "s LIKE ANY ('a', 'b')"),
    *("s LIKE ALL ('a', 'b')", "s NOT LIKE ANY ('a', 'b')", "s NOT LIKE ALL ('a', 'b')", "s ILIKE ANY ('a', 'b')"),
    *("CASE WHEN i > 1 THEN 'x' ELSE 'y' END", "CASE i WHEN 1 THEN 'x' WHEN 2 THEN 'y' END", "IF(b, i, l)"),
    *("CAST(i AS STRING)", "i::STRING", "TRY_CAST(s AS INT)", "CAST(s AS DATE)", "CAST(s AS TIMESTAMP)", "s::DOUBLE"),
    *("CAST(i AS DECIMAL(10,2))", "CAST(i AS DECIMAL)", "CAST(ts AS DATE)", "CAST(ts AS TIMESTAMP_NTZ)"),
    *("CAST(ts AS TIMESTAMP_LTZ)", "CAST(a AS ARRAY<STRING>)", "CAST(m AS MAP<STRING, BIGINT>)", "CAST(i AS LONG)"),
    *("CAST(r AS STRUCT<y: BIGINT, z: STRING>)", "CAST(s AS BINARY)", "CAST(i AS SMALLINT)", "CAST(i AS BYTE)"),
    *("1", "1L", "1S", "1Y", "1.5", "1.5D", "1.5F", "1.5BD", "1e3", "1E-3", ".5", "-1", "-9223372036854775808"),
    *("'it''s'", '"double quotes"', "r'\\d'", "'a' 'b'", "'tab\\t'", "'\\u0041'", "X'1F'", "TRUE", "NULL", "''"),
    *("DATE '2026-01-02'", "DATE'2026-01-02'", "TIMESTAMP '2026-01-02 03:04:05'", "TIMESTAMP '2026-01-02 03:04:05Z'"),
    *("TIMESTAMP_NTZ '2026-01-02 03:04:05'", "TIMESTAMP_LTZ '2026-01-02 03:04:05'", "TIME '03:04:05'"),
    *("INTERVAL 1 DAY", "INTERVAL '1' DAY", "INTERVAL '1 day 2 hours'", "INTERVAL '1-2' YEAR TO MONTH"),
    *("INTERVAL '1 2:3:4' DAY TO SECOND", "INTERVAL 1 YEAR", "INTERVAL -1 MONTH", "ts + INTERVAL 1 DAY"),
    *(
        "ts - INTERVAL '1' HOUR",
        "dt + 1",
        "dt - 1",
        "dt - dt",
        "ts - ts",
        "dt + INTERVAL 1 MONTH",
        "i * INTERVAL 1 DAY",
    ),
    *("EXTRACT(HOUR FROM ts)", "EXTRACT(year FROM dt)", "EXTRACT(DOW FROM dt)", "DATE_PART('hour', ts)"),
    *("date_trunc('hour', ts)", "DATE_TRUNC('HOUR', ts)", "date_trunc('MINUTE', ts)", "trunc(ts, 'month')"),
    *("trunc(dt, 'MM')", "TRUNC(dt, 'year')", "year(ts)", "to_date(s)", "to_timestamp(s, 'yyyy-MM-dd')"),
    *(
        "date_format(ts, 'yyyy-MM')",
        "date_add(dt, 1)",
        "DATEADD(DAY, 1, ts)",
        "DATEDIFF(dt, dt)",
        "datediff(MONTH, dt, dt)",
    ),
    *(
        "TIMESTAMPADD(HOUR, 1, ts)",
        "TIMESTAMPDIFF(SECOND, ts, ts)",
        "unix_timestamp(ts)",
        "from_unixtime(l)",
        "hour(ts)",
    ),
    *("months_between(ts, ts)", "last_day(dt)", "next_day(dt, 'Mon')", "make_date(2026, 1, i)", "window(ts, '1 hour')"),
    *("a[0]", "m['k']", "r.y", "r['y']", "t.r.y", "ARRAY(1, 2)[i]", "ARRAY(i, l)", "MAP('a', i)", "STRUCT(i, s)"),
    *(
        "STRUCT(i AS p, s AS q)",
        "NAMED_STRUCT('p', i)",
        "(i, s)",
        "size(a)",
        "element_at(a, 1)",
        "array_contains(a, 1)",
    ),
    *("transform(a, e -> e + i)", "transform(a, (e, n) -> e + n)", "filter(a, e -> e > 1)", "exists(a, e -> e > 1)"),
    *("aggregate(a, 0, (acc, e) -> acc + e)", "map_filter(m, (k, v) -> v > 1)", "zip_with(a, a, (p, q) -> p + q)"),
    *("substring(s, 1, 2)", "SUBSTRING(s FROM 1 FOR 2)", "substr(s, 1)", "TRIM(s)", "TRIM(BOTH 'x' FROM s)"),
    *(
        "TRIM(LEADING FROM s)",
        "POSITION('a' IN s)",
        "OVERLAY(s PLACING 'b' FROM 1)",
        "upper(s)",
        "concat_ws('-', s, s)",
    ),
    *(
        "lpad(s, 5)",
        "split(s, ',')",
        "regexp_extract(s, 'a(b)', 1)",
        "regexp_replace(s, 'a', 'b')",
        "s COLLATE UTF8_LCASE",
    ),
    *("round(d, 1)", "bround(d)", "CEIL(d)", "ceil(d, 1)", "FLOOR(d)", "pow(d, 2)", "log(10, d)", "ln(d)", "mod(i, 2)"),
    *("pmod(i, 2)", "greatest(i, l)", "least(i, l)", "coalesce(i, l)", "nvl(i, l)", "ifnull(i, l)", "nvl2(i, l, d)"),
    *("nullif(i, l)", "zeroifnull(i)", "decode(s, 'a', 1, 2)", "get_json_object(s, '$.a')", "from_json(s, 'a INT')"),
    *("to_json(r)", "parse_json('{}')", "md5(s)", "sha2(s, 256)", "hash(i, s)", "xxhash64(s)", "base64(x)", "hex(x)"),
    *("CURRENT_DATE", "current_date()", "CURRENT_TIMESTAMP", "now()", "isnull(i)", "isnan(d)", "try_divide(i, 0)"),
    *("array_sort(a)", "sort_array(a)", "array_join(a, ',')", "slice(a, 1, 1)", "sequence(1, i)", "flatten(ARRAY(a))"),
    *("str_to_map(s)", "map_keys(m)", "map_entries(m)", "to_number(s, '9')", "to_char(w, '9.9')", "typeof(i)"),
)
"""Expressions over the columns of `t`."""

AGGREGATES = (
    *("count(*)", "COUNT(i)", "count(DISTINCT i, s)", "sum(i)", "SUM(DISTINCT i)", "avg(w)", "mean(d)", "min(s)"),
    *("max(ts)", "sum(i) FILTER (WHERE i > 1)", "count_if(b)", "bool_and(b)", "every(b)", "any(b)", "some(b)"),
    *("stddev(d)", "stddev_samp(d)", "std(d)", "variance(d)", "var_pop(d)", "corr(d, d)", "first(i)", "first(i, true)"),
    *("FIRST(i) IGNORE NULLS", "last(i)", "any_value(i)", "collect_list(i)", "collect_set(s)", "array_agg(i)"),
    *("approx_count_distinct(s)", "approx_percentile(d, 0.5)", "percentile(d, 0.5)", "median(d)", "mode(s)"),
    *("percentile_cont(0.5) WITHIN GROUP (ORDER BY d)", "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY d DESC)"),
    *("max_by(s, i)", "min_by(s, i)", "listagg(s, ',') WITHIN GROUP (ORDER BY s)", "string_agg(s, ',')"),
    *("bit_and(i)", "bit_or(i)", "bit_xor(i)", "skewness(d)", "kurtosis(d)", "try_sum(i)", "try_avg(i)"),
    *("hll_sketch_estimate(hll_sketch_agg(i))", "regr_slope(d, d)", "sum(i) * 2 + count(*)", "grouping_id()"),
)
"""Aggregates over `t`, by the groups of `s`."""

QUERIES = (
    "SELECT row_number() OVER (PARTITION BY s ORDER BY i) FROM t",
    "SELECT sum(i) OVER (PARTITION BY s ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
    "SELECT sum(i) OVER (PARTITION BY s ORDER BY i RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM t",
    "SELECT lag(i, 1, 0) OVER (PARTITION BY s ORDER BY i DESC NULLS LAST) FROM t",
    "SELECT first_value(i) IGNORE NULLS OVER (PARTITION BY s ORDER BY i) FROM t",
    "SELECT ntile(4) OVER w, percent_rank() OVER w FROM t WINDOW w AS (PARTITION BY s ORDER BY i)",
    "SELECT i FROM t WHERE i > 1 AND (s = 'a' OR NOT b)",
    "SELECT s, count(*) FROM t GROUP BY s HAVING count(*) > 1 ORDER BY 2 DESC, s LIMIT 3 OFFSET 1",
    "SELECT s, i, count(*) FROM t GROUP BY ROLLUP(s, i)",
    "SELECT s, i, count(*) FROM t GROUP BY s, i WITH CUBE",
    "SELECT s, i, count(*) FROM t GROUP BY GROUPING SETS ((s), (s, i), ())",
    "SELECT s, count(*) FROM t GROUP BY ALL",
    "SELECT DISTINCT s, i FROM t",
    "SELECT * EXCEPT (s) FROM t",
    "SELECT t.*, 1 AS one FROM t",
    "SELECT p.i FROM t p JOIN t q ON p.i = q.i",
    "SELECT p.i FROM t p INNER JOIN t q USING (i)",
    "SELECT p.i FROM t p LEFT OUTER JOIN t q ON p.i = q.i AND q.b",
    "SELECT p.i FROM t p RIGHT JOIN t q ON p.i <=> q.i",
    "SELECT p.i FROM t p FULL OUTER JOIN t q ON p.i = q.i",
    "SELECT p.i FROM t p LEFT SEMI JOIN t q ON p.i = q.i",
    "SELECT p.i FROM t p LEFT ANTI JOIN t q ON p.i = q.i",
    "SELECT p.i FROM t p ANTI JOIN t q ON p.i = q.i",
    "SELECT p.i FROM t p CROSS JOIN t q",
    "SELECT p.i FROM t p NATURAL JOIN t q",
    "SELECT p.i FROM t p, t q WHERE p.i = q.i",
    "SELECT p.i FROM t AS p JOIN LATERAL (SELECT q.i FROM t q WHERE q.i = p.i) AS z",
    "SELECT i FROM t WHERE EXISTS (SELECT 1 FROM t q WHERE q.i = t.i)",
    "SELECT i FROM t WHERE i IN (SELECT l FROM t)",
    "SELECT i FROM t WHERE i NOT IN (SELECT l FROM t)",
    "SELECT i FROM t p WHERE i > (SELECT avg(i) FROM t q WHERE q.s = p.s)",
    "SELECT i, (SELECT max(i) FROM t q) FROM t",
    "SELECT i FROM t UNION ALL SELECT l FROM t",
    "SELECT i FROM t UNION SELECT l FROM t",
    "SELECT i FROM t INTERSECT SELECT i FROM t",
    "SELECT i FROM t EXCEPT SELECT l FROM t",
    "SELECT i FROM t MINUS SELECT i FROM t",
    "(SELECT i FROM t) UNION ALL (SELECT i FROM t ORDER BY i LIMIT 1)",
    "WITH c AS (SELECT i FROM t), e AS (SELECT i + 1 AS j FROM c) SELECT j FROM e",
    "SELECT i, e FROM t LATERAL VIEW EXPLODE(a) x AS e",
    "SELECT i, k, v FROM t LATERAL VIEW OUTER EXPLODE(m) x AS k, v",
    "SELECT i, explode(a) AS e FROM t",
    "SELECT i, posexplode(a) FROM t",
    "SELECT i, x.col FROM t, LATERAL explode(a) AS x",
    "SELECT i AS p, p + 1 AS q FROM t",
    "SELECT i `quoted name` FROM t",
    "SELECT * FROM (SELECT i, s FROM t) PIVOT (sum(i) FOR s IN ('a', 'b'))",
    "SELECT * FROM (SELECT i, l FROM t) UNPIVOT (v FOR k IN (i, l))",
    "SELECT i FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (1)",
    "SELECT /*+ BROADCAST(q) */ p.i FROM t p JOIN t q ON p.i = q.i",
    "FROM t |> WHERE i > 1 |> SELECT i",
    "SELECT i -- a comment\nFROM t /* another */",
)


OTHER_MEANING = (
    "SELECT i >>> 1 FROM t",
    "SELECT 'a' 'b' FROM t",
    "SELECT p.i FROM t AS p JOIN LATERAL (SELECT q.i FROM t q WHERE q.i = p.i) AS z",
    "SELECT i FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (1)",
    "FROM t |> WHERE i > 1 |> SELECT i",
)
"""Forms that are not read in their meaning; a test compares the list with Spark's verdict."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text, where it comes from, and why it is not taken apart; no reason if it is."""

    origin: str
    text: str
    reason: str | None


def examples(session: SparkSession) -> Iterator[tuple[str, str]]:
    """The documented examples of every built-in function that Spark itself can analyse."""
    for (name,) in session.sql("SHOW SYSTEM FUNCTIONS").collect():
        if not re.match(r"[a-z_]", name):
            continue
        text = "\n".join(row[0] for row in session.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
        for example in _EXAMPLE.findall(text):
            yield f"function {name}", example


def forms() -> Iterator[tuple[str, str]]:
    """The texts of this module, over a relation `t`."""
    for expression in EXPRESSIONS:
        yield "expression", f"SELECT {expression} FROM t"
    for aggregate in AGGREGATES:
        yield "aggregate", f"SELECT s, {aggregate} FROM t GROUP BY {'ROLLUP(s)' if 'grouping' in aggregate else 's'}"
    for query in QUERIES:
        yield "query", query


def measure(session: SparkSession, texts: Iterable[tuple[str, str]]) -> list[Case]:
    """Those of the texts that Spark can analyse, with the reason if Headwater does not read one in its meaning."""
    own = session.newSession()
    values = ", ".join(f"{value} AS {name}" for name, value in COLUMNS.items())
    own.sql(f"SELECT {values}").createOrReplaceTempView("t")
    found = []
    for origin, text in texts:
        try:
            frame = own.sql(text)
        except Exception:  # an example that needs files, other settings or another version: not a query here
            continue
        try:
            check_same(own, text, frame)
        except Opaque as opaque:
            found.append(Case(origin, text, opaque.reason))
        else:
            found.append(Case(origin, text, None))
    return found


def main() -> None:
    from headwater.engine import Lake

    with tempfile.TemporaryDirectory() as folder, Lake.init(Path(folder)) as lake:
        documented = measure(lake.spark, examples(lake.spark))
        written = measure(lake.spark, forms())
    for title, cases in (("examples of functions", documented), ("forms", written)):
        same = sum(case.reason is None for case in cases)
        print(f"{title}: {same} of {len(cases)} ({same / len(cases):.1%})")
    for case in (*documented, *written):
        if case.reason is not None:
            print(f"- {case.origin}: {' '.join(case.text.split())}")


if __name__ == "__main__":
    main()
