"""Material for views, without a database: messages as entries that someone could have stored."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from quire.model import Compaction, Draft, Entry, Message, Policy, TokenCount
from quire.model.entries import kind_of
from quire.view.leaves import Meter
from quire.view.material import Material
from quire.view.shapes import shape_for
from quire.view.tokens import counter_for


def meter_for(provider: str) -> Meter:
    return Meter(counter_for("gpt-4o"), shape_for(provider))  # type: ignore[arg-type]


def entry(seq: int, body: Message | Compaction, meter: Meter | None = None) -> Entry:
    draft = Draft(body=body)
    digest = sha256(f"{seq} {body.canonical()}".encode()).digest()
    counted = TokenCount(meter.count(body), meter.name) if meter and isinstance(body, Message) else None
    return Entry(
        conversation="c",
        branch=0,
        seq=seq,
        kind=kind_of(body),
        role=body.role if isinstance(body, Message) else None,
        author=draft.written_by(),
        at=seq,
        digest=digest,
        path=digest,
        tokens=counted.tokens if counted else None,
        counter=counted.counter if counted else None,
        raw=body.canonical(),
        raw_notes=None,
        purged_at=None,
    )


def entries(messages: Sequence[Message], *, first: int = 1, meter: Meter | None = None) -> tuple[Entry, ...]:
    return tuple(entry(first + index, message, meter) for index, message in enumerate(messages))


def material(history: Sequence[Entry], asked: Message | None, **rest: Any) -> Material:
    head = history[-1].seq if history else 0
    pending = () if asked is None else (asked,)
    return Material(conversation="c", branch=0, head=head, history=tuple(history), pending=pending, **rest)


def policy(**changes: Any) -> Policy:
    given = {"model": "gpt-4o", "provider": "openai", "window": 8_192, "reserved_response_tokens": 512} | changes
    return Policy.model_validate(given)
