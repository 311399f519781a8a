"""Recall as a request gets it: through `prepare`, on a database, and read from the manifest."""

import statistics
import time
from collections.abc import Collection, Iterable

from quire.context.recall import Spoken
from quire.engine import Engine
from quire.llm.embeddings import Embedder
from quire.log import SqlStore
from quire.model import Compaction, Draft, Manifest, Message, Span, TokenCount
from quire.settings import Settings
from recall_data import BUDGETS, Chat, Recall

BATCH = 500


class Prepared:
    """Asks the questions of chats that are wholly archived in a store, once for each budget."""

    def __init__(self, store: SqlStore, embedder: Embedder | None) -> None:
        self.store = store
        self._engines = {budget: self._engine(budget, embedder) for budget in BUDGETS}
        self.milliseconds: list[float] = []
        self.tokens: dict[int, list[int]] = {budget: [] for budget in BUDGETS}
        self.pieces = 0

    def _engine(self, budget: int, embedder: Embedder | None) -> Engine:
        settings = Settings(model="gpt-4", context_limit=64_000, strategy="hybrid", recall_tokens=budget)
        return Engine(self.store, settings=settings, embedder=embedder)

    async def measure(self, chats: Iterable[Chat], prefix: str) -> Recall:
        recall = Recall()
        for chat in chats:
            name = f"{prefix}-{chat.id}"
            await self._archive(chat, name)
            for asked in chat.asked:
                recall.add(
                    asked.gold, {budget: await self._present(chat, name, asked.text, budget) for budget in BUDGETS}
                )
        return recall

    async def _archive(self, chat: Chat, name: str) -> None:
        """The whole chat in the log, covered by a compaction without a summary, and on its shelves."""
        engine = self._engines[BUDGETS[0]]
        await self.store.create_conversation(name)
        drafts = [self._draft(engine, each) for each in chat.spoken]
        for start in range(0, len(drafts), BATCH):
            await self.store.append(name, *drafts[start : start + BATCH])
        await self.store.append(name, Compaction(number=1, covers=Span(first=1, last=len(drafts))))
        await engine.recaller.archives.fill(await self.store.branch(name))

    def _draft(self, engine: Engine, spoken: Spoken) -> Draft:
        make = Message.user if spoken.role == "user" else Message.assistant
        message = make(spoken.text, name=spoken.name)
        tokens = TokenCount(engine.meter.count(message), engine.meter.name)
        return Draft(body=message, tokens=tokens, at=spoken.at)

    async def _present(self, chat: Chat, name: str, question: str, budget: int) -> Collection[int]:
        engine = self._engines[budget]
        engine.clock = lambda: chat.after
        conversation = await engine.conversation(name)
        start = time.perf_counter()
        request = await conversation.prepare(question)
        self.milliseconds.append((time.perf_counter() - start) * 1_000)
        used = next(slot.used for slot in request.manifest.slots if slot.slot == "recall")
        assert used <= budget, f"{name}: {used} tokens recalled, with a budget of {budget}"
        self.tokens[budget].append(used)
        return self._whole(request.manifest)

    def _whole(self, manifest: Manifest) -> list[int]:
        rows = [row for row in manifest.included if row.slot == "recall" and row.span is not None]
        self.pieces += sum(row.pieces is not None for row in rows)
        return [row.span.first for row in rows if row.pieces is None and row.span is not None]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def slow(self) -> float:
        """What one request in twenty takes, or longer."""
        return statistics.quantiles(self.milliseconds, n=20)[-1]
