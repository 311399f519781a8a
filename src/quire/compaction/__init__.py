"""Compaction: replaces older messages by a summary, written by a model or extracted without one.

Only `execution` writes to the log. The other modules are free of side effects there.
"""
