"""Text to values: statements, schemas, options and definitions, and back to text.

Everything here is pure: no Spark, no lake, no files. A reading query is recognised and kept as it was written; whether
it is valid and may run is decided by the engines on their own plans.
"""
