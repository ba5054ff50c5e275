"""Copies of a lake: backups, restoring them, and folders that were moved."""
