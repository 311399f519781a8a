"""Builders of test data: numbered messages, a recorded turn, an export."""

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import HealthCheck, settings

from quire.log import Blob, ReplyRecord, Store
from quire.model import Decision, Draft, Entry, Manifest, Message, Policy

# The store outlives one Hypothesis example on purpose: each example creates its own conversation.
property_settings = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


def make_messages(count: int, *, start: int = 1) -> list[Message]:
    """Makes numbered messages, alternating between user and assistant."""
    speakers = (Message.assistant, Message.user)
    return [speakers[number % 2](f"message {number}") for number in range(start, start + count)]


def make_turn(*messages: Message, blobs: tuple[Blob, ...] = (), calibration: str = "{}") -> ReplyRecord:
    """Makes a turn with these messages and a manifest that references these blobs."""
    policy = Policy(model="test", provider="openai", window=1_000)
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
        )

    drafts = tuple(Draft(body=message) for message in messages)
    return ReplyRecord(
        drafts=drafts, build_manifest=build_manifest, blobs=blobs, calibration=("test", calibration), cost=0.25
    )


async def export_lines(store: Store, conversation: str) -> list[str]:
    return [line async for line in store.export_conversation(conversation)]
