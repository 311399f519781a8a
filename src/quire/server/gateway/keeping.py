"""Record: the question, the reply and the manifest of the request between them, all of it or nothing.

Where someone else spoke in between, the turn becomes a branch. A store that is away for a moment is asked again: the
same turn after the same message is kept once.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import InvalidEntry, StaleHead, StoreBusy, StoreUnavailable
from quire.log import Branch
from quire.model import Entry, Manifest, Message, ThinkingPart, ToolCallPart, Usage
from quire.server.gateway.lines import path_after
from quire.server.gateway.preparing import Prepared
from quire.view.shapes import Reply
from quire.view.shapes.openai_parse import reply as parse_reply

PAUSES = (0.1, 0.5, 2.0)
"""Seconds before a store that cannot be reached is asked again."""


class Kept(NamedTuple):
    entry: Entry
    reply: Reply


async def keep(prepared: Prepared, responses: Sequence[dict[str, Any]], *, unfinished: bool = False) -> Kept | None:
    """The reply as it stands in the log; further choices become branches beside it. None if nothing was said."""
    replies = [reply for response in responses if (reply := _read(response, unfinished=unfinished)) is not None]
    if not replies:
        return None
    first, *others = replies
    first = first if first.usage is not None else first._replace(usage=_estimate(prepared, first.message))
    entry = await _kept(prepared, first, unfinished=unfinished)
    for number, other in enumerate(others, start=1):
        await _beside(prepared, entry, other, name=f"choice {number}")
    return Kept(entry, first)


def _read(response: dict[str, Any], *, unfinished: bool) -> Reply | None:
    """A reply, if anything was said; of one that broke off, calls that are not whole are no part."""
    try:
        reply = parse_reply(response)
    except (InvalidEntry, ValueError):
        return None
    message = _whole(reply.message) if unfinished else reply.message
    said = bool(message.parts or message.provider)
    return reply._replace(message=message) if said else None


def _whole(message: Message) -> Message:
    """After thinking no call is kept: the provider's seal on the thinking comes last, and is missing."""
    thought = any(isinstance(part, ThinkingPart) for part in message.parts)
    parts = tuple(
        part
        for part in message.parts
        if not isinstance(part, ToolCallPart) or (not thought and part.id and part.name and _is_object(part.arguments))
    )
    return message.model_copy(update={"parts": parts})


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _estimate(prepared: Prepared, message: Message) -> Usage:
    """Where the upstream reported nothing: our own counts."""
    manifest = prepared.request.manifest
    read = round(manifest.total * manifest.ratio)
    written = prepared.received.meter.count(message)
    return Usage(model=manifest.policy.model, input_tokens=read, output_tokens=written, estimated=True)


async def _kept(prepared: Prepared, reply: Reply, *, unfinished: bool) -> Entry:
    conversation = prepared.conversation
    told = prepared.told_after(reply.message)
    own = path_after(prepared.request.after, [*(each.message for each in prepared.request.pending), reply.message])
    request = replace(prepared.request, told=told if told != own else None)
    pauses = iter(PAUSES)
    while True:
        try:
            return await conversation.record(reply, request=request, unfinished=unfinished)
        except StaleHead:
            conversation, request = await _elsewhere(conversation, request)
        except (StoreUnavailable, StoreBusy):
            pause = next(pauses, None)
            if pause is None:
                raise
            await asyncio.sleep(pause)


async def _elsewhere(conversation: Conversation, request: Request) -> tuple[Conversation, Request]:
    """A branch that leaves where the request was made, so that both turns stand where they were said."""
    manifest = request.manifest
    branch: Branch = await conversation.engine.store.fork(conversation.id, at=manifest.head, branch=conversation.branch)
    moved = replace(request.assembly, record=lambda: _on(branch.number, manifest))
    forked = Conversation(conversation.engine, conversation.id, branch.number)
    return forked, replace(request, assembly=moved, after=branch.head_path, opens=None)


def _on(branch: int, manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"branch": branch})


async def _beside(prepared: Prepared, entry: Entry, reply: Reply, *, name: str) -> None:
    """Another reply to the same question, on a branch of its own."""
    here = Conversation(prepared.conversation.engine, entry.conversation, entry.branch)
    forked = await here.fork(entry.seq - 1, name=name)
    await forked.append(reply.message)
