"""Builders of view inputs without a database."""

from collections.abc import Sequence
from typing import Any

from quire.model import Entry, Message, Policy
from quire.view.inputs import ViewInput
from quire.view.rendered import MessageCounter
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for


def make_message_counter(provider: str) -> MessageCounter:
    return MessageCounter(counter_for("gpt-4o"), wire_format_for(provider))  # type: ignore[arg-type]


def make_view_input(history: Sequence[Entry], question: Message | None, **rest: Any) -> ViewInput:
    head = history[-1].seq if history else 0
    pending = () if question is None else (question,)
    return ViewInput(conversation="c", branch=0, head=head, history=tuple(history), pending=pending, **rest)


def make_policy(**changes: Any) -> Policy:
    values = {"model": "gpt-4o", "wire_format": "chat", "window": 8_192, "reserved_response_tokens": 512} | changes
    return Policy.model_validate(values)
