"""The engine: joins the log, the view and the ledger, and holds what conversations share."""

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from quire.engine.conversation import Conversation
from quire.errors import BlobNotFound, ConversationNotFound
from quire.log import DEFAULT_TENANT, MAIN, SqlStore, Store
from quire.model import Entry, Policy, ToolDefinition
from quire.settings import Settings
from quire.view.calibration import Calibration
from quire.view.leaves import Meter
from quire.view.policies import policy_for
from quire.view.shapes import shape_for
from quire.view.tokens import counter_for


@asynccontextmanager
async def open_engine(
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    **changes: Any,
) -> AsyncGenerator["Engine"]:
    """Opens the log at `url`. Any setting can be given by name, as in `model="gpt-4o"`."""
    chosen = Settings.model_validate({**(settings or Settings()).model_dump(), **changes})
    async with SqlStore.open(url, tenant=tenant) as store:
        yield Engine(store, settings=chosen, instructions=instructions, tools=tools)


class Engine:
    def __init__(
        self, store: Store, *, settings: Settings, instructions: str = "", tools: Sequence[ToolDefinition] = ()
    ) -> None:
        self.store, self.settings = store, settings
        self.policy: Policy = policy_for(settings)
        self.instructions, self.tools = instructions, tuple(tools)
        self._blobs: dict[str, str] = {}
        self.meter = self._meter(self.policy)
        self._calibrations: dict[str, Calibration] = {}

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
        """Pictures and files that these entries show, at hand for rendering."""
        for entry in entries:
            if '"blob":"' in entry.raw:
                for digest in entry.blobs() - self._blobs.keys():
                    try:
                        self._blobs[digest] = base64.b64encode((await self.store.blob(digest)).data).decode()
                    except BlobNotFound:
                        continue
