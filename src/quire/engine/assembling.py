"""The material of one request, read from the log and gathered around the question, and the request made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from quire.engine.core import Core
from quire.engine.recalling import Recaller
from quire.engine.request import Asked, Document
from quire.engine.surroundings import Gatherer, Surroundings
from quire.errors import InvalidRequest
from quire.log import Window
from quire.model import Entry, Message
from quire.model.manifest import Decision
from quire.view.assemble import Assembly, assemble
from quire.view.material import Block, Material, Tool
from quire.view.references import as_read

RECENT = 2
"""So many turns before a question are looked at to see what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    assembly: Assembly
    window: Window
    around: Surroundings

    @property
    def quoted(self) -> tuple[str, ...]:
        """The texts that the request quotes from outside the log."""
        texts = [block.text for block in self.around.blocks]
        return (*texts, *[tool.canonical() for tool in self.around.tools.definitions])


class Assembler:
    """Makes requests for one branch."""

    def __init__(self, engine: Core, conversation: str, branch: int, *, gatherer: Gatherer, recaller: Recaller) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._gatherer, self._recaller = gatherer, recaller

    async def assemble(
        self,
        asked: Sequence[Asked] = (),
        *,
        documents: Sequence[Document] = (),
        around: Surroundings | None = None,
        quoted: Sequence[Decision] = (),
    ) -> Assembled:
        """`around` is what was gathered for the same question before, if it was."""
        engine = self._engine
        window = await engine.store.window(self._conversation, branch=self._branch, max_tokens=engine.policy.room)
        question = question_of(asked, window)
        if around is None:
            gathered = await self._gatherer.around(window.branch, question, recent=partial(_recent, window, asked))
            around = gathered.joined(*map(_block, documents))
        pinned = await self._pinned(window)
        await engine.blobs.load([*window.messages, *pinned])
        material = Material(
            conversation=self._conversation,
            branch=self._branch,
            head=window.branch.head_seq,
            blocks=around.blocks,
            tools=_tools(around),
            compaction=window.compaction,
            pinned=tuple(pinned),
            unread=window.unread,
            history=window.messages,
            pins=frozenset(window.branch.state.pins),
            pending=tuple(as_read(each.message, each.references, engine.meter.text_of) for each in asked),
            quoted=tuple(quoted),
            recalled=await self._recaller.candidates(window, question, leaving=[entry.seq for entry in pinned]),
            decided=around.decided,
        )
        calibration = await engine.calibration(engine.policy.model)
        assembly = assemble(material, engine.policy, engine.meter, ratio=calibration.ratio)
        return Assembled(assembly=assembly, window=window, around=around)

    async def unasked(self) -> Assembled:
        """What the log as it is would be sent as: with a question of nothing, unless its own newest is unanswered."""
        try:
            return await self.assemble()
        except InvalidRequest:
            return await self.empty()

    async def empty(self) -> Assembled:
        """What a request would hold before anything is asked."""
        return await self.assemble((Asked(Message.user("")),))

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
        around = await self._engine.store.range(
            self._conversation,
            branch=self._branch,
            first=max(1, entry.seq - reach),
            last=entry.seq + reach,
            kinds=["message"],
        )
        place = next(index for index, each in enumerate(around) if each.seq == entry.seq)
        start = place
        while start > 0 and around[start].role == "tool":
            start -= 1
        end = max(place, start) + 1
        while end < len(around) and around[end].role == "tool":
            end += 1
        return around[start:end]


def question_of(asked: Sequence[Asked], window: Window) -> str:
    """What the request is to answer: the message that is asked, else the newest of a user's in the log."""
    if asked:
        return asked[-1].message.text
    newest = next((entry for entry in reversed(window.messages) if entry.role == "user"), None)
    return newest.message.text if newest is not None else ""


def _recent(window: Window, asked: Sequence[Asked]) -> list[str]:
    spoken = [entry for entry in window.messages[-3 * RECENT :] if entry.role in ("user", "assistant")]
    before = spoken if asked else spoken[:-1]
    return [text for entry in reversed(before[-RECENT:]) if (text := entry.message.text)]


def _tools(around: Surroundings) -> tuple[Tool, ...]:
    return tuple([Tool(tool.definition, tool.reason, tool.score) for tool in around.tools.tools])


def _block(document: Document) -> Block:
    return Block(
        slot="recall" if document.recalled else "references",
        what="document" if document.recalled else "reference",
        name=document.name,
        text=document.text,
        reason="recalled" if document.recalled else "referenced",
        required=False,
    )
