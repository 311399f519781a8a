"""Compaction: older messages folded into a summary, by a model or without one.

Only `run` writes to the log; the other modules make texts, and leave everything as it was.
"""
