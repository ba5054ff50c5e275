"""Materialized views: analyse a query, plan a refresh at the cost of what changed, run it, fold on read, verify."""
