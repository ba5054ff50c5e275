"""The change of a query's answer, as SQL over the changes of its tables. Pure.

Every table has three versions: `old` and `new`, its contents at two snapshots, and `delta`, the rows between them with
a weight (`__w`) of +1 or -1. Three questions are answered about a node of the tree:

- `content`: its rows in the old or the new version, perhaps only those with certain keys;
- `delta`: the weighted rows by which its new version differs from its old one;
- `touched`: the keys of which the rows may differ.

Filters, projections, unions and inner joins are linear: their delta is computed from deltas. Whatever can be cut by a
key (groups, distinct rows, window partitions, outer joins) is computed anew for the touched keys only:
`delta = new rows of those keys - old rows of those keys`. What is neither raises Opaque with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from headwater.views.analyse.conditions import equality
from headwater.views.analyse.functions import uses_clock
from headwater.views.analyse.scope import Opaque
from headwater.views.casts import cast_column
from headwater.views.relation import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Inner,
    Item,
    Join,
    Project,
    Relation,
    Scan,
    Union,
    Window,
    column,
    column_name,
    columns,
    columns_of,
    substitute,
    walk,
)

WEIGHT = "__w"
KEY = "__key"
"""Columns of keys are called so, with their place behind."""
Version = Literal["old", "new", "delta"]
When = Literal["old", "new"]


@dataclass(frozen=True, slots=True)
class Prune:
    """A hint: rows whose `column` is in no key are not needed."""

    column: str
    keys: str
    position: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A version of a table that the SQL reads under `name`.

    `casts` are columns that are restricted by keys of another type, to which they are cast: they skip no file.
    """

    name: str
    table: str
    version: Version
    columns: tuple[str, ...]
    prunes: tuple[Prune, ...] = ()
    casts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that have to be known before the SQL that uses them is planned: rows (__key0, __key1, ...) of `sql`.

    `hint`: they only help to skip files, and may be left out. `origin`: a table and columns of which the changed rows
    have all these keys, perhaps among others; whoever can read those more quickly may.
    """

    name: str
    sql: str
    width: int
    hint: bool = False
    origin: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Weighted rows. `signed`: some weights may be negative."""

    sql: str
    signed: bool


@dataclass(frozen=True, slots=True)
class Clock:
    """The moments that now() means in the old and in the new version, as SQL literals."""

    old: str
    new: str

    def at(self, when: When) -> str:
        return self.old if when == "old" else self.new


@dataclass(frozen=True, slots=True)
class Only:
    """A restriction to rows whose expressions, at their positions, are in a set of keys; or just a hint of it."""

    exprs: tuple[tuple[int, exp.Expression], ...] = field(hash=False)
    keys: str
    hint: bool = False

    def over(self, values: Mapping[str, exp.Expression]) -> Only:
        return replace(self, exprs=tuple((place, substitute(expr, dict(values))) for place, expr in self.exprs))

    @property
    def used(self) -> frozenset[str]:
        return frozenset(name for _, expr in self.exprs for name in columns_of(expr))


class Differ:
    """Writes SQL for one refresh: `changed` are the tables that moved, with whether rows left them."""

    def __init__(
        self,
        changed: Mapping[str, bool],
        clock: Clock | None = None,
        names: Callable[[Scan, Version], str] = lambda scan, version: f"{scan.table}__{version}",
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._names = names
        self.leaves: dict[str, Leaf] = {}
        self.keys: dict[str, Keys] = {}
        self._origins: dict[str, tuple[str, tuple[str, ...]] | None] = {}

    # -- contents -------------------------------------------------------------------------------------------------

    def content(self, node: Relation, when: When, only: Only | None = None) -> str:
        """The node's rows, exactly those that `only` allows."""
        match node:
            case Scan():
                return self._semi(self._scan(node, when, only), only)
            case Filter():
                pushed = self.content(node.child, when, only)
                return f"SELECT * FROM ({pushed}) WHERE {self._sql(node.condition, when)}"
            case Project():
                inside = only.over({item.name: item.expr for item in node.items}) if only else None
                return _select(self._items(node.items, when), self.content(node.child, when, inside))
            case Generate() if only is None or only.used <= set(columns(node.child)):
                return self._generate(node, self.content(node.child, when, only), when)
            case Inner():
                return self._inner(node, when, only)
            case Join(kind="left" | "semi" | "anti") if only is None or only.used <= set(columns(node.left)):
                left = self.content(node.left, when, only)
                right = self.content(node.right, when, _other_side(node, only))
                return self._join(node, left, right, when)
            case Join() if only is None:
                return self._join(node, self.content(node.left, when), self.content(node.right, when), when)
            case Union():
                parts = [(child, self.content(child, when, _into(node, child, only))) for child in node.children]
                return " UNION ALL ".join(f"(SELECT {_renamed(of, node.names)} FROM ({sql}))" for of, sql in parts)
            case Aggregate() if only is None or only.used <= {item.name for item in node.keys}:
                inside = only.over({item.name: item.expr for item in node.keys}) if only else None
                return self._aggregate(node, self.content(node.child, when, inside), when)
            case Distinct():
                return f"SELECT DISTINCT * FROM ({self.content(node.child, when, only)})"
            case Window() if only is None or only.used <= set(node.partition):
                return self._window(node, self.content(node.child, when, only), when)
            case _:
                return self._semi(self.content(node, when), only)

    def _scan(self, node: Scan, when: When, only: Only | None = None) -> str:
        prunes, casts = [], []
        table_column = dict(node.columns)
        for place, expr in only.exprs if only else ():
            name = column_name(expr)
            if name in table_column:
                prunes.append(Prune(table_column[name], only.keys, place))  # type: ignore[union-attr]
            elif (cast := cast_column(expr)) is not None and cast[0] in table_column:
                casts.append((table_column[cast[0]], cast[1]))
        version: When = when if node.table in self._changed else "new"
        leaf = self._leaf(node, version, tuple(prunes), tuple(casts))
        names = ", ".join(f"{_q(name)} AS {_q(tree)}" for tree, name in node.columns)
        if node.weight is None:
            return f"SELECT {names} FROM {_q(leaf)}"
        trees = ", ".join(_q(tree) for tree, _ in node.columns)
        net = net_rows(leaf, node.columns, node.weight, node.identities)
        return (
            f"SELECT {trees} FROM (SELECT * FROM ({net}) WHERE {WEIGHT} > 0) "
            f"LATERAL VIEW EXPLODE(SEQUENCE(CAST(1 AS BIGINT), {WEIGHT})) __n AS __n"
        )

    def _leaf(
        self,
        node: Scan,
        version: Version,
        prunes: tuple[Prune, ...] = (),
        casts: tuple[tuple[str, str], ...] = (),
    ) -> str:
        wanted = tuple(name for _, name in node.columns) + ((node.weight,) if node.weight else ())
        suffix = "".join(f"__{prune.keys}_{prune.column}" for prune in prunes)
        name = self._names(node, version) + suffix
        if (held := self.leaves.get(name)) is not None:
            wanted = tuple(dict.fromkeys((*held.columns, *wanted)))
            casts = tuple(dict.fromkeys((*held.casts, *casts)))
        self.leaves[name] = Leaf(name, node.table, version, wanted, prunes, casts)
        return name

    def _semi(self, sql: str, only: Only | None) -> str:
        if only is None or only.hint or not only.exprs:
            return sql
        conditions = " AND ".join(f"{self._sql(expr, 'new')} <=> __k.{KEY}{place}" for place, expr in only.exprs)
        return f"SELECT * FROM ({sql}) LEFT SEMI JOIN {_q(only.keys)} AS __k ON {conditions}"

    def _inner(self, node: Inner, when: When, only: Only | None) -> str:
        if only is None:
            return self._inner_of([self.content(each, when) for each in node.inputs], node, when)
        same = _equal_columns(node.conditions)
        parts, exact = [], only.hint
        for each in node.inputs:
            mine = _available(only, set(columns(each)), same)
            exact = exact or len(mine.exprs) == len(only.exprs)
            parts.append(self.content(each, when, mine if mine.exprs else None))
        sql = self._inner_of(parts, node, when)
        return sql if exact else self._semi(sql, only)

    def _inner_of(self, parts: Sequence[str], node: Inner, when: When, first: int = 0) -> str:
        """The join of the inputs' SQL, beginning with one and going on with inputs that a condition connects to it."""
        waiting = [number for number in range(len(parts)) if number != first]
        left = list(node.conditions)
        have = set(columns(node.inputs[first]))
        sql = f"SELECT * FROM ({parts[first]})"
        while waiting:
            chosen = next((n for n in waiting if _connects(left, have, set(columns(node.inputs[n])))), waiting[0])
            waiting.remove(chosen)
            have |= set(columns(node.inputs[chosen]))
            ready = [each for each in left if columns_of(each) <= have]
            left = [each for each in left if not columns_of(each) <= have]
            condition = " AND ".join(self._sql(each, when, wrap=True) for each in ready)
            sql += f" JOIN ({parts[chosen]}) ON {condition}" if ready else f" CROSS JOIN ({parts[chosen]})"
        return sql

    def _join(self, node: Join, left: str, right: str, when: When) -> str:
        word = {"left": "LEFT OUTER", "full": "FULL OUTER", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}[node.kind]
        condition = " AND ".join(self._sql(each, when, wrap=True) for each in node.conditions) or "TRUE"
        return f"SELECT * FROM ({left}) {word} JOIN ({right}) ON {condition}"

    def _aggregate(self, node: Aggregate, child: str, when: When) -> str:
        items = self._items((*node.keys, *node.values), when)
        group = " GROUP BY " + ", ".join(str(n + 1) for n in range(len(node.keys))) if node.keys else ""
        return _select(items or ["1 AS `__one`"], child) + group

    def _window(self, node: Window, child: str, when: When) -> str:
        return _select(["*", *self._items(node.items, when)], child)

    def _generate(self, node: Generate, child: str, when: When, extra: Sequence[str] = ()) -> str:
        outer = " OUTER" if node.outer else ""
        # Spark keeps the backticks of a quoted name here, so it gets plain ones.
        made = [f"__g{number}" for number in range(len(node.names))]
        shown = [*(_q(name) for name in columns(node.child)), *extra]
        shown += [f"{plain} AS {_q(name)}" for plain, name in zip(made, node.names, strict=True)]
        call = self._sql(node.generator, when)
        return f"SELECT {', '.join(shown)} FROM ({child}) LATERAL VIEW{outer} {call} __g AS {', '.join(made)}"

    def _items(self, items: Iterable[Item], when: When) -> list[str]:
        return [f"{self._sql(item.expr, when)} AS {_q(item.name)}" for item in items]

    def _sql(self, expr: exp.Expression, when: When, *, wrap: bool = False) -> str:
        text = _filled(expr, self._clock, when).sql(dialect="spark")
        return f"({text})" if wrap and isinstance(expr, exp.Or) else text

    # -- deltas ---------------------------------------------------------------------------------------------------

    def delta(self, node: Relation) -> Delta | None:
        """The weighted rows by which the node's new version differs from its old one; None if it does not."""
        if not self._moves(node):
            return None
        match node:
            case Scan():
                names = ", ".join(f"{_q(name)} AS {_q(tree)}" for tree, name in node.columns)
                weight = f"{WEIGHT} * {_q(node.weight)} AS {WEIGHT}" if node.weight else WEIGHT
                sql = f"SELECT {names}, {weight} FROM {_q(self._leaf(node, 'delta'))}"
                return Delta(sql, self._changed[node.table] or node.weight is not None)
            case Filter():
                return self._filter_delta(node)
            case Project():
                return self._project_delta(node)
            case Generate():
                child = self._delta(node.child)
                if uses_clock(node.generator):
                    raise Opaque("now() in a generator has no delta rule")
                return Delta(self._generate(node, child.sql, "new", [WEIGHT]), child.signed)
            case Inner():
                return self._inner_delta(node)
            case Join(kind="full"):
                return self._full_delta(node)
            case Join():
                return self._join_delta(node)
            case Union():
                found = [(child, self.delta(child)) for child in node.children]
                return _union(
                    [
                        Delta(f"SELECT {_renamed(child, node.names)}, {WEIGHT} FROM ({delta.sql})", delta.signed)
                        for child, delta in found
                        if delta is not None
                    ]
                )
            case Aggregate():
                if not node.keys:
                    raise Opaque(_TOTAL)
                return self._cut(node, [column(item.name) for item in node.keys])
            case Distinct():
                return self._cut(node, [column(name) for name in columns(node)])
            case Window():
                if not node.partition:
                    raise Opaque("a window function without PARTITION BY, or with several that share no column")
                return self._cut(node, [column(name) for name in node.partition])

    def _delta(self, node: Relation) -> Delta:
        found = self.delta(node)
        assert found is not None, "asked for the delta of what does not move"
        return found

    def _moves(self, node: Relation) -> bool:
        return any(
            (isinstance(each, Scan) and each.table in self._changed) or (self._clock is not None and has_clock(each))
            for each in walk(node)
        )

    def _filter_delta(self, node: Filter) -> Delta:
        parts = []
        if (child := self.delta(node.child)) is not None:
            sql = f"SELECT * FROM ({child.sql}) WHERE {self._sql(node.condition, 'new')}"
            parts.append(Delta(sql, child.signed))
        if uses_clock(node.condition) and self._clock is not None:
            parts.append(self._clock_delta(node))
        return _union(parts)

    def _clock_delta(self, node: Filter) -> Delta:
        """Old rows that pass the filter at only one of the two moments."""
        was, now = self._sql(node.condition, "old"), self._sql(node.condition, "new")
        child = self.content(node.child, "old")
        weight = f"CASE WHEN {now} THEN 1 ELSE -1 END AS {WEIGHT}"
        differs = f"COALESCE({was}, FALSE) <> COALESCE({now}, FALSE)"
        bound = " AND ".join(["TRUE", *_between(node.condition, self._clock)])
        return Delta(f"SELECT *, {weight} FROM ({child}) WHERE {bound} AND {differs}", True)

    def _project_delta(self, node: Project) -> Delta:
        if self._clock is not None and any(uses_clock(item.expr) for item in node.items):
            raise Opaque("now() in the select list changes every row")
        child = self._delta(node.child)
        return Delta(_select([*self._items(node.items, "new"), WEIGHT], child.sql), child.signed)

    def _inner_delta(self, node: Inner) -> Delta:
        """One term per input that moved: inputs before it in their new version, inputs behind it in their old one."""
        if self._clock is not None and any(uses_clock(each) for each in node.conditions):
            raise Opaque("now() in a join condition has no delta rule")
        terms = []
        for number, moved in enumerate(node.inputs):
            delta = self.delta(moved)
            if delta is None:
                continue
            hint = self._hint(moved, delta, node)
            parts = [
                delta.sql if n == number else self.content(each, "new" if n < number else "old", hint(each))
                for n, each in enumerate(node.inputs)
            ]
            names = ", ".join(_q(name) for name in columns(node))
            terms.append(
                Delta(f"SELECT {names}, {WEIGHT} FROM ({self._inner_of(parts, node, 'new', number)})", delta.signed)
            )
        return _union(terms)

    def _hint(self, moved: Relation, delta: Delta, node: Inner) -> _Hints:
        return _Hints(self, moved, delta, node.conditions)

    def _join_delta(self, node: Join) -> Delta:
        """Linear in the left side; rows of the left side that meet a touched key of the right side are done anew."""
        if self._clock is not None and any(uses_clock(each) for each in node.conditions):
            raise Opaque("now() in a join condition has no delta rule")
        terms = []
        names = ", ".join(_q(name) for name in columns(node))
        if (left := self.delta(node.left)) is not None:
            hint = _Hints(self, node.left, left, node.conditions)(node.right)
            sql = self._join(node, left.sql, self.content(node.right, "new", hint), "new")
            terms.append(Delta(f"SELECT {names}, {WEIGHT} FROM ({sql})", left.signed))
        if self._moves(node.right):
            if not node.keys:
                plain = f"{_article(node.kind)} join without an equality, of which the right side changed"
                raise Opaque(_TOTAL if _is_total(node.right) else plain)
            touched = self._touched(node.right, [column(right) for _, right in node.keys])
            if touched is not None:
                keys = self.new_keys(touched, len(node.keys))
                left_old = self.content(node.left, "old", _only(keys, [column(left) for left, _ in node.keys]))
                for when, weight in (("old", -1), ("new", 1)):
                    right = self.content(node.right, when, _only(keys, [column(name) for _, name in node.keys]))  # type: ignore[arg-type]
                    sql = self._join(node, left_old, right, when)  # type: ignore[arg-type]
                    terms.append(Delta(f"SELECT {names}, {weight} AS {WEIGHT} FROM ({sql})", True))
        return _union(terms)

    def _full_delta(self, node: Join) -> Delta:
        if not node.keys:
            raise Opaque("a full join without an equality")
        lefts, rights = [column(left) for left, _ in node.keys], [column(right) for _, right in node.keys]
        found = [
            sql
            for sql in (
                self._touched(node.left, lefts) if self._moves(node.left) else None,
                self._touched(node.right, rights) if self._moves(node.right) else None,
            )
            if sql is not None
        ]
        keys = self.new_keys(" UNION ".join(found), len(node.keys))
        terms = []
        for when, weight in (("old", -1), ("new", 1)):
            left = self.content(node.left, when, _only(keys, lefts))  # type: ignore[arg-type]
            right = self.content(node.right, when, _only(keys, rights))  # type: ignore[arg-type]
            sql = self._join(node, left, right, when)  # type: ignore[arg-type]
            terms.append(Delta(f"SELECT *, {weight} AS {WEIGHT} FROM ({sql})", True))
        return _union(terms)

    def _cut(self, node: Relation, by: Sequence[exp.Expression]) -> Delta:
        """New rows of the touched keys, minus old rows of the touched keys."""
        touched = self._touched(node, by)
        assert touched is not None
        keys = self.new_keys(touched, len(by))
        only = _only(keys, by)
        terms = [
            Delta(f"SELECT *, {weight} AS {WEIGHT} FROM ({self.content(node, when, only)})", True)  # type: ignore[arg-type]
            for when, weight in (("old", -1), ("new", 1))
        ]
        return _union(terms)

    # -- touched keys ---------------------------------------------------------------------------------------------

    def touched(self, node: Relation, by: Sequence[exp.Expression]) -> str | None:
        """Rows (__key0, ...): every value of the expressions `by` for which the node's rows may have changed."""
        return self._touched(node, by) if self._moves(node) else None

    def _touched(self, node: Relation, by: Sequence[exp.Expression]) -> str | None:
        used = frozenset(name for expr in by for name in columns_of(expr))
        match node:
            case Aggregate() if node.keys and used <= {item.name for item in node.keys}:
                return self.touched(node.child, _over(by, {item.name: item.expr for item in node.keys}))
            case Window() if used <= set(node.partition):
                return self.touched(node.child, by)
            case Distinct():
                return self.touched(node.child, by)
            case Project() if _is_cut(node.child) and not any(uses_clock(item.expr) for item in node.items):
                return self.touched(node.child, _over(by, {item.name: item.expr for item in node.items}))
            case Filter() if _is_cut(node.child) and not uses_clock(node.condition):
                return self.touched(node.child, by)
            case Union() if any(_is_cut(child) for child in node.children):
                found = [self.touched(child, _over(by, _columns_as(node.names, child))) for child in node.children]
                return " UNION ".join(sql for sql in found if sql is not None)
            case Join(kind="left" | "semi" | "anti") if node.keys and used <= set(columns(node.left)):
                return self._touched_join(node, by)
            case _:
                delta = self.delta(node)
                if delta is None:
                    return None
                sql = f"SELECT DISTINCT {self._ks(by)} FROM ({delta.sql})"
                self._origins[sql] = _origin(node, by)
                return sql

    def _touched_join(self, node: Join, by: Sequence[exp.Expression]) -> str:
        """Keys touched on the left, and keys of left rows that meet a touched key of the right side."""
        parts = [self.touched(node.left, by)]
        if self._moves(node.right):
            touched = self.touched(node.right, [column(right) for _, right in node.keys])
            lefts = [column(left) for left, _ in node.keys]
            if touched is not None and list(by) == lefts:
                parts.append(touched)
            elif touched is not None:
                keys = self.new_keys(touched, len(node.keys))
                for when in ("old", "new"):
                    rows = self.content(node.left, when, _only(keys, lefts))
                    parts.append(f"SELECT DISTINCT {self._ks(by)} FROM ({rows})")
        return " UNION ".join(f"({part})" for part in parts if part is not None)

    def _ks(self, by: Sequence[exp.Expression]) -> str:
        return ", ".join(f"{self._sql(expr, 'new')} AS {KEY}{place}" for place, expr in enumerate(by)) or f"1 AS {KEY}0"

    def new_keys(self, sql: str, width: int, *, hint: bool = False) -> str:
        """The name under which the keys of `sql` can be used."""
        for held in self.keys.values():
            if held.sql == sql and (held.hint or not hint):
                if held.hint and not hint:
                    self.keys[held.name] = replace(held, hint=False)
                return held.name
        name = f"__keys{len(self.keys) + 1}"
        self.keys[name] = Keys(name, sql, width, hint, self._origins.get(sql))
        return name


class _Hints:
    """What a delta's keys say about the inputs that it is joined with; computed only where an input can use it."""

    def __init__(self, differ: Differ, moved: Relation, delta: Delta, conditions: Iterable[exp.Expression]) -> None:
        self._differ = differ
        self._moved = moved
        self._have = set(columns(moved))
        self._delta = delta
        self._pairs = [pair for each in conditions if (pair := equality(each)) is not None]

    def __call__(self, other: Relation) -> Only | None:
        theirs = set(columns(other))
        for left, right in (*self._pairs, *((b, a) for a, b in self._pairs)):
            if left in self._have and right in theirs:
                sql = f"SELECT DISTINCT {_q(left)} AS {KEY}0 FROM ({self._delta.sql})"
                self._differ._origins[sql] = _origin(self._moved, [column(left)])
                keys = self._differ.new_keys(sql, 1, hint=True)
                return Only(((0, column(right)),), keys, hint=True)
        return None


def net_rows(
    table: str,
    names: Sequence[tuple[str, str]],
    weight: str,
    identities: Iterable[tuple[str, tuple[str, ...]]],
) -> str:
    """SQL for each different row of a table once, with the sum of its weights as `__w`.

    `names` are the columns as (name made, name in the table).
    """
    other = dict(identities)
    shown: list[str] = []
    keys: list[str] = []
    for made, name in names:
        keys += other.get(name, (_q(name),))
        # All values of a group are the same here, whichever of them is taken.
        taken = f"{'MAX' if len(other[name]) > 1 else 'ANY_VALUE'}({_q(name)})" if name in other else _q(name)
        shown.append(f"{taken} AS {_q(made)}")
    listed = ", ".join([*shown, f"CAST(SUM({_q(weight)}) AS BIGINT) AS {WEIGHT}"])
    return f"SELECT {listed} FROM {_q(table)} GROUP BY {', '.join(keys)}"


def _only(keys: str, exprs: Sequence[exp.Expression]) -> Only:
    return Only(tuple(enumerate(exprs)), keys)


def _over(by: Sequence[exp.Expression], values: Mapping[str, exp.Expression]) -> list[exp.Expression]:
    return [substitute(expr, dict(values)) for expr in by]


def _origin(node: Relation, by: Sequence[exp.Expression]) -> tuple[str, tuple[str, ...]] | None:
    """The table and its columns that the expressions merely rename, where every changed row comes from one of its."""
    names = [column_name(expr) for expr in by]
    match node:
        case Scan(weight=None):
            table_column = dict(node.columns)
            found = [table_column[name] for name in names if name in table_column]
            return (node.table, tuple(found)) if len(found) == len(names) else None
        case Filter() if not uses_clock(node.condition):
            return _origin(node.child, by)
        case Project():
            exprs = {item.name: item.expr for item in node.items}
            return None if None in names else _origin(node.child, [exprs[name] for name in names if name is not None])
        case _:
            return None


def _is_cut(node: Relation) -> bool:
    """Whether something below is cut by keys, so that its delta costs more than its touched keys."""
    return any(isinstance(each, Aggregate | Distinct | Window | Join) for each in walk(node))


_TOTAL = "a total over all rows that is used inside the query changes with every row"


def _is_total(node: Relation) -> bool:
    """Whether these are aggregates without groups, such as a scalar subquery joins to the query."""
    while isinstance(node, Filter | Project):
        node = node.child
    return isinstance(node, Aggregate) and not node.keys


def has_clock(node: Relation) -> bool:
    """Whether the node itself depends on the moment of the refresh."""
    match node:
        case Filter():
            return uses_clock(node.condition)
        case Project() | Window():
            return any(uses_clock(item.expr) for item in node.items)
        case Aggregate():
            return any(uses_clock(item.expr) for item in (*node.keys, *node.values))
        case Inner() | Join():
            return any(uses_clock(each) for each in node.conditions)
        case Generate():
            return uses_clock(node.generator)
        case _:
            return False


def _other_side(node: Join, only: Only | None) -> Only | None:
    """The restriction of the left side in terms of the right side's columns, where equalities carry it over."""
    if only is None:
        return None
    across = dict(node.keys)
    kept = [(place, column(across[name])) for place, e in only.exprs if (name := column_name(e)) in across]
    return replace(only, exprs=tuple(kept), hint=only.hint or len(kept) < len(only.exprs)) if kept else None


def _into(node: Union, child: Relation, only: Only | None) -> Only | None:
    return None if only is None else only.over(_columns_as(node.names, child))


def _columns_as(names: Sequence[str], child: Relation) -> dict[str, exp.Expression]:
    return {name: column(mine) for name, mine in zip(names, columns(child), strict=True)}


def _available(only: Only, mine: set[str], same: Mapping[str, frozenset[str]]) -> Only:
    """The part of a restriction that can be said with the columns `mine`, through equalities where needed."""
    kept: list[tuple[int, exp.Expression]] = []
    for place, expr in only.exprs:
        if columns_of(expr) <= mine:
            kept.append((place, expr))
        elif (name := column_name(expr)) is not None and (found := sorted(same.get(name, frozenset()) & mine)):
            kept.append((place, column(found[0])))
    return replace(only, exprs=tuple(kept))


def _equal_columns(conditions: Iterable[exp.Expression]) -> dict[str, frozenset[str]]:
    """For each column, the columns that equal it where all conditions hold."""
    groups: dict[str, set[str]] = {}
    for condition in conditions:
        if (pair := equality(condition)) is not None:
            merged = groups.get(pair[0], {pair[0]}) | groups.get(pair[1], {pair[1]})
            for name in merged:
                groups[name] = merged
    return {name: frozenset(group) for name, group in groups.items()}


def _connects(conditions: Iterable[exp.Expression], have: set[str], new: set[str]) -> bool:
    return any(
        (pair := equality(each)) is not None
        and ((pair[0] in have and pair[1] in new) or (pair[1] in have and pair[0] in new))
        for each in conditions
    )


def _between(condition: exp.Expression, clock: Clock | None) -> list[str]:
    """For `column > f(now)`: that the column lies between the two moments' bounds, so that files can be skipped."""
    if clock is None or not isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE):
        return []
    for mine, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if column_name(mine) is not None and not columns_of(other) and uses_clock(other):
            name = mine.sql(dialect="spark")
            low, high = (_filled(other, clock, when).sql(dialect="spark") for when in ("old", "new"))
            return [f"{name} >= LEAST({low}, {high})", f"{name} <= GREATEST({low}, {high})"]
    return []


def _filled(expr: exp.Expression, clock: Clock | None, when: When) -> exp.Expression:
    """The expression with the clock's placeholders as literals."""
    if not uses_clock(expr):
        return expr
    assert clock is not None, "a query that uses the clock is planned with one"
    moment = f"TIMESTAMP '{clock.at(when)}'"

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Placeholder):
            return exp.Var(this=moment if node.name == "now" else f"CAST({moment} AS DATE)")
        return node

    return expr.copy().transform(put)


def _union(parts: Sequence[Delta]) -> Delta:
    assert parts
    if len(parts) == 1:
        return parts[0]
    return Delta(" UNION ALL ".join(f"({part.sql})" for part in parts), any(part.signed for part in parts))


def _renamed(child: Relation, names: Sequence[str]) -> str:
    return ", ".join(f"{_q(mine)} AS {_q(name)}" for mine, name in zip(columns(child), names, strict=True))


def _select(items: Sequence[str], child: str) -> str:
    return f"SELECT {', '.join(items)} FROM ({child})"


def _article(kind: str) -> str:
    return f"{'an' if kind == 'anti' else 'a'} {kind}"


def _q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
