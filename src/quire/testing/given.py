"""What tests of a store begin with: numbered messages, an answered turn, an export."""

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import HealthCheck, settings

from quire.log import Blob, Store, Turn
from quire.model import Decision, Draft, Entry, Manifest, Message, Policy

# The store outlives one example on purpose: each makes a conversation of its own.
for_any = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


def turns(count: int, *, start: int = 1) -> list[Message]:
    """Numbered messages, a user's and an assistant's in turn."""
    speakers = (Message.assistant, Message.user)
    return [speakers[number % 2](f"message {number}") for number in range(start, start + count)]


def answered(*messages: Message, blobs: tuple[Blob, ...] = (), calibration: str = "{}") -> Turn:
    """A turn with these messages and a manifest that quotes these blobs."""
    policy = Policy(model="test", provider="openai", window=1_000)
    rows = tuple(
        Decision(
            slot="references",
            what="reference",
            included=True,
            reason="referenced",
            name=f"blob {number}",
            blob=sha256(blob.data).hexdigest(),
        )
        for number, blob in enumerate(blobs)
    )

    def manifest(stored: Sequence[Entry]) -> Manifest:
        return Manifest(
            renderer=1,
            conversation=stored[-1].conversation,
            branch=stored[-1].branch,
            head=stored[0].seq - 1,
            policy=policy,
            counter="openai:test",
            exact=True,
            slots=(),
            total=stored[-1].seq,
            wanted=0,
            room=488,
            trigger=488,
            decisions=rows,
            stable=0,
            digest="",
        )

    drafts = tuple(Draft(body=message) for message in messages)
    return Turn(drafts=drafts, manifest=manifest, blobs=blobs, calibration=("test", calibration), cost=0.25)


async def exported(store: Store, conversation: str) -> list[str]:
    return [line async for line in store.export(conversation)]
