"""Small Java classes of ours, for work that would take a round trip per object from Python.

They are compiled once per JVM by the compiler that Spark itself ships.
"""

from __future__ import annotations

import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_compiling = threading.Lock()


def compiled(session: SparkSession, name: str) -> Any:
    """The one instance of the Java class `name`, from this package's sources, in the session's JVM."""
    gateway = session.sparkContext._gateway
    # py4j remembers methods by class name: a second class of the same name in one JVM would break both.
    with _compiling:
        # Not getattr: a gateway answers for any name with a member of its entry point.
        instances = vars(gateway).setdefault("headwater_classes", {})
        if name not in instances:
            instances[name] = _compile(gateway.jvm, name)
        return instances[name]


def define(session: SparkSession, name: str, beside: str) -> None:
    """Add the Java class `name` to the classes that everything in the driver's JVM finds by their names.

    It goes to the loader of the class `beside`, which is of the same package; a second time does nothing.
    """
    gateway, definer = session.sparkContext._gateway, compiled(session, "Definer")
    with _compiling:
        defined = vars(gateway).setdefault("headwater_defined", set())
        if name in defined:
            return
        classes = _cooked(gateway.jvm, name).getBytecodes()
        for each in sorted(classes, key=len, reverse=True):  # a class after those inside of it, which it needs
            definer.define(gateway.jvm.java.lang.Class.forName(beside), classes[each])
        defined.add(name)


def _compile(jvm: Any, name: str) -> Any:
    return _cooked(jvm, name).getClassLoader().loadClass(name).newInstance()


def _cooked(jvm: Any, name: str) -> Any:
    source = files("headwater.spark").joinpath(f"{name}.java").read_text(encoding="utf-8")
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    return compiler
