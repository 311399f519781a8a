"""A conversation: its messages in the log, what the model sees of them, and the record of what it saw."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from quire.compaction.run import Trigger
from quire.engine.compactor import Compactor
from quire.engine.request import Document, Request, as_message, numbered, read_reply
from quire.errors import InvalidRequest, StaleHead
from quire.ledger import Change, Replay, diff, replay, why
from quire.log import MAIN, Blob, Turn, Window
from quire.model import Decision, Draft, Entry, Manifest, Message, Pin, TokenCount, Unpin
from quire.model.events import ContextUsageUpdated
from quire.view.assemble import Assembly, assemble
from quire.view.budget import UsageReport
from quire.view.calibration import observe
from quire.view.material import Block, Material
from quire.view.plans import Plan
from quire.view.shapes import Reply

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

    async def append(self, *messages: Message | str) -> list[Entry]:
        """Keeps messages, counted, without asking a model anything."""
        drafts = [self._draft(message) for message in map(as_message, messages)]
        return await self.engine.store.append(self.id, *drafts, branch=self.branch)

    async def prepare(self, message: Message | str | None = None, *, documents: Sequence[Document] = ()) -> Request:
        """The request that asks `message`, or that goes on from the log as it is.

        It fits the window. Where the history has outgrown it, the older part is archived first, in the log; the
        message itself is kept when its reply is recorded.
        """
        await self.engine.check_spending(self.id)
        pending = () if message is None else (as_message(message),)
        assembly, window = await self._assemble(pending, documents)
        for _ in range(ATTEMPTS):
            if assembly.plan is None:
                break
            await self._compactor.carry_out(assembly.plan, assembly, window, trigger="threshold")
            assembly, window = await self._assemble(pending, documents)
        self.engine.tell(
            ContextUsageUpdated(
                conversation=self.id,
                branch=self.branch,
                tokens=assembly.wanted,
                trigger=assembly.budget.trigger,
                window=self.engine.policy.window,
            )
        )
        quoted = [block.text for block in self._blocks(documents)]
        quoted += [tool.canonical() for tool in self.engine.tools]
        self._request = Request(
            assembly=assembly,
            pending=pending,
            after=window.branch.head_path,
            blobs=tuple(Blob("text/plain", text.encode()) for text in quoted),
        )
        return self._request

    async def record(self, response: object, *, request: Request | None = None) -> Entry:
        """Keeps the reply, what it answered, and the manifest of its request (the last prepared, if none is given).

        Takes an OpenAI or Anthropic response, as an object or a dict, a `Message`, or plain text.
        """
        request = request or self._request
        if request is None:
            raise InvalidRequest("There is no request to record a reply for; prepare one first.")
        reply = read_reply(response)
        drafts = (*(self._draft(message) for message in request.pending), self._draft(reply.message, reply))
        turn = Turn(
            drafts=drafts,
            manifest=partial(_filed, request),
            blobs=request.blobs,
            calibration=await self._observed(request.manifest, reply),
            cost=self.engine.cost(reply.usage, request.manifest.policy.model),
        )
        store = self.engine.store
        try:
            stored = await store.record(self.id, turn, branch=self.branch, after=request.after)
        except StaleHead:
            # Someone else spoke in between; nothing of either is lost.
            stored = await store.record(self.id, turn, branch=self.branch)
        tokens = sum(draft.tokens.tokens for draft in drafts if draft.tokens is not None)
        self._compact_later(request.assembly.wanted + tokens)
        return stored[-1]

    def _compact_later(self, tokens: int) -> None:
        """From the lower mark on, so that the next request need not wait for a summary."""
        policy, mark = self.engine.policy, self.engine.settings.context_background_threshold
        enabled = policy.context_management_enabled and self.engine.summarizer is not None and mark is not None
        if enabled and mark is not None and tokens > min(policy.trigger, int(policy.window * mark)):
            self.engine.start((self.id, self.branch), self._compact_now("background"))

    async def plan(self) -> Plan | None:
        """What a compaction by hand would do now. Nothing is changed by asking."""
        assembly, _ = await self._assemble((Message.user(""),), ())
        return assembly.plan_by_hand()

    async def compact(self, *, instructions: str | None = None) -> Entry | None:
        """Compacts by hand, whatever the meter says; `instructions` say what the summary must keep.

        None if there is nothing to compact, or if another compaction came first.
        """
        await self.engine.check_spending(self.id)
        return await self._compact_now("manual", instructions)

    async def undo(self) -> Entry:
        """Takes the active compaction back: the view is again what it was before."""
        return await self._compactor.undo()

    async def edit_summary(self, text: str) -> Entry:
        """Puts other words in place of the active summary; the old one stays in the log, and undo brings it back."""
        return await self._compactor.edit_summary(text)

    async def _compact_now(self, trigger: Trigger, instructions: str | None = None) -> Entry | None:
        assembly, window = await self._assemble((Message.user(""),), ())
        plan = assembly.plan_by_hand() if trigger == "manual" else assembly.planned(assembly.budget)
        if plan is None:
            return None
        return await self._compactor.carry_out(plan, assembly, window, trigger=trigger, instructions=instructions)

    async def usage(self) -> UsageReport:
        """The meter: what the next request holds before anything is asked, and the number that triggers."""
        assembly, _ = await self._assemble((Message.user(""),), ())
        manifest, policy = assembly.manifest, self.engine.policy
        return UsageReport(
            slots=manifest.slots,
            total=manifest.wanted,
            window=policy.window,
            reserved=policy.reserved_response_tokens,
            trigger=manifest.trigger,
            exact=manifest.exact,
        )

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
                await self.engine.load_blobs(shown)
        return await replay(self.engine.store, manifest, load=self.engine.blob)

    async def diff(self, reply: int, other: int) -> list[Change]:
        """What changed from one request to another."""
        return diff(await self.manifest(reply), await self.manifest(other))

    async def why(self, item: int | str, *, reply: int) -> Decision:
        """Why a message, by number, or an item, by name, was in that request or was not."""
        return why(await self.manifest(reply), item)

    async def _assemble(self, pending: tuple[Message, ...], documents: Sequence[Document]) -> tuple[Assembly, Window]:
        engine = self.engine
        window = await engine.store.window(self.id, branch=self.branch, max_tokens=engine.policy.room)
        pinned = await self._pinned(window)
        await engine.load_blobs([*window.messages, *pinned])
        material = Material(
            conversation=self.id,
            branch=self.branch,
            head=window.branch.head_seq,
            blocks=tuple(self._blocks(documents)),
            tools=engine.tools,
            compaction=window.compaction,
            pinned=tuple(pinned),
            unread=window.unread,
            history=window.messages,
            pins=frozenset(window.branch.state.pins),
            pending=pending,
        )
        calibration = await engine.calibration(engine.policy.model)
        return assemble(material, engine.policy, engine.meter, ratio=calibration.ratio), window

    def _blocks(self, documents: Sequence[Document]) -> list[Block]:
        blocks: list[Block] = []
        if self.engine.instructions:
            text = self.engine.instructions
            blocks.append(
                Block(slot="system", what="instructions", name="instructions", text=text, reason="instructions")
            )
        return blocks + [_block(document) for document in documents]

    async def _pinned(self, window: Window) -> list[Entry]:
        """Archived pins; one that belongs to a tool call comes with the whole batch."""
        kept: dict[int, Entry] = {}
        for entry in window.pinned:
            kept[entry.seq] = entry
            if entry.role == "tool" or '"tool_call"' in entry.raw:
                kept.update((each.seq, each) for each in await self._batch_around(entry))
        return [kept[seq] for seq in sorted(kept)]

    async def _batch_around(self, entry: Entry) -> list[Entry]:
        """From the call before it, if it is a result, to the last result after it."""
        reach = 200
        around = await self.engine.store.range(
            self.id, branch=self.branch, first=max(1, entry.seq - reach), last=entry.seq + reach, kinds=["message"]
        )
        place = next(index for index, each in enumerate(around) if each.seq == entry.seq)
        start = place
        while start > 0 and around[start].role == "tool":
            start -= 1
        end = max(place, start) + 1
        while end < len(around) and around[end].role == "tool":
            end += 1
        return around[start:end]

    def _draft(self, message: Message, reply: Reply | None = None) -> Draft:
        meter = self.engine.meter
        tokens = TokenCount(meter.count(message), meter.name)
        return Draft(body=message, tokens=tokens, usage=reply.usage if reply else None)

    async def _observed(self, manifest: Manifest, reply: Reply) -> tuple[str, str] | None:
        """What the provider's report teaches about the model's counts."""
        if reply.usage is None or not reply.usage.input_tokens:
            return None
        model = manifest.policy.model
        known = await self.engine.calibration(model)
        learnt = observe(known, predicted=manifest.total, reported=reply.usage.input_tokens)
        self.engine.calibrated(model, learnt)
        return model, learnt.canonical()


def _filed(request: Request, stored: Sequence[Entry]) -> Manifest:
    return numbered(request.manifest, stored[: len(request.pending)])


def _block(document: Document) -> Block:
    return Block(
        slot="recall" if document.recalled else "references",
        what="document" if document.recalled else "reference",
        name=document.name,
        text=document.text,
        reason="recalled" if document.recalled else "referenced",
        required=False,
    )
