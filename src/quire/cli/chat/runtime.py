"""Runtime of a chat: the conversation with its engine, model, tools and approvals.

`quire chat` and `quire ask` open it from a command's options. The model is created when the first message is sent, so
that everything else works without one.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quire.agent.approvals import ApprovalCallback, Approvals
from quire.agent.limits import TurnLimits, build_turn_limits
from quire.agent.turn import run_turn
from quire.cli.chat.renderables import CompactionStats, MeterReading, load_compaction_stats
from quire.cli.common import find_conversations
from quire.cli.engine_setup import build_model, open_engine_from_settings, start_servers
from quire.cli.paths import find_agent_file
from quire.engine import Conversation
from quire.errors import ConversationNotFound, DocumentNotFound, InvalidRequest, ModelRequestRejected
from quire.llm.error_mapping import explain_unusable_model
from quire.model import FilePart, ImagePart, Message, TextPart
from quire.model.entry_metadata import sum_usage
from quire.model.events import TurnEvent

if TYPE_CHECKING:
    from quire.agent.mcp.servers import ServerProblem
    from quire.agent.protocols import ToolRunner
    from quire.engine import Engine
    from quire.llm import Model
    from quire.log import ConversationRecord
    from quire.model import Entry, Usage
    from quire.settings import Settings
    from quire.store import SqlStore


MAX_RESUMED = 100
"""Recent conversations among which a chat finds the one to resume."""
MAX_ATTACHMENT_BYTES = 20 * 1_000_000
"""Maximum size of one attachment. Providers accept requests of about 30 MB, and base64 adds a third."""

_MEDIA_TYPES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)
"""Signatures at the start of the files that both wire formats can carry. A file name proves nothing."""

_GENERATED_ID = re.compile(r"[0-9a-z]{26}")

ModelFactory = Callable[["Settings"], "Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Which conversation to open, and how."""

    conversation: str | None = None
    new: bool = False
    resume: bool = False
    """Without an id: resume the most recently used conversation instead of creating one."""
    reply_tokens: int | None = None
    requires_model: bool = False
    """A question follows at once: without a usable model, no conversation is created."""


def build_overrides(pairs: Sequence[str] | None = None, *, agent: str | None = None) -> list[str]:
    """Combines `--set` with the agent of this name, whose file is a setting."""
    return [*(pairs or ()), *([f"agent={find_agent_file(agent)}"] if agent is not None else [])]


class ChatRuntime:
    def __init__(
        self,
        engine: "Engine",
        conversation: Conversation,
        *,
        runners: "Sequence[ToolRunner]" = (),
        server_problems: "Sequence[ServerProblem]" = (),
        approvals: Approvals | None = None,
        limits: TurnLimits | None = None,
        make_model: ModelFactory = build_model,
        model: "Model | None" = None,
    ) -> None:
        self.engine, self.conversation = engine, conversation
        self.server_problems = server_problems
        self._runners, self._limits = runners, limits
        self._approvals = approvals or Approvals()
        self._make_model = make_model
        self._model = model

    async def run_turn(
        self, question: Message | str | None, *, stop: asyncio.Event | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        """Runs a turn with this question, or with None retries the last one."""
        # Loading a provider's client takes a second or two.
        model = await asyncio.to_thread(lambda: self.model)
        events = run_turn(
            self.conversation,
            question,
            model=model,
            runners=self._runners,
            approvals=self._approvals,
            limits=self._limits,
            stop=stop,
        )
        async with aclosing(events):
            async for event in events:
                yield event

    @property
    def model(self) -> "Model":
        """The model that answers; raises `ModelRequestRejected` with advice if it is unusable."""
        if self._model is None:
            self._model = _create_model(self.engine.settings, self._make_model)
        return self._model

    def use_model(self, name: str) -> None:
        """Changes the model for the next request; if it is unusable, the old one stays."""
        engine = self.engine.with_changes(model=name)
        self._model = _create_model(engine.settings, self._make_model)
        self.engine = engine
        self.conversation = Conversation(engine, self.conversation.id, self.conversation.branch)

    async def read_meter(self, *, reply_seq: int | None = None, usages: "Sequence[Usage]" = ()) -> MeterReading:
        """Reads the meter after a reply; `usages` has one item for each model call of the turn."""
        engine = self.engine
        return MeterReading(
            report=await self.conversation.usage(),
            reply_seq=reply_seq,
            usage=sum_usage(usages) if usages else None,
            turn_cost=sum(engine.config.compute_cost(usage, engine.settings.model).usd for usage in usages),
            conversation_cost=await engine.store.get_conversation_cost(self.conversation.id),
        )

    async def load_compaction_stats(self, entry: "Entry") -> CompactionStats:
        return await load_compaction_stats(self.engine.store, entry)


def _create_model(settings: "Settings", make_model: ModelFactory) -> "Model":
    try:
        return make_model(settings)
    except ModelRequestRejected as error:
        raise explain_unusable_model(settings.model, error) from error


@asynccontextmanager
async def open_chat(
    overrides: Sequence[str],
    chat_options: ChatOptions,
    *,
    ask: ApprovalCallback | None = None,
    make_model: ModelFactory = build_model,
) -> AsyncGenerator[ChatRuntime]:
    """Opens a chat. `ask` approves the tool calls of MCP servers; without it every such call is denied."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine_from_settings(overrides))
        model = (
            await asyncio.to_thread(_create_model, engine.settings, make_model) if chat_options.requires_model else None
        )
        # Before the conversation is created, so that it starts with their tools.
        started = await start_servers(engine, stack)
        yield ChatRuntime(
            started.engine,
            await open_chosen_conversation(started.engine, chat_options),
            runners=started.runners,
            server_problems=started.problems,
            approvals=Approvals(ask),
            limits=build_turn_limits(engine.settings, max_reply_tokens=chat_options.reply_tokens),
            make_model=make_model,
            model=model,
        )


async def open_chosen_conversation(engine: "Engine", chat_options: ChatOptions) -> Conversation:
    """Opens the named conversation, the most recently used one, or a new one.

    A name that no conversation has becomes the id of a new one.
    """
    store, name = engine.store, chat_options.conversation
    if name is None:
        recent: list[ConversationRecord] = []
        if chat_options.resume and not chat_options.new:
            # The session of an agent is the agent's: a chat does not append to it unless it is named.
            listed = await store.list_conversations(limit=MAX_RESUMED)
            recent = [each for each in listed if each.origin is None or each.origin.client is None][:1]
        if not recent:
            return await engine.conversation()
        name = recent[0].id
    try:
        branches = await store.list_branches(name)
    except ConversationNotFound:
        found = await find_conversations(store, name)
        # The beginning of an id that a user chose may be a new id: `team-1` next to `team-10`.
        if len(found) != 1 or (found[0].id.startswith(name) and not _GENERATED_ID.fullmatch(found[0].id)):
            return await engine.conversation(name)
        name = found[0].id
        branches = await store.list_branches(name)
    last_used = max(branches, key=lambda branch: (branch.updated_at, branch.number))
    return await engine.conversation(name, branch=last_used.number)


class Attachment(NamedTuple):
    """A stored file: its name, and the part of a message that refers to it."""

    name: str
    part: ImagePart | FilePart


async def load_attachment(path: Path, store: "SqlStore") -> Attachment:
    """Reads an image or a PDF and stores it as a blob. Its content decides the media type."""
    data = await asyncio.to_thread(_read_attachment, path)
    media_type = next((name for signature, name in _MEDIA_TYPES if signature.match(data)), None)
    if media_type is None:
        raise InvalidRequest(
            f"{path} is neither an image (PNG, JPEG, GIF, WebP) nor a PDF. To send a text file, refer to it with "
            "@path, or pipe it into `quire ask`."
        )
    blob = await store.put_blob(data, media_type=media_type)
    if media_type.startswith("image/"):
        return Attachment(path.name, ImagePart(blob=blob, media_type=media_type))
    return Attachment(path.name, FilePart(blob=blob, media_type=media_type, name=path.name))


def attach_to(text: str, attachments: Sequence[Attachment]) -> Message:
    """Builds the user's message: the text, followed by the attachments."""
    return Message(role="user", parts=(TextPart(text=text), *(each.part for each in attachments)))


def _read_attachment(path: Path) -> bytes:
    path = path.expanduser()
    try:
        if not path.is_file():  # A pipe or a device could block or never end.
            if not path.exists():
                raise DocumentNotFound(f"There is no file {path}.")
            raise InvalidRequest(f"{path} is not a file.")
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHMENT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_ATTACHMENT_BYTES // 1_000_000} MB; attach a smaller file.")
    return data
