"""The engine: joins the log, the view and the ledger, and holds what conversations share."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

from quire.compaction.run import Summarizer
from quire.engine.conversation import Conversation
from quire.engine.hooks import Hooks
from quire.errors import BlobNotFound, ConversationNotFound, QuireError, SpendCapReached
from quire.llm import Model
from quire.log import DEFAULT_TENANT, MAIN, SqlStore, Store
from quire.model import Entry, Policy, ToolDefinition, Usage
from quire.model.events import Event
from quire.settings import Settings
from quire.view.calibration import Calibration
from quire.view.leaves import Meter
from quire.view.models import ModelFacts, facts, window_of
from quire.view.policies import policy_for
from quire.view.shapes import shape_for
from quire.view.tokens import counter_for

LOADED_BLOBS = 200


@asynccontextmanager
async def open_engine(
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    summarizer: Model | Summarizer | None = None,
    **changes: Any,
) -> AsyncGenerator["Engine"]:
    """Opens the log at `url`. Any setting can be given by name, as in `model="gpt-4o"`.

    A `summarizer` writes the summaries; without one they are extracts, made without any model.
    """
    chosen = Settings.model_validate({**(settings or Settings()).model_dump(), **changes})
    async with SqlStore.open(url, tenant=tenant) as store:
        engine = Engine(store, settings=chosen, instructions=instructions, tools=tools, summarizer=summarizer)
        try:
            yield engine
        finally:
            await engine.settle()


class Engine:
    def __init__(
        self,
        store: Store,
        *,
        settings: Settings,
        instructions: str = "",
        tools: Sequence[ToolDefinition] = (),
        summarizer: Model | Summarizer | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self.policy: Policy = policy_for(settings)
        self.instructions, self.tools = instructions, tuple(tools)
        self._blobs: dict[str, str] = {}
        self.meter = self._meter(self.policy)
        self._calibrations: dict[str, Calibration] = {}
        self.summarizer = self._limited(summarizer)
        self.hooks = Hooks()
        self._listeners: list[Callable[[Event], None]] = []
        self._tasks: dict[tuple[str, int], asyncio.Task[Any]] = {}

    def _limited(self, summarizer: Model | Summarizer | None) -> Summarizer | None:
        """A bare model with the window that is known of it, or the one that requests are made for."""
        if summarizer is None or isinstance(summarizer, Summarizer):
            return summarizer
        window = window_of(summarizer.name) or self.policy.window
        return Summarizer(model=summarizer, window=window, timeout=self.settings.summary_timeout)

    def cost(self, usage: Usage | None, model: str) -> float:
        """Dollars for what a call used; 0 where nothing is known of its price."""
        if usage is None:
            return 0.0
        known, given = facts(model), self.settings
        if model == given.model and given.input_price is not None and given.output_price is not None:
            known = ModelFacts(
                input_price=Decimal(str(given.input_price)), output_price=Decimal(str(given.output_price))
            )
        return known.cost(usage) or 0.0

    async def check_spending(self, conversation: str) -> None:
        """Stops before the next call of a conversation that has cost as much as it may."""
        cap = self.settings.max_spend
        if cap is not None:
            spent = await self.store.spent(conversation)
            if spent >= cap:
                raise SpendCapReached(spent=spent, cap=cap)

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Calls `listener` with every event, in order, from now on."""
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def start(self, key: tuple[str, int], work: Coroutine[Any, Any, Any]) -> None:
        """Does something in the background, one thing a branch."""
        running = self._tasks.get(key)
        if running is not None and not running.done():
            work.close()
            return
        self._tasks[key] = asyncio.get_running_loop().create_task(work)

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, QuireError):
                raise outcome

    def _meter(self, policy: Policy) -> Meter:
        counter = counter_for(policy.model, tokenizer=self.settings.tokenizer)
        return Meter(counter, shape_for(policy.provider, model=policy.model), load=self._blobs.get)

    def use(self, **changes: Any) -> None:
        """Changes settings from the next request on; a new model recounts what is still seen, and nothing else."""
        self.settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        self.policy = policy_for(self.settings)
        self.meter = self._meter(self.policy)

    async def conversation(self, id: str | None = None, *, branch: int = MAIN) -> "Conversation":
        """The conversation with this id, made if there is none; without an id, a new one."""
        try:
            found = await self.store.conversation(id) if id is not None else await self.store.create_conversation()
        except ConversationNotFound:
            found = await self.store.create_conversation(id)
        return Conversation(self, found.id, branch)

    async def calibration(self, model: str) -> Calibration:
        if model not in self._calibrations:
            known = await self.store.calibration(model)
            self._calibrations[model] = Calibration.parse(known) if known else Calibration()
        return self._calibrations[model]

    def calibrated(self, model: str, calibration: Calibration) -> None:
        self._calibrations[model] = calibration

    def blob(self, digest: str) -> str | None:
        """A loaded blob in base64."""
        return self._blobs.get(digest)

    async def load_blobs(self, entries: Sequence[Entry]) -> None:
        """Pictures and files that these entries show, at hand for rendering; those of long ago make room."""
        if len(self._blobs) > LOADED_BLOBS:
            self._blobs.clear()
        for entry in entries:
            if '"blob":"' in entry.raw:
                for digest in entry.blobs() - self._blobs.keys():
                    try:
                        self._blobs[digest] = base64.b64encode((await self.store.blob(digest)).data).decode()
                    except BlobNotFound:
                        continue
