"""A request that fits and goes on as it came: its record, made without loading what the client sent anyway.

The record is that of the same request built from the log, so that a replay gives it again; where the client's JSON says
more or other than the log can give, `same` is false, and the digest of the body stands for what was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.engine.request import Asked, Request
from quire.log import Store
from quire.model import Decision, Manifest, Message, Sent, Slot, Span
from quire.server.gateway.asking import Asking
from quire.server.gateway.lines import Line
from quire.server.gateway.places import Place
from quire.server.gateway.variants import Frame, Variant
from quire.view.assemble import RENDERER, Assembly
from quire.view.batches import bind, distinct, leaves_of
from quire.view.budget import Budget, allot, slot_uses
from quire.view.decisions import used_by_slot
from quire.view.leaves import Leaf, Meter, fitting
from quire.view.pages import Pages
from quire.view.shapes import Unit
from quire.view.shapes.fields import objects
from quire.view.strategies import strategy_named

_NOTHING = Message.user("")


@dataclass(frozen=True, kw_only=True)
class Received:
    """A client's request at its place, counted."""

    asking: Asking
    place: Place
    variant: Variant
    frame: Frame
    ratio: float
    """How far the provider's counts for the model exceed ours."""

    @property
    def meter(self) -> Meter:
        return self.variant.engine.meter

    @property
    def new(self) -> tuple[Line, ...]:
        """What is not in the log yet."""
        return self.asking.lines[self.place.known :]

    @cached_property
    def added(self) -> int:
        return sum(self.meter.count(line.message) for line in self.new)

    @cached_property
    def before(self) -> int:
        """Tokens of the lines that are stored; those on record are not counted again."""
        listed = self.place.listed
        if listed is not None and listed[1] == self.meter.name:
            return listed[0]
        return sum(self.meter.count(line.message) for line in self.asking.lines[: self.place.known])

    @cached_property
    def tokens(self) -> int:
        """The whole request as the client made it."""
        form = self.asking.body.get("response_format")
        rest = self.meter.counter.count(str(form)) if form is not None else 0
        return self.meter.shape.overhead + self.frame.tokens + self.before + self.added + rest

    @cached_property
    def budget(self) -> Budget:
        policy = self.variant.engine.policy
        return allot(policy, strategy_named(policy.strategy).shares, ratio=self.ratio)

    @property
    def fits(self) -> bool:
        """Where tokens are only estimated, what the threshold leaves free is needed for the error."""
        if self.place.leans:
            return False
        return self.tokens <= (self.budget.room if self.meter.counter.exact else self.budget.trigger)


async def as_received(received: Received, store: Store, *, id: str, sent: Sent) -> Request:
    """The request as it stands, to be recorded with its reply."""
    drawn = await _drawn(received, store)
    same = sent.same and drawn.same and received.place.first == 0
    sent = sent.model_copy(update={"same": same, "unkept": received.place.first or None})
    policy, budget, place = received.variant.engine.policy, received.budget, received.place

    def record() -> Manifest:
        decisions = (*received.frame.rows, *_rows(received))
        return Manifest(
            renderer=RENDERER,
            conversation=place.conversation,
            branch=place.branch,
            head=place.head,
            policy=policy,
            counter=received.meter.name,
            exact=received.meter.counter.exact,
            ratio=received.ratio,
            slots=slot_uses(budget, used_by_slot(decisions)),
            total=received.tokens,
            wanted=received.tokens,
            room=budget.room,
            trigger=budget.trigger,
            decisions=decisions,
            stable=drawn.pages.stable,
            digest=drawn.pages.digest,
            sent=sent,
        )

    assembly = Assembly(
        pages=drawn.pages,
        wanted=received.tokens,
        budget=budget,
        fixed=received.frame.tokens,
        outgrown=False,
        record=record,
        planned=lambda _: None,
    )
    return Request(
        assembly=assembly,
        pending=tuple(Asked(line.message) for line in received.new),
        after=place.after,
        blobs=received.frame.blobs,
        id=id,
        alone=True,
    )


def _rows(received: Received) -> list[Decision]:
    """The stored lines, and what is asked; a tool's answer stands in one row with the call before it."""
    place, spans = received.place, received.place.spans
    span = Span(first=spans[0], last=spans[1]) if spans is not None else None
    before, added = received.before, received.added
    if span is not None and received.new and _goes_on(received):
        return [_row("newest", before + added, span, asked=True)]
    stored = [_row("messages", before, span)] if span is not None else []
    return [*stored, *([_row("newest", added, None, asked=True)] if place.known < len(received.asking.lines) else [])]


def _row(slot: Slot, tokens: int, span: Span | None, *, asked: bool | None = None) -> Decision:
    reason = "recent" if slot == "messages" else "newest"
    return Decision(slot=slot, what="message", included=True, reason=reason, tokens=tokens, span=span, asked=asked)


def _goes_on(received: Received) -> bool:
    return received.new[0].role == "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    pages: Pages
    same: bool


async def _drawn(received: Received, store: Store) -> _Drawn:
    """The request as the log would give it, and whether that is what the client sent."""
    asking, place = received.asking, received.place
    as_told = place.known == 0 or place.told == place.after
    if as_told and all(line.plain for line in asking.lines):
        leaves = [_light(line) for line in asking.lines]
        return _Drawn(pages=_pages(received, leaves), same=True)
    lines = asking.lines[place.first :]
    groups = await _groups(received, store, as_told=as_told)
    bound = [batch for group in groups for batch in bind(group, received.meter).batches]
    leaves = list(leaves_of(distinct(bound, received.meter)))
    units = [unit for leaf in leaves for unit in leaf.units]
    return _Drawn(pages=_pages(received, leaves), same=_alike(units, lines))


async def _groups(received: Received, store: Store, *, as_told: bool) -> list[list[Leaf]]:
    """Leaves of the stored lines and of the new ones, in the pieces that the rows of the record make of them."""
    meter, place = received.meter, received.place
    stored: list[Leaf] = []
    if as_told:
        stored = [meter.leaf(fitting(line.known), tokens=0) for line in received.asking.lines[: place.known]]
    elif place.spans is not None:
        first, last = place.spans
        entries = place.run or await store.range(
            place.conversation, branch=place.branch, first=first, last=last, kinds=["message"]
        )
        await received.variant.engine.blobs.load(entries)
        stored = [meter.entry(entry) for entry in entries]
    added = [meter.leaf(fitting(line.message), tokens=0) for line in received.new]
    return [[*stored, *added]] if added and _goes_on(received) else [stored, added]


def _light(line: Line) -> Leaf:
    """Of a plain text, all that a digest needs."""
    return Leaf(None, _NOTHING, (), line.encoded, 0, "user", ())


def _pages(received: Received, leaves: Sequence[Leaf]) -> Pages:
    return Pages(
        model=received.variant.engine.policy.model,
        shape=received.meter.shape,
        system=received.frame.system,
        tools=received.frame.tools,
        leaves=tuple(leaves),
        stable=min(len(leaves), received.place.known - received.place.first),
        tokens=received.tokens,
    )


def _alike(units: Sequence[Unit], lines: Sequence[Line]) -> bool:
    if len(units) != len(lines):
        return False
    return all(_telling(unit) == _telling(line.raw) for unit, line in zip(units, lines, strict=True))


def _telling(unit: Unit) -> Unit:
    """Nulls and empty lists say nothing; a content of nothing but one text is that text."""
    told = {name: value for name, value in unit.items() if value is not None and value != []}
    pieces = objects(told.get("content"))
    if len(pieces) == 1 and pieces[0].keys() == {"type", "text"}:
        told["content"] = pieces[0]["text"]
    return told
