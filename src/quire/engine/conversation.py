"""A conversation: its messages in the log, what the model sees of them, and the record of what it saw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.compaction.run import Trigger
from quire.context.items import InSession
from quire.context.tool_search import TOOL_SEARCH
from quire.context.tool_search import read_call as read_search
from quire.engine.assembling import Assembled, Assembler
from quire.engine.compactor import Compactor
from quire.engine.recording import Recorder
from quire.engine.referring import Referring
from quire.engine.request import Asked, Document, Request, as_message, read_reply
from quire.engine.session import Session
from quire.engine.toolbox import Toolbox, merged
from quire.errors import InvalidRequest
from quire.ledger import Change, Replay, diff, replay, why
from quire.log import MAIN, Blob
from quire.model import ContextItem, Decision, Entry, Manifest, Message, Pin, ToolCallPart, Unpin
from quire.model.events import ContextUsageUpdated
from quire.model.notes import DocumentReference
from quire.view.budget import UsageReport
from quire.view.labels import PREFIX
from quire.view.plans import Plan
from quire.view.strategies import strategy_named

if TYPE_CHECKING:
    from quire.engine.engine import Engine


ATTEMPTS = 2
"""So often a history is compacted for one request; then what fits is sent, or `ContextOverflow` says what does not."""


class Conversation:
    """A line of messages, and what the model sees of it."""

    def __init__(self, engine: "Engine", id: str, branch: int = MAIN) -> None:
        self.engine, self.id, self.branch = engine, id, branch
        self._request: Request | None = None
        self._compactor = Compactor(engine, id, branch)
        self._assembler = Assembler(engine, id, branch, gatherer=engine.gatherer, recaller=engine.recaller)
        self._recorder = Recorder(engine, id, branch)
        self._session = Session(engine, id, branch, price=engine.gatherer.price)
        self._toolbox = Toolbox(engine, id, branch, recaller=engine.recaller)
        self._touched: list[DocumentReference] = []

    async def append(self, *messages: Message | str, after: bytes | None = None) -> list[Entry]:
        """Keeps messages, counted, without asking a model anything; `after` as the store takes it."""
        drafts = [self._recorder.draft(Asked(message)) for message in map(as_message, messages)]
        return await self.engine.store.append(self.id, *drafts, branch=self.branch, after=after)

    async def prepare(
        self, message: Message | str | Sequence[Message | str] | None = None, *, documents: Sequence[Document] = ()
    ) -> Request:
        """The request that asks `message`, or that goes on from the log as it is.

        It fits the window. Where the history has outgrown it, the older part is archived first, in the log; the
        message itself is kept when its reply is recorded. Several messages are kept at once, for what a tool answered
        belongs to the call before it.
        """
        await self.engine.check_spending(self.id)
        pending = await self._pending(message)
        made = await self._assembler.assemble(pending, documents=documents)
        referring = await self._referring(pending, made)
        if referring is not None:
            pending = (referring.asked,)
            made = await self._assembler.assemble(pending, around=made.around, quoted=referring.decided)
        compacted: list[Entry] = []
        for _ in range(ATTEMPTS):
            if made.assembly.plan is None:
                break
            entry = await self._compactor.carry_out(made.assembly.plan, made.assembly, made.window, trigger="threshold")
            compacted += [entry] if entry is not None else []
            decided = referring.decided if referring is not None else ()
            made = await self._assembler.assemble(pending, around=made.around, quoted=decided)
        assembly = made.assembly
        self.engine.tell(
            ContextUsageUpdated(
                conversation=self.id,
                branch=self.branch,
                tokens=assembly.wanted,
                trigger=assembly.budget.trigger,
                window=self.engine.policy.window,
            )
        )
        quoted = (*made.quoted, *(referring.texts if referring is not None else ()))
        self._request = Request(
            assembly=assembly,
            pending=pending,
            after=made.window.branch.head_path,
            blobs=tuple(Blob("text/plain", text.encode()) for text in quoted),
            tools=made.around.tools,
            compacted=tuple(compacted),
            load=self.engine.blobs.get,
        )
        return self._request

    async def _pending(self, message: Message | str | Sequence[Message | str] | None) -> tuple[Asked, ...]:
        """What is to be kept with the reply."""
        if message is None:
            return ()
        if isinstance(message, Message | str):
            return (Asked(as_message(message)),)
        if message:
            await self.append(*message)
        return ()

    async def _referring(self, pending: tuple[Asked, ...], made: Assembled) -> Referring | None:
        """The documents that the question names; None if it names none."""
        found = await self.engine.referrer.named_in(pending[0].message) if pending else []
        if not found:
            return None
        assembly, budget = made.assembly, made.assembly.budget
        used = min(assembly.wanted, budget.target) if assembly.outgrown else assembly.wanted
        return self.engine.referrer.decide(pending[0].message, found, left=max(0, budget.trigger - used))

    async def record(self, response: object, *, request: Request | None = None, unfinished: bool = False) -> Entry:
        """Keeps the reply, what it answered, and the manifest of its request (the last prepared, if none is given).

        Takes an OpenAI or Anthropic response, as an object or a dict, a `Message`, or plain text. A reply that broke
        off is marked as `unfinished`.
        """
        request = request or self._request
        if request is None:
            raise InvalidRequest("There is no request to record a reply for; prepare one first.")
        reply = read_reply(response)
        answered = Asked(reply.message, merged(self._touched))
        stored = await self._recorder.record(request, answered, reply, unfinished=unfinished)
        self._touched.clear()
        await self._session.carry(request.tools.entered if request.tools is not None else ())
        self._compact_later(request.assembly.wanted + sum(entry.tokens or 0 for entry in stored))
        return stored[-1]

    async def keep(self, request: Request | None = None) -> tuple[list[Entry], Request]:
        """Puts what the request asks into the log before it is sent, so that nothing is lost if no reply comes.

        Gives the entries, and the request to record the reply for.
        """
        request = request or self._request
        if request is None:
            raise InvalidRequest("There is no request whose question could be kept; prepare one first.")
        entries, self._request = await self._recorder.keep(request)
        return entries, self._request

    def _compact_later(self, tokens: int) -> None:
        """From the lower mark on, so that the next request need not wait for a summary."""
        if self._passes_mark(tokens):
            self.engine.later("compact", (self.id, self.branch), lambda: self._compact_now("background"))

    def _passes_mark(self, tokens: int) -> bool:
        policy, mark = self.engine.policy, self.engine.settings.context_background_threshold
        if mark is None or not self.engine.compacts_in_background:
            return False
        return tokens > min(policy.trigger, int(policy.window * mark))

    async def compact_if_due(self) -> Entry | None:
        """What the background does after a reply, for those who do it elsewhere; None if the mark is not passed."""
        made = await self._assembler.unasked()
        if not self._passes_mark(made.assembly.wanted):
            return None
        await self.engine.check_spending(self.id)
        return await self._compact_now("background")

    async def plan(self) -> Plan | None:
        """What a compaction by hand would do now. Nothing is changed by asking."""
        return (await self._assembler.unasked()).assembly.plan_by_hand()

    async def compact(self, *, instructions: str | None = None, trigger: Trigger = "manual") -> Entry | None:
        """Compacts by hand, whatever the meter says; `instructions` say what the summary must keep.

        None if there is nothing to compact, or if another compaction came first. `trigger` says on whose behalf.
        """
        await self.engine.check_spending(self.id)
        return await self._compact_now(trigger, instructions)

    async def undo(self) -> Entry:
        """Takes the active compaction back: the view is again what it was before."""
        return await self._compactor.undo()

    async def edit_summary(self, text: str) -> Entry:
        """Puts other words in place of the active summary; the old one stays in the log, and undo brings it back."""
        return await self._compactor.edit_summary(text)

    async def _compact_now(self, trigger: Trigger, instructions: str | None = None) -> Entry | None:
        made = await self._assembler.unasked()
        assembly = made.assembly
        plan = assembly.planned(assembly.budget) if trigger == "background" else assembly.plan_by_hand()
        if plan is None:
            return None
        entry = await self._compactor.carry_out(plan, assembly, made.window, trigger=trigger, instructions=instructions)
        if trigger == "background" and strategy_named(self.engine.policy.strategy).recalls:
            # While nobody waits, what was archived is made ready to be recalled.
            await self.engine.recaller.archives.fill(made.window.branch)
        return entry

    async def usage(self) -> UsageReport:
        """The meter: what the next request holds before anything is asked, and the number that triggers."""
        manifest, policy = await self.preview(), self.engine.policy
        return UsageReport(
            slots=manifest.slots,
            total=manifest.wanted,
            window=policy.window,
            reserved=policy.reserved_response_tokens,
            trigger=manifest.trigger,
            exact=manifest.exact,
        )

    async def items(self) -> list[InSession]:
        """The rules, references and tools of the session."""
        return await self._session.items()

    async def add(self, item: ContextItem | str) -> ContextItem:
        """Brings a rule, a reference or a tool of the agent's into the session, by name."""
        return await self._session.add(item)

    async def remove(self, item: ContextItem | str) -> ContextItem:
        """Takes an item out of the session, however it came in."""
        return await self._session.remove(item)

    async def run_tool(self, call: ToolCallPart) -> Message:
        """The answer to a call of one of Quire's own tools, as a message for the log.

        The documents that it read or found are noted on the reply that is recorded next.
        """
        request = self._request
        if call.name == TOOL_SEARCH.name and request is not None and request.tools is not None:
            wanted = read_search(call.arguments)
            if wanted is None:
                return Message.tool(call.id, "tool_search needs a `query`.", is_error=True)
            return Message.tool(call.id, await self._session.search_tools(wanted, request.tools))
        answer = await self._toolbox.answer(call.name, call.arguments, recalled=self._recalled)
        self._touched += answer.references
        return Message.tool(call.id, answer.text, is_error=answer.is_error)

    def _recalled(self) -> list[str]:
        """What the request at hand recalls."""
        if self._request is None:
            return []
        pages = self._request.assembly.pages
        texts = [leaf.message.text for leaf in pages.leaves[pages.stable :]]
        return [text for text in texts if text.startswith(f"<{PREFIX}:")]

    async def preview(self, message: Message | str = "") -> Manifest:
        """What a request would hold that asks this now. Nothing is changed by asking."""
        return (await self._assembler.assemble((Asked(as_message(message)),))).assembly.manifest

    async def pin(self, number: int) -> None:
        """Keeps a message in the view, word for word, whatever is compacted."""
        await self.engine.store.append(self.id, Pin(message=number), branch=self.branch)

    async def unpin(self, number: int) -> None:
        await self.engine.store.append(self.id, Unpin(message=number), branch=self.branch)

    async def fork(self, at: int, *, name: str | None = None) -> "Conversation":
        """Another line that shares everything up to and with entry `at`."""
        branch = await self.engine.store.fork(self.id, at=at, branch=self.branch, name=name)
        return Conversation(self.engine, self.id, branch.number)

    async def messages(self) -> list[Entry]:
        """Every message from the first, archived or not."""
        return await self.engine.store.range(self.id, branch=self.branch, kinds=["message"])

    async def manifest(self, reply: int) -> Manifest:
        """What the request was made of that entry `reply` answered."""
        return await self.engine.store.manifest(self.id, reply, branch=self.branch)

    async def replay(self, reply: int) -> Replay:
        """That request, built again."""
        manifest = await self.manifest(reply)
        for row in manifest.included:
            if row.span is not None:
                shown = await self.engine.store.range(
                    self.id, branch=self.branch, first=row.span.first, last=row.span.last
                )
                await self.engine.blobs.load(shown)
        return await replay(self.engine.store, manifest, load=self.engine.blobs.get)

    async def diff(self, reply: int, other: int) -> list[Change]:
        """What changed from one request to another."""
        return diff(await self.manifest(reply), await self.manifest(other))

    async def why(self, item: int | str, *, reply: int) -> Decision:
        """Why a message, by number, or an item, by name, was in that request or was not."""
        return why(await self.manifest(reply), item)
