"""The command line. Commands only translate: words become statements, results become text.

Results go to stdout; progress, notices, timing and errors go to stderr. Only this package's top level, Typer and the
standard library are imported before a command is known, so that `--help` and `version` answer at once.
"""
