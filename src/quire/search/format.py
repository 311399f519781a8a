"""Format version of every search index. A module of its own, because it needs no numpy."""

FORMAT_VERSION = 3
"""Raise it with every change of the tokenizer, the features or the codec: what has another version is rebuilt."""
