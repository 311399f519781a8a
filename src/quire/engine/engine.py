"""The engine: joins the log, the view, the ledger and all that enters besides messages into conversations."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compaction.run import Summarizer
from quire.context.items import initial_changes
from quire.engine.conversation import Conversation
from quire.engine.core import Core
from quire.engine.recalling import Recaller
from quire.engine.referring import Referrer
from quire.engine.surroundings import Gatherer, own_items
from quire.errors import ConversationNotFound, InvalidRequest
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log import DEFAULT_TENANT, MAIN, SqlStore
from quire.model import ToolDefinition
from quire.model.agents import Agent
from quire.settings import Settings

if TYPE_CHECKING:
    from quire.context.vault import Vault
    from quire.engine.vault_index import Progress


@asynccontextmanager
async def open_engine(
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    agent: Agent | Path | str | None = None,
    vault: "Vault | Path | str | None" = None,
    summarizer: Model | Summarizer | None = None,
    embedder: Embedder | None = None,
    **changes: Any,
) -> AsyncGenerator["Engine"]:
    """Opens the log at `url`. Any setting can be given by name, as in `model="gpt-4o"`.

    An `agent`, or the TOML file of one, brings rules, references, tools and memory. A `vault` is the folder that
    `[[links]]` and `@paths` in messages lead into. A `summarizer` writes the summaries; without one they are extracts,
    made without any model. An `embedder` finds by meaning what words alone would miss.
    """
    known = _loaded(Path(agent)) if isinstance(agent, str | Path) else agent
    own = known.own_settings if known is not None else {}
    chosen = Settings.model_validate({**(settings or Settings()).model_dump(), **own, **changes})
    async with SqlStore.open(url, tenant=tenant) as store:
        engine = Engine(
            store,
            settings=chosen,
            instructions=instructions,
            tools=tools,
            agent=known,
            vault=vault,
            summarizer=summarizer,
            embedder=embedder,
        )
        try:
            yield engine
        finally:
            await engine.settle()


class Engine(Core):
    """Opens conversations, and holds what they share."""

    @cached_property
    def gatherer(self) -> Gatherer:
        return Gatherer(self)

    @cached_property
    def referrer(self) -> Referrer:
        return Referrer(self)

    @cached_property
    def recaller(self) -> Recaller:
        return Recaller(self)

    async def conversation(self, id: str | None = None, *, branch: int = MAIN) -> "Conversation":
        """The conversation with this id, made if there is none; without an id, a new one."""
        try:
            found = await self.store.conversation(id) if id is not None else await self.store.create_conversation()
        except ConversationNotFound:
            found = await self.store.create_conversation(id)
        await self._begin(found.id)
        return Conversation(self, found.id, branch)

    async def _begin(self, conversation: str) -> None:
        """A session begins with the items that are always there."""
        own = [each.item for each in own_items(self.agent)]
        changes = [change for change in initial_changes(self.agent) if change.item not in own]
        if changes and (await self.store.branch(conversation)).head_seq == 0:
            await self.store.append(conversation, *changes)

    def like(self, *, agent: Agent | None = None, **changes: Any) -> "Engine":
        """An engine for the same log with another agent or other settings; what it learns and keeps is shared."""
        made = copy(self)
        for part in ("gatherer", "referrer", "recaller"):
            made.__dict__.pop(part, None)
        made.agent = agent or self.agent
        if changes:
            made.use(**changes)
        made.__dict__["recaller"] = Recaller(made, archives=self.recaller.archives)
        return made

    def index_vault(self) -> "AsyncGenerator[Progress]":
        """Brings the search index up to date with the vault, and says after every note how far it is."""
        from quire.engine.vault_index import index_vault

        if self.vault is None:
            raise InvalidRequest("There is no vault to index; open the engine with one.")
        return index_vault(self, self.vault)


def _loaded(file: Path) -> Agent:
    from quire.context.agents import load_agent

    return load_agent(file)
