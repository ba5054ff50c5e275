"""Care of tables: what time and small commits do to them, undone without changing a row that anybody may still read.

Each kind of care has a pure plan over metadata, which a dry run prints, and a run that applies it in one fenced commit.
No file is deleted while any snapshot of the table refers to it.
"""
