"""Recall: retrieves the archived messages that are relevant to a question, ranked by words and by embeddings."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from quire.concurrency.worker_threads import run_in_worker
from quire.engine.context import EngineContext
from quire.engine.embeddings import embed_query
from quire.engine.recall_index import RecallIndexCache
from quire.errors import StaleSegment, UnreadableSegment
from quire.log import Branch, Window
from quire.model import Entry
from quire.model.state import ActiveCompaction
from quire.view.budget import allocate_budget
from quire.view.recalled_messages import RecallCandidate, message_to_text
from quire.view.strategies import get_strategy

if TYPE_CHECKING:
    from quire.search.index import RecallIndex
    from quire.search.ranker import RankedMessage

MIN_RECALL_TOKENS = 256
"""Below this budget, recall is skipped: too little fits to justify tokens that no prompt cache serves."""
MAX_CANDIDATES = 400
"""Maximum candidates for one question."""
CANDIDATE_TOKENS_FACTOR = 2
"""Candidates may have this multiple of the slot's tokens, so that smaller ones can replace those that do not fit."""
MAX_WHOLE_MESSAGE_CHARS = 1_200
"""Characters of JSON above which a message gets excerpts, used where it does not fit whole."""
THREAD_MIN_MESSAGES = 20_000
"""Messages in an index from which ranking runs in a thread, so that it does not block the event loop."""


class Recall:
    """Recall for the conversations of one engine."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self.index_cache = RecallIndexCache(engine)

    async def find_candidates(
        self, window: Window, question: str, *, exclude: Collection[int]
    ) -> tuple[RecallCandidate, ...]:
        """Archived messages and cleared tool results that are relevant to the question, best first, except those in
        `exclude`, which the request has already."""
        policy, active = self._engine.policy, window.branch.state.active_compaction
        if active is None or not active.hides_content or not question.strip():
            return ()
        strategy = get_strategy(policy.strategy)
        if not strategy.recalls:
            return ()
        budget = allocate_budget(policy, strategy.shares).recall_tokens
        if budget < MIN_RECALL_TOKENS:
            return ()
        try:
            index = await self.index_cache.load(window.branch, upto=max(last for _, last in _list_ranges(active)))
        except (StaleSegment, UnreadableSegment):
            # Concurrent purges or indexing outpaced the read. A request must not fail because recall is unavailable.
            return ()
        whole = [entry.seq for entry in window.messages if entry.role != "tool"]
        ranked = await self._rank(index, question, ranges=_list_ranges(active), exclude=[*exclude, *whole])
        return await self._load_candidates(window.branch, _take_within_budget(ranked, index, budget), query=question)

    async def _rank(
        self,
        index: "RecallIndex",
        text: str,
        *,
        ranges: Sequence[tuple[int, int]],
        exclude: Collection[int],
    ) -> list["RankedMessage"]:
        from quire.search.query import parse_query
        from quire.search.ranker import rank_messages

        question = parse_query(text, at=self._engine.config.clock(), speakers=index.speaker_names)
        embedder = self._engine.embedder
        # Vectors of different embedders cannot be compared.
        is_comparable = embedder is not None and embedder.name == index.embedder
        vector = await embed_query(embedder if is_comparable else None, question.topic)
        allowed = index.select_rows(ranges, excluded=exclude)

        def rank() -> list["RankedMessage"]:
            return rank_messages(index, question, vector=vector, allowed=allowed, limit=MAX_CANDIDATES)

        return rank() if len(index) < THREAD_MIN_MESSAGES else await run_in_worker(rank)

    async def _load_candidates(
        self, branch: Branch, ranked: Sequence["RankedMessage"], *, query: str
    ) -> tuple[RecallCandidate, ...]:
        entries = await self._engine.store.get_entries(
            branch.conversation, [each.seq for each in ranked], branch=branch.number
        )
        by_seq = {entry.seq: entry for entry in entries if entry.purged_at is None}
        return tuple(
            make_candidate(entry, round(each.score, 4), query=query)
            for each in ranked
            if (entry := by_seq.get(each.seq)) is not None
        )


def make_candidate(entry: Entry, score: float, *, query: str) -> RecallCandidate:
    """A message for `render_recalled`; a long one with excerpts that are relevant to the query."""
    from quire.search.passages import find_excerpts

    is_long = len(entry.raw) > MAX_WHOLE_MESSAGE_CHARS
    return RecallCandidate(entry, score, find_excerpts(message_to_text(entry.message), query) if is_long else None)


def _list_ranges(active: ActiveCompaction) -> list[tuple[int, int]]:
    """First and last entry number of what the active compaction archives, and of what it clears."""
    covers, cleared_through = active.covers, active.cleared_through or 0
    last_covered = covers.last if covers is not None else 0
    ranges = [(covers.first, covers.last)] if covers is not None else []
    return [*ranges, (last_covered + 1, cleared_through)] if cleared_through > last_covered else ranges


def _take_within_budget(ranked: Sequence["RankedMessage"], index: "RecallIndex", budget: int) -> list["RankedMessage"]:
    """Takes the best until they have `CANDIDATE_TOKENS_FACTOR` times the budget; one above the budget counts as 0."""
    rows = index.seq.searchsorted([each.seq for each in ranked])
    remaining = CANDIDATE_TOKENS_FACTOR * budget
    chosen: list[RankedMessage] = []
    for each, tokens in zip(ranked, index.tokens[rows].tolist(), strict=True):
        if remaining <= 0:
            break
        remaining -= tokens if tokens < budget else 0
        chosen.append(each)
    return chosen
