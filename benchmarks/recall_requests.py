"""Measures recall in real requests: through `prepare`, on a database, read from the manifest."""

import statistics
import time
from collections.abc import Collection, Iterable

from quire.engine import Engine, EngineConfig
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.llm.embeddings import Embedder
from quire.model import Compaction, Draft, Manifest, Message, Span, TokenCount
from quire.search.segments import IndexedMessage
from quire.settings import Settings
from quire.settings.schema import ModelEntry
from quire.store import SqlStore
from recall_data import BUDGETS, DatasetChat, RecallScores

BATCH_SIZE = 500


class RecallBenchmark:
    """Asks the questions of fully archived chats, once for each budget."""

    def __init__(self, store: SqlStore, embedder: Embedder | None) -> None:
        self.store = store
        self._engines = {budget: self._create_engine(budget, embedder) for budget in BUDGETS}
        self.milliseconds: list[float] = []
        self.tokens: dict[int, list[int]] = {budget: [] for budget in BUDGETS}
        self.excerpt_count = 0

    def _create_engine(self, budget: int, embedder: Embedder | None) -> Engine:
        # The counter of gpt-4, in a window with space for every budget; its own has 8,192 tokens.
        models = {"gpt-4": ModelEntry(window=64_000)}
        settings = Settings(model="gpt-4", models=models, strategy="hybrid", recall_tokens=budget)
        return Engine(self.store, EngineConfig.create(settings, embedder=embedder))

    async def measure(self, chats: Iterable[DatasetChat], prefix: str) -> RecallScores:
        recall = RecallScores()
        for chat in chats:
            name = f"{prefix}-{chat.id}"
            await self._archive_chat(chat, name)
            for question in chat.questions:
                recall.add(
                    question.evidence,
                    {budget: await self._measure_question(chat, name, question.text, budget) for budget in BUDGETS},
                )
        return recall

    async def _archive_chat(self, chat: DatasetChat, name: str) -> None:
        """Appends the chat, covers it by a compaction without a summary, and builds its recall index."""
        engine = self._engines[BUDGETS[0]]
        await self.store.create_conversation(name)
        drafts = [self._make_draft(engine, each) for each in chat.messages]
        for start in range(0, len(drafts), BATCH_SIZE):
            await self.store.append(name, *drafts[start : start + BATCH_SIZE])
        await self.store.append(name, Compaction(number=1, covers=Span(first=1, last=len(drafts))))
        await index_messages(engine, conversations=[name], batch_entries=BULK_BATCH_ENTRIES)

    def _make_draft(self, engine: Engine, spoken: IndexedMessage) -> Draft:
        make = Message.user if spoken.role == "user" else Message.assistant
        message = make(spoken.text, name=spoken.name)
        tokens = TokenCount(engine.message_counter.count(message), engine.message_counter.name)
        return Draft(body=message, tokens=tokens, created_at=spoken.at)

    async def _measure_question(self, chat: DatasetChat, name: str, question: str, budget: int) -> Collection[int]:
        engine = self._engines[budget].with_changes(clock=lambda: chat.asked_at)
        conversation = await engine.conversation(name)
        start = time.perf_counter()
        request = await conversation.prepare(question)
        self.milliseconds.append((time.perf_counter() - start) * 1_000)
        used = next(slot.used for slot in request.manifest.slots if slot.slot == "recall")
        assert used <= budget, f"{name}: {used} tokens recalled, with a budget of {budget}"
        self.tokens[budget].append(used)
        return self._list_whole_messages(request.manifest)

    def _list_whole_messages(self, manifest: Manifest) -> list[int]:
        rows = [row for row in manifest.included if row.slot == "recall" and row.span is not None]
        self.excerpt_count += sum(row.excerpt_spans is not None for row in rows)
        return [row.span.first for row in rows if row.excerpt_spans is None and row.span is not None]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def p95(self) -> float:
        """95th percentile of the latency in milliseconds."""
        return statistics.quantiles(self.milliseconds, n=20)[-1]
