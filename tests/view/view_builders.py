"""Builders of view inputs without a database: messages as stored entries."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from quire.model import Compaction, Draft, Entry, Message, Policy, TokenCount
from quire.model.entry_bodies import kind_of
from quire.view.inputs import ViewInput
from quire.view.rendered import MessageCounter
from quire.view.tokens import counter_for
from quire.view.wire_formats import wire_format_for


def make_message_counter(provider: str) -> MessageCounter:
    return MessageCounter(counter_for("gpt-4o"), wire_format_for(provider))  # type: ignore[arg-type]


def make_entry(seq: int, body: Message | Compaction, message_counter: MessageCounter | None = None) -> Entry:
    draft = Draft(body=body)
    digest = sha256(f"{seq} {body.canonical_json()}".encode()).digest()
    count = (
        TokenCount(message_counter.count(body), message_counter.name)
        if message_counter and isinstance(body, Message)
        else None
    )
    return Entry(
        conversation="c",
        branch=0,
        seq=seq,
        kind=kind_of(body),
        role=body.role if isinstance(body, Message) else None,
        author=draft.resolve_author(),
        created_at=seq,
        digest=digest,
        path=digest,
        tokens=count.tokens if count else None,
        counter=count.counter if count else None,
        raw=body.canonical_json(),
        raw_metadata=None,
        purged_at=None,
    )


def make_entries(
    messages: Sequence[Message], *, first_seq: int = 1, message_counter: MessageCounter | None = None
) -> tuple[Entry, ...]:
    return tuple(make_entry(first_seq + index, message, message_counter) for index, message in enumerate(messages))


def make_view_input(history: Sequence[Entry], question: Message | None, **rest: Any) -> ViewInput:
    head = history[-1].seq if history else 0
    pending = () if question is None else (question,)
    return ViewInput(conversation="c", branch=0, head=head, history=tuple(history), pending=pending, **rest)


def make_policy(**changes: Any) -> Policy:
    values = {"model": "gpt-4o", "provider": "openai", "window": 8_192, "reserved_response_tokens": 512} | changes
    return Policy.model_validate(values)
