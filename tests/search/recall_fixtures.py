"""Fixtures for the recall tests: small chats, and an embedder that hashes the letter pairs of words."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from quire.search.index import RecallIndex, merge_segments
from quire.search.segments import IndexedMessage, build_segment

SECOND_MICROS = 1_000_000
HOUR_MICROS = 3_600 * SECOND_MICROS
START_MICROS = int(datetime(2023, 5, 8, 12, tzinfo=UTC).timestamp()) * SECOND_MICROS


class LetterEmbedder:
    """Words with similar spelling have similar vectors."""

    name = "letters-32"
    dimensions = 32

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                for start in range(len(word) - 1):
                    row[sha256(word[start : start + 2].encode(errors="replace")).digest()[0] % self.dimensions] += 1
            row /= max(float(np.linalg.norm(row)), 1e-6)
        return rows


def noon_micros(day: str) -> int:
    return int(datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()) * SECOND_MICROS


def make_message(
    seq: int, text: str, *, role: str = "user", name: str | None = None, at: int | None = None
) -> IndexedMessage:
    return IndexedMessage(
        seq, role, name, START_MICROS + seq * SECOND_MICROS if at is None else at, text, max(1, len(text) // 4)
    )


def make_chat(*texts: str) -> list[IndexedMessage]:
    """Messages of a user and an assistant in turn."""
    return [make_message(seq, text, role=("assistant", "user")[seq % 2]) for seq, text in enumerate(texts, start=1)]


def make_named_chat(*lines: tuple[str, str]) -> list[IndexedMessage]:
    """Messages of named speakers, as (name, text)."""
    return [
        make_message(seq, text, role=("assistant", "user")[seq % 2], name=name)
        for seq, (name, text) in enumerate(lines, start=1)
    ]


def build_index(
    messages: Sequence[IndexedMessage],
    *,
    cuts: Sequence[int] = (),
    embedder: LetterEmbedder | None = None,
    earlier: RecallIndex | None = None,
) -> RecallIndex:
    """Index of these messages, with segment boundaries before these positions."""
    edges = [0, *sorted(cuts), len(messages)]
    parts = [messages[start:end] for start, end in pairwise(edges)]
    return merge_segments(
        [build_segment(part, embedder=embedder) for part in parts],
        embedder=embedder.name if embedder else None,
        earlier=earlier,
    )


_SAMPLE_WORDS = (
    "I my went hiking with Anna to the lake yesterday, it was 12 degrees. Always cook the pasta first? 東京で "
    "café naïve don't user_id 3.14 1,000 prefer tennis May 2023 party parties painted"
)
TEXTS = st.lists(st.sampled_from(_SAMPLE_WORDS.split()), max_size=12).map(" ".join) | st.text(max_size=40)


@st.composite
def message_histories(draw: st.DrawFn) -> list[IndexedMessage]:
    """Chats with arbitrary texts, with and without names, with pauses of any length."""
    lines = draw(
        st.lists(
            st.tuples(
                TEXTS,
                st.sampled_from(["user", "assistant", "tool"]),
                st.sampled_from([None, "Anna", "Bo Li"]),
                st.sampled_from([0, 1, 60, 1_799, 1_801, 90_000]),
            ),
            max_size=30,
        )
    )
    at, seq, messages = START_MICROS, 0, list[IndexedMessage]()
    for text, role, name, pause in lines:
        at, seq = at + pause * SECOND_MICROS, seq + 1 + pause % 2
        messages.append(make_message(seq, text, role=role, name=name, at=at))
    return messages
