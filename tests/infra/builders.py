"""Builders of test data: numbered messages, stored entries, a recorded turn, an export."""

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import HealthCheck, settings

from quire.log import Blob, ReplyRecord
from quire.log.exchanges import SentBody, build_row, encode_answer, encode_body, encode_request
from quire.log.types import ExchangeEnd
from quire.model import Compaction, Decision, Draft, Entry, ForwardedRequest, Manifest, Message, Policy, TokenCount
from quire.model.entry_bodies import kind_of
from quire.store import SqlStore
from quire.view.rendered import MessageCounter

# The store outlives one Hypothesis example on purpose: each example creates its own conversation.
property_settings = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


def make_messages(count: int, *, start: int = 1) -> list[Message]:
    """Makes numbered messages, alternating between user and assistant."""
    speakers = (Message.assistant, Message.user)
    return [speakers[number % 2](f"message {number}") for number in range(start, start + count)]


def make_turn(
    *messages: Message, blobs: tuple[Blob, ...] = (), calibration: str = "{}", body: bytes | None = None
) -> ReplyRecord:
    """Makes a turn with these messages, a manifest that references these blobs, and the body that was sent."""
    policy = Policy(model="test", wire_format="chat", window=1_000)
    rows = tuple(
        Decision(
            slot="references",
            kind="reference",
            included=True,
            reason="referenced",
            name=f"blob {number}",
            blob=sha256(blob.data).hexdigest(),
        )
        for number, blob in enumerate(blobs)
    )

    def build_manifest(stored: Sequence[Entry]) -> Manifest:
        return Manifest(
            renderer=1,
            conversation=stored[-1].conversation,
            branch=stored[-1].branch,
            head=stored[0].seq - 1,
            policy=policy,
            counter="openai:test",
            exact=True,
            slots=(),
            total_tokens=stored[-1].seq,
            full_history_tokens=0,
            max_input_tokens=488,
            trigger_tokens=488,
            decisions=rows,
            stable_messages=0,
            digest="",
            forwarded=ForwardedRequest(form="unchanged", digest=sha256(body).hexdigest(), replayable=True)
            if body is not None
            else None,
        )

    drafts = tuple(Draft(body=message) for message in messages)
    return ReplyRecord(
        drafts=drafts,
        build_manifest=build_manifest,
        blobs=blobs,
        calibration=("test", calibration),
        cost=0.25,
    )


async def with_exchange(
    store: SqlStore,
    conversation: str,
    turn: ReplyRecord,
    body: bytes,
    *,
    id: str = "exchange",
    base: SentBody | None = None,
) -> ReplyRecord:
    """The turn as the answer to a request with this body, which is stored before."""
    content = encode_request("messages", {"x-app": "cli"}, body)
    row = build_row(
        conversation=conversation,
        id=id,
        road="managed",
        reason="unchanged",
        model="test",
        branch=0,
        after_seq=0,
        started_at=1,
        body=encode_body(content, base),
    )
    stored = await store.begin_exchange(row)
    assert stored is not None
    end = ExchangeEnd("answered", 200, None, 2, 3, encode_answer({"request-id": "req_1"}, b""))
    return turn._replace(exchange=(stored, end))


def make_entry(seq: int, body: Message | Compaction, message_counter: MessageCounter | None = None) -> Entry:
    """Makes an entry without a database."""
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


async def export_lines(store: SqlStore, conversation: str) -> list[str]:
    return [line async for line in store.export_conversation(conversation)]
