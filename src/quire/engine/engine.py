"""`Engine`: opens a store and its conversations. `open_engine` is the public `quire.open`."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compaction.summarizer import Summarizer
from quire.context.items import build_initial_changes
from quire.db.tenant_keys import TenantKeys
from quire.engine.config import EngineConfig
from quire.engine.context_gatherer import list_application_tools
from quire.engine.conversation import Conversation
from quire.engine.search import EVERY_MESSAGE, MessageFilter, MessageSearchResult, search_messages
from quire.engine.state import EngineState
from quire.errors import ConversationNotFound, InvalidRequest
from quire.llm import Model, get_model
from quire.llm.embeddings import Embedder
from quire.llm.protocol import DeferredModel, ModelBuilder
from quire.log import MAIN_BRANCH
from quire.model import ToolDefinition
from quire.model.agents import Agent
from quire.model.ids import new_id
from quire.settings import Settings
from quire.settings.schema import EXTRACT_SUMMARIZER
from quire.store import DEFAULT_TENANT, SqlStore

if TYPE_CHECKING:
    from quire.context.vault import Vault
    from quire.engine.vault_index import IndexProgress
    from quire.search.catalog import SearchOrder


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
    summarizer: Model | Summarizer | ModelBuilder | str | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
    **changes: Any,
) -> AsyncGenerator["Engine"]:
    """Opens the log at `url`. Any setting can be passed by name, as in `model="gpt-4o"`.

    Args:
        url: Database of the log: `sqlite:///path`, or `postgresql://…`.
        tenant: Owner of the conversations.
        settings: Settings to begin with. Default: the defaults.
        instructions: System text of every request.
        tools: Definitions of tools that your program runs.
        agent: Rules, references, tools and memory, or the path of their TOML file.
        vault: Folder in which `[[links]]` and `@paths` in messages are resolved.
        summarizer: Model, or the name of one, that writes the summaries of compactions. Without one, or with
            `extract`, they are extractive and need no model.
        embedder: Adds semantic search to the search by words.
        environ: Has the key that `encryption.key_env` names.
        changes: Settings by name.
    """
    if isinstance(agent, str | Path):
        from quire.context.agent_loader import load_agent

        loaded_agent = load_agent(Path(agent))
    else:
        loaded_agent = agent
    overrides = loaded_agent.setting_overrides if loaded_agent is not None else {}
    if isinstance(summarizer, str):
        changes["summarizer"] = summarizer
    merged = Settings.model_validate({**(settings or Settings()).model_dump(), **overrides, **changes})
    source = summarizer
    if isinstance(source, str):
        # A named model is built at its first call.
        build = partial(get_model, source, base_url=merged.base_url, wire_format=merged.wire_format)
        source = None if source == EXTRACT_SUMMARIZER else DeferredModel(source, build)
    keys = TenantKeys.from_settings(merged.encryption, environ or {})
    async with SqlStore.open(
        url,
        tenant=tenant,
        masking=merged.tenant_masking,
        keys=keys,
        object_storage=merged.object_storage_url,
    ) as store:
        config = EngineConfig.create(
            merged,
            instructions=instructions,
            tools=tools,
            agent=loaded_agent,
            vault=vault,
            summarizer=source,
            embedder=embedder,
        )
        engine = Engine(store, config)
        try:
            yield engine
        finally:
            await engine.wait_for_background()


@dataclass(frozen=True, eq=False)
class Engine(EngineState):
    """Opens conversations on a store. Built from a store and an `EngineConfig`, or by `quire.open`."""

    async def conversation(self, id: str | None = None, *, branch: int = MAIN_BRANCH) -> Conversation:
        """Opens or creates a conversation.

        Args:
            id: ID of the conversation, which is created if it does not exist. Default: a new ID.
            branch: Number of the branch.
        """
        # A new conversation gets the items with include mode `always`.
        application_tools = [each.item for each in list_application_tools(self.agent)]
        initial = [change for change in build_initial_changes(self.agent) if change.item not in application_tools]
        if id is not None:
            try:
                await self.store.get_conversation(id)
                if not initial or (await self.store.get_branch(id)).head_seq > 0:
                    return Conversation(self, id, branch)
            except ConversationNotFound:
                pass
        opened = await self.store.open_conversation(id or new_id(), *initial)
        return Conversation(self, opened.id, branch)

    async def search(
        self,
        query: str,
        *,
        where: MessageFilter = EVERY_MESSAGE,
        order: "SearchOrder" = "relevance",
        min_score: float = 0.0,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Searches the messages of all conversations, archived or not, by words and, with an embedder, by meaning.

        Args:
            query: Words to look for. With embeddings, messages of a similar meaning are found too.
            where: Filters, which apply before the best messages are selected.
            order: `relevance`, `newest` or `oldest` first.
            min_score: Only messages with at least this score, from 0 to 1.
            limit: Maximum number of messages.
        """
        return await search_messages(self, query, where=where, order=order, min_score=min_score, limit=limit)

    def index_vault(self) -> "AsyncGenerator[IndexProgress]":
        """Updates the search index of the vault, and yields the progress after every note."""
        from quire.engine.vault_index import index_vault

        if self.vault is None:
            raise InvalidRequest("There is no vault to index; open the engine with `vault=`.")
        return index_vault(self, self.vault)
