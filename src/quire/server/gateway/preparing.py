"""Prepare: the body that goes upstream, and the record of how it came about.

A request that fits goes as it came, byte for byte. One that does not is fitted: its messages are replaced by those that
Quire chooses, and all else stays as it was.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import ContextOverflow, ConversationExists, InvalidRequest, StaleHead
from quire.log import Conversation as Opened
from quire.log.fresh import new_id, now
from quire.model import Entry, Manifest, Message, Sent
from quire.server.gateway.asking import Asking, encoded
from quire.server.gateway.lines import known_form, path_after
from quire.server.gateway.places import Place
from quire.server.gateway.received import Received, as_received
from quire.server.gateway.variants import Variant

Form = Literal["as_received", "renamed", "fitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What to send, and where its reply is to be kept."""

    content: bytes
    request: Request
    received: Received
    conversation: Conversation

    @property
    def place(self) -> Place:
        return self.received.place

    @property
    def fitted(self) -> bool:
        sent = self.request.manifest.sent
        return sent is not None and sent.form == "fitted"

    def told_after(self, reply: Message) -> bytes | None:
        """The path by which the client will know the reply; None if it does not send its whole list."""
        if self.place.told is None:
            return None
        return path_after(self.place.told, [*(line.known for line in self.received.new), known_form(reply)])

    def place_after(self, reply: Entry, told: bytes | None) -> Place:
        """Where the client's next list goes on."""
        sent = self.request.manifest.sent
        listed = sent.listed if sent is not None else None
        return Place(
            conversation=reply.conversation,
            branch=reply.branch,
            head=reply.seq,
            after=reply.path,
            known=len(self.received.asking.lines) + 1,
            spans=(1, reply.seq),
            told=told,
            listed=(listed + (reply.tokens or 0), self.received.meter.name) if listed is not None else None,
        )


async def prepare(asking: Asking, place: Place, variant: Variant, *, model: str | None, fit: bool = False) -> Prepared:
    """`model` is what the upstream calls it, where that is another name; with `fit`, nothing goes as it came."""
    frame = variant.frame(asking)
    engine = variant.engine.like(agent=frame.agent)
    if not place.opens:
        await engine.check_spending(place.conversation)
    ratio = (await engine.calibration(engine.policy.model)).ratio
    received = Received(asking=asking, place=place, variant=variant, frame=frame, ratio=ratio)
    conversation = Conversation(engine, place.conversation, place.branch)
    number = new_id()
    if fit or not received.fits:
        fitted = await _fitted(received, conversation, id=number, model=model)
        if fitted is not None:
            return fitted
    content = encoded({**asking.body, "model": model}) if model else asking.raw
    sent = _sent("renamed" if model else "as_received", content, received)
    request = await as_received(received, engine.store, id=number, sent=sent)
    return Prepared(content=content, request=_opening(request, place), received=received, conversation=conversation)


def _sent(form: Form, content: bytes, received: Received) -> Sent:
    listed = received.before + received.added if received.place.told is not None else None
    return Sent(form=form, digest=sha256(content).hexdigest(), same=received.frame.same, listed=listed)


def _opening(request: Request, place: Place) -> Request:
    if not place.opens:
        return request
    at = now()
    return replace(request, opens=Opened(place.conversation, "", at, at))


async def _fitted(received: Received, conversation: Conversation, *, id: str, model: str | None) -> Prepared | None:
    """The request with messages that fit; None where there is no valid one to make of it, or it may not be changed."""
    if not conversation.engine.policy.context_management_enabled:
        return None
    _check_frame(received)
    received = await _begun(received, conversation)
    new = received.new
    try:
        request = await conversation.prepare(new[0].message if new else None)
    except InvalidRequest:
        return None
    if request.after != received.place.after:
        raise StaleHead
    messages = [*received.asking.leading, *_messages(request)]
    content = received.asking.with_messages(messages, model=model)
    sent = _sent("fitted", content, received)
    request = replace(request, id=id, alone=True, assembly=_with(request, sent))
    return Prepared(content=content, request=request, received=received, conversation=conversation)


def _check_frame(received: Received) -> None:
    """Instructions and tools stay as they are, so they must leave room for something."""
    frame, room = received.frame, received.budget.room
    if frame.tokens >= room:
        largest = sorted(frame.rows, key=lambda row: -row.tokens)[:5]
        named = [(f"{row.what} {row.name!r}", row.tokens) for row in largest]
        raise ContextOverflow(needed=frame.tokens + received.added, room=room, largest=named)


async def _begun(received: Received, conversation: Conversation) -> Received:
    """With the conversation there, and all that is new in the log but for a single question.

    What a tool answered belongs to the call before it; only a question can wait for its reply.
    """
    place, new = received.place, received.new
    if place.opens:
        with suppress(ConversationExists):
            await conversation.engine.store.create_conversation(place.conversation)
        place = replace(place, opens=False)
    lone_question = len(new) == 1 and new[0].role == "user"
    if new and not lone_question:
        stored = await conversation.append(*(line.message for line in new), after=place.after)
        told = path_after(place.told, [line.known for line in new]) if place.told is not None else None
        place = replace(
            place,
            head=stored[-1].seq,
            after=stored[-1].path,
            known=place.known + len(new),
            spans=(1 if place.spans is None else place.spans[0], stored[-1].seq),
            told=told,
            listed=(received.before + received.added, received.meter.name),
        )
    return replace(received, place=place)


def _messages(request: Request) -> list[dict[str, Any]]:
    """Those of the request but for its instructions, which stay as the client wrote them."""
    messages = request.to_openai()["messages"]
    return messages[1:] if request.assembly.pages.system is not None else messages


def _with(request: Request, sent: Sent) -> Any:
    assembly = request.assembly

    def record() -> Manifest:
        return assembly.manifest.model_copy(update={"sent": sent})

    return replace(assembly, record=record)
