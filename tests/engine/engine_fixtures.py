"""Fixtures for the engine tests."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg


def set_index_format(admin_url: str, version: int) -> None:
    """Makes the message index one of another format, as another version of Quire would have written it."""
    _execute(admin_url, f"UPDATE quire_search_scopes SET format = {version}")
    _execute(admin_url, f"UPDATE quire_message_segments SET format = {version}")


def damage_segments(admin_url: str) -> None:
    """Makes the bytes of every segment unreadable."""
    _execute(admin_url, "UPDATE quire_message_segments SET columns = terms")


def _execute(admin_url: str, statement: str) -> None:
    if admin_url.startswith("sqlite"):
        with closing(sqlite3.connect(admin_url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(statement)
        return
    with psycopg.connect(admin_url) as connection:
        connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]


class PairEmbedder:
    """An embedder in which words with similar spelling have similar vectors: it counts pairs of letters."""

    name, dimensions = "pairs", 64

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for first, second in pairwise(text.lower()):
                if first.isalpha() and second.isalpha():
                    row[(31 * ord(first) + ord(second)) % self.dimensions] += 1
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
