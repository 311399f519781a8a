"""Assembles one request: loads the window, pins and recall candidates, and passes them to `quire.view.assembly`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from quire.engine.context import EngineContext
from quire.engine.context_gatherer import ContextGatherer, RequestContext
from quire.engine.recall import Recall
from quire.engine.request import Document, PendingMessage
from quire.errors import InvalidRequest
from quire.log import Window
from quire.model import Entry, Message
from quire.model.manifest import Decision
from quire.view.assembly import ViewAssembly, assemble
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput
from quire.view.references import inline_documents

RECENT_TURNS = 2
"""Turns before a question whose text helps to select rules, references and tools."""
MAX_BATCH_ENTRIES = 200
"""Entries read on each side of a pinned tool call or result to find the rest of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledRequest:
    """An assembly with the window and the context that it was built from."""

    assembly: ViewAssembly
    window: Window
    context: RequestContext

    @property
    def quoted_texts(self) -> tuple[str, ...]:
        """Texts in the request that are not in the log: context blocks and tool definitions. They are stored as
        blobs."""
        texts = [block.text for block in self.context.blocks]
        return (*texts, *[tool.canonical_json() for tool in self.context.tools.definitions])


class Assembler:
    """Assembles requests for one branch."""

    def __init__(
        self, engine: EngineContext, conversation: str, branch: int, *, gatherer: ContextGatherer, recall: Recall
    ) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._gatherer, self._recall = gatherer, recall

    async def assemble(
        self,
        pending: Sequence[PendingMessage] = (),
        *,
        documents: Sequence[Document] = (),
        context: RequestContext | None = None,
        document_decisions: Sequence[Decision] = (),
    ) -> AssembledRequest:
        """Builds the request. Pass `context` to reuse what was gathered for the same question before."""
        engine = self._engine
        window = await engine.store.read_window(
            self._conversation, branch=self._branch, max_tokens=engine.policy.max_input_tokens
        )
        question = find_question(pending, window)
        if context is None:
            base_context = await self._gatherer.gather(
                window.branch, question, recent=partial(_recent_texts, window, pending)
            )
            context = base_context.with_blocks(*map(_to_block, documents))
        pinned = await self._load_pinned(window)
        attached = [digest for each in pending for digest in each.blob_digests()]
        await engine.load_blobs([*window.messages, *pinned], digests=attached)
        view_input = ViewInput(
            conversation=self._conversation,
            branch=self._branch,
            head=window.branch.head_seq,
            blocks=context.blocks,
            tools=_to_tools(context),
            compaction=window.compaction,
            pinned=tuple(pinned),
            not_loaded=window.not_loaded,
            history=window.messages,
            pins=frozenset(window.branch.state.pins),
            pending=tuple(
                inline_documents(each.message, each.references, engine.message_counter.load_text) for each in pending
            ),
            document_decisions=tuple(document_decisions),
            recall_candidates=await self._recall.find_candidates(
                window, question, exclude=[entry.seq for entry in pinned]
            ),
            earlier_decisions=context.decisions,
        )
        calibration = await engine.load_calibration(engine.policy.model)
        assembly = assemble(view_input, engine.policy, engine.message_counter, ratio=calibration.ratio)
        return AssembledRequest(assembly=assembly, window=window, context=context)

    async def assemble_current(self) -> AssembledRequest:
        """The request for the log as it is: answers its newest message if that is unanswered, else has an empty
        question."""
        try:
            return await self.assemble()
        except InvalidRequest:
            return await self.assemble_empty()

    async def assemble_empty(self) -> AssembledRequest:
        """The request with an empty question, which shows what is used before the user writes."""
        return await self.assemble((PendingMessage(Message.user("")),))

    async def _load_pinned(self, window: Window) -> list[Entry]:
        """Loads archived pins. One that belongs to a tool call brings its whole batch, since providers reject half of
        one."""
        by_seq: dict[int, Entry] = {}
        for entry in window.pinned:
            by_seq[entry.seq] = entry
            if entry.role == "tool" or '"tool_call"' in entry.raw:
                by_seq.update((each.seq, each) for each in await self._load_tool_batch(entry))
        return [by_seq[seq] for seq in sorted(by_seq)]

    async def _load_tool_batch(self, entry: Entry) -> list[Entry]:
        """The tool call and all of its results, given either the call or one of the results."""
        neighbours = await self._engine.store.read_range(
            self._conversation,
            branch=self._branch,
            first=max(1, entry.seq - MAX_BATCH_ENTRIES),
            last=entry.seq + MAX_BATCH_ENTRIES,
            kinds=["message"],
        )
        place = next(index for index, each in enumerate(neighbours) if each.seq == entry.seq)
        start = place
        while start > 0 and neighbours[start].role == "tool":
            start -= 1
        end = max(place, start) + 1
        while end < len(neighbours) and neighbours[end].role == "tool":
            end += 1
        return neighbours[start:end]


def find_question(pending: Sequence[PendingMessage], window: Window) -> str:
    """The text that the request answers: the pending message, else the newest user message in the log."""
    if pending:
        return pending[-1].message.text
    newest = next((entry for entry in reversed(window.messages) if entry.role == "user"), None)
    return newest.message.text if newest is not None else ""


def _recent_texts(window: Window, pending: Sequence[PendingMessage]) -> list[str]:
    dialogue = [entry for entry in window.messages[-3 * RECENT_TURNS :] if entry.role in ("user", "assistant")]
    before = dialogue if pending else dialogue[:-1]
    return [text for entry in reversed(before[-RECENT_TURNS:]) if (text := entry.message.text)]


def _to_tools(context: RequestContext) -> tuple[SelectedTool, ...]:
    return tuple([SelectedTool(tool.definition, tool.reason, tool.score) for tool in context.tools.tools])


def _to_block(document: Document) -> ContextBlock:
    return ContextBlock(
        slot="recall" if document.recalled else "references",
        kind="document" if document.recalled else "reference",
        name=document.name,
        text=document.text,
        reason="recalled" if document.recalled else "referenced",
        is_required=False,
    )
