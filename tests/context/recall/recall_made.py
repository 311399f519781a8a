"""Made up for the tests of recall: small chats, and an embedder whose vectors come from the letters of words."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from quire.context.recall import Archive, Spoken, build, join, read

SECOND = 1_000_000
HOUR = 3_600 * SECOND
START = int(datetime(2023, 5, 8, 12, tzinfo=UTC).timestamp()) * SECOND


class Letters:
    """Words that are written alike have like vectors."""

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


def moment(day: str) -> int:
    return int(datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()) * SECOND


def said(seq: int, text: str, *, role: str = "user", name: str | None = None, at: int | None = None) -> Spoken:
    return Spoken(seq, role, name, START + seq * SECOND if at is None else at, text, max(1, len(text) // 4))


def chat(*texts: str) -> list[Spoken]:
    """A user and an assistant in turn."""
    return [said(seq, text, role=("assistant", "user")[seq % 2]) for seq, text in enumerate(texts, start=1)]


def talk(*lines: tuple[str, str]) -> list[Spoken]:
    """People with names, each line with who says it."""
    return [
        said(seq, text, role=("assistant", "user")[seq % 2], name=name)
        for seq, (name, text) in enumerate(lines, start=1)
    ]


def archive_of(spoken: Sequence[Spoken], *, cuts: Sequence[int] = (), embed: Letters | None = None) -> Archive:
    """Their archive, with segments parted before these places."""
    edges = [0, *sorted(cuts), len(spoken)]
    parts = [spoken[start:end] for start, end in pairwise(edges)]
    return join([read(build(part, embed=embed)) for part in parts], embedder=embed.name if embed else None)


_SAID = (
    "I my went hiking with Anna to the lake yesterday, it was 12 degrees. Always cook the pasta first? 東京で "
    "café naïve don't user_id 3.14 1,000 prefer tennis May 2023 party parties painted"
)
TEXTS = st.lists(st.sampled_from(_SAID.split()), max_size=12).map(" ".join) | st.text(max_size=40)


@st.composite
def histories(draw: st.DrawFn) -> list[Spoken]:
    """Chats of any texts, with and without names, with pauses of any length."""
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
    at, seq, spoken = START, 0, list[Spoken]()
    for text, role, name, pause in lines:
        at, seq = at + pause * SECOND, seq + 1 + pause % 2
        spoken.append(said(seq, text, role=role, name=name, at=at))
    return spoken
