"""Recall: of what is archived, the messages that bear on a question."""

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from quire.engine.archives import Archives
from quire.engine.core import Core
from quire.errors import ModelError, StaleShelf, UnreadableSegment
from quire.llm.embeddings import embedded
from quire.log import Branch, Window
from quire.model import Entry, Span
from quire.view.budget import allot
from quire.view.recalled import Candidate, told
from quire.view.strategies import strategy_named

if TYPE_CHECKING:
    from quire.context.recall import Archive, Question, Ranked
    from quire.context.recall.packing import Floats

LEAST = 256
"""With fewer tokens than that too little comes back to be worth reading anew with every question."""
MOST = 400
"""Candidates for one question."""
SPARE = 2
"""They may have so many times the tokens of the slot: what does not fit makes room for what does."""
LONG = 1_200
"""A message of more characters is shown in pieces where it does not fit whole."""
IN_THREAD = 20_000
"""From so many messages on, ranking takes long enough to be worth a thread."""


class Recaller:
    """Recalls for the conversations of one engine."""

    def __init__(self, engine: Core, *, archives: Archives | None = None) -> None:
        self._engine = engine
        self.archives = archives or Archives(engine)

    async def candidates(self, window: Window, question: str, *, leaving: Collection[int]) -> tuple[Candidate, ...]:
        """Archived messages that bear on the question, the most worth first; `leaving` are shown already."""
        policy, active = self._engine.policy, window.branch.state.active
        if active is None or active.covers is None or not question.strip():
            return ()
        strategy = strategy_named(policy.strategy)
        if not strategy.recalls or (room := allot(policy, strategy.shares).recalled) < LEAST:
            return ()
        try:
            archive = await self.archives.of(window.branch, upto=active.covers.last)
        except (StaleShelf, UnreadableSegment):
            # Others purge or index faster than it can be read; a request is not to fail for want of recall.
            return ()
        ranked = await self._ranked(archive, question, within=active.covers, leaving=leaving)
        return await self._read(window.branch, _as_many_as_may_fit(ranked, archive, room), about=question)

    async def search(self, branch: Branch, query: str, *, limit: int) -> tuple[Candidate, ...]:
        """Messages of the branch that bear on a query, archived or not, the most relevant first."""
        archive = await self.archives.of(branch, upto=branch.head_seq)
        ranked = await self._ranked(archive, query)
        best = sorted(ranked, key=lambda each: -each.score)[:limit]
        return await self._read(branch, best, about=query)

    async def _ranked(
        self, archive: "Archive", text: str, *, within: Span | None = None, leaving: Collection[int] = ()
    ) -> list["Ranked"]:
        from quire.context.recall import rank, read_question

        question = read_question(text, at=self._engine.clock(), speakers=archive.names)
        vector = await self._vector(archive, question)
        allowed = archive.among([(within.first, within.last)], leaving=leaving) if within is not None else None

        def ranking() -> list["Ranked"]:
            return rank(archive, question, vector=vector, allowed=allowed, limit=MOST)

        return ranking() if len(archive) < IN_THREAD else await asyncio.to_thread(ranking)

    async def _vector(self, archive: "Archive", question: "Question") -> "Floats | None":
        embedder = self._engine.embedder
        if embedder is None or archive.embedder != embedder.name or not question.topic:
            return None
        try:
            return (await embedded(embedder, [question.topic]))[0]
        except ModelError:
            return None

    async def _read(self, branch: Branch, ranked: Sequence["Ranked"], *, about: str) -> tuple[Candidate, ...]:
        from quire.context.recall.excerpts import pieces

        entries = await self._engine.store.entries(
            branch.conversation, [each.seq for each in ranked], branch=branch.number
        )
        found = {entry.seq: entry for entry in entries if entry.purged_at is None}
        return tuple(
            Candidate(entry, round(each.score, 4), pieces(told(entry.message), about) if _long(entry) else None)
            for each in ranked
            if (entry := found.get(each.seq)) is not None
        )


def _long(entry: Entry) -> bool:
    return len(entry.raw) > LONG


def _as_many_as_may_fit(ranked: Sequence["Ranked"], archive: "Archive", room: int) -> list["Ranked"]:
    """In order, until they have a few times the tokens of the slot; what is larger than it takes none of that."""
    places = archive.seq.searchsorted([each.seq for each in ranked])
    left = SPARE * room
    chosen: list[Ranked] = []
    for each, tokens in zip(ranked, archive.tokens[places].tolist(), strict=True):
        if left <= 0:
            break
        left -= tokens if tokens < room else 0
        chosen.append(each)
    return chosen
