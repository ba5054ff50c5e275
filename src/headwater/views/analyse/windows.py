"""Window functions: collected from a select list, over columns that hold their partitions."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from headwater.views.analyse.common import with_columns
from headwater.views.analyse.functions import uses_clock, window_parts
from headwater.views.analyse.scope import Namer, Opaque, rebuilt
from headwater.views.relation import Item, Relation, Window, column, columns


class Windows:
    """Collects the window functions of a SELECT while its expressions are rewritten over them."""

    def __init__(self, namer: Namer, child: Relation) -> None:
        self._namer = namer
        self._child = child
        self._items: dict[str, Item] = {}
        self._partitions: list[frozenset[str]] = []

    def over(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Window):
            return rebuilt(node, self.over) if node.find(exp.Window) is not None else node
        if node.args.get("alias") or any(part.find(exp.Window) for part in window_parts(node)):
            raise Opaque("named or nested windows are not understood")
        if uses_clock(node):
            raise Opaque("now() inside a window function has no delta rule")
        self._child, names = with_columns(self._namer, self._child, node.args.get("partition_by") or [])
        node = node.copy()
        node.set("partition_by", [column(name) for name in names])
        text = node.sql(dialect="spark")
        if text not in self._items:
            self._items[text] = Item(self._namer.fresh("window"), node)
            self._partitions.append(frozenset(names))
        return column(self._items[text].name)

    def relation(self) -> Relation:
        if not self._items:
            return self._child
        shared = frozenset.intersection(*self._partitions)
        partition = tuple(name for name in columns(self._child) if name in shared)
        return Window(self._child, tuple(self._items.values()), partition)


def window_rebuilt(node: exp.Window, visit: Callable[[exp.Expression], exp.Expression]) -> exp.Expression:
    """The window function over groups: what it is made of changes, the function itself does not."""
    made = node.copy()
    call = made.this
    for key, value in list(call.args.items()):
        if isinstance(value, exp.Expression) and not isinstance(value, exp.Star):
            call.set(key, visit(value))
        elif isinstance(value, list):
            call.set(key, [visit(each) if isinstance(each, exp.Expression) else each for each in value])
    made.set("partition_by", [visit(each) for each in made.args.get("partition_by") or []])
    if order := made.args.get("order"):
        for item in order.expressions:
            item.set("this", visit(item.this))
    return made


def written_out(select: exp.Select) -> exp.Select:
    """The SELECT with the windows that its WINDOW clause names written where they are used."""
    named = {window.this.name.lower(): window for window in select.args.get("windows") or ()}
    if not named:
        return select
    if any(window.args.get("alias") for window in named.values()):
        raise Opaque("a window that is made of another is not understood")
    tree = select.copy()
    tree.set("windows", None)
    for call in list(tree.find_all(exp.Window)):
        given = named.get(call.alias.lower()) if call.args.get("alias") else None
        if given is None or call.parent_select is not tree:
            continue
        for key in ("partition_by", "order", "spec"):
            if not call.args.get(key) and given.args.get(key):
                call.set(key, given.copy().args[key])
        call.set("alias", None)
    return tree
