"""Hand-over: what another agent needs to continue a conversation, within a token budget.

It has the task, the state, the decisions, the open ends, the last turns and where to read more; each statement cites
its message (`[#12]`). A summarizer that the settings name writes the state. Without one, all lines are extracted, and
the same conversation always gives the same text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.compaction.citations import find_cited_entries
from quire.concurrency.worker_threads import measure_entries, run_sized
from quire.engine.compactor import Compactor
from quire.engine.state import EngineState
from quire.errors import InvalidRequest, ModelError, SpendCapReached, SpendReserved, SummaryFailed, UnknownPrice
from quire.log import MAIN_BRANCH
from quire.model import Compaction, Entry
from quire.model.base import FrozenModel
from quire.model.secrets import mask_message, mask_secrets
from quire.wire.agent_boilerplate import remove_boilerplate

if TYPE_CHECKING:
    from quire.compaction.handover_text import HandoverMaterial

DEFAULT_HANDOVER_TOKENS = 4_000
MIN_HANDOVER_TOKENS, MAX_HANDOVER_TOKENS = 200, 50_000
MAX_READ_MESSAGES = 2_000
"""Newest messages that are read. Older ones are in the summary, or can be read by number."""
MAX_FIRST_MESSAGES = 4
"""User messages that are searched for the first request: an agent's own context may precede it."""
SUMMARY_SHARE = 0.45
"""Share of the tokens for a summary by a model."""


class Handover(FrozenModel):
    """A hand-over: its Markdown text, and what it is about."""

    conversation: str
    branch: int
    title: str
    source: str | None
    """Program that the conversation comes from."""
    project: str | None
    messages: int
    """Number of the newest entry."""
    text: str
    tokens: int
    max_tokens: int
    model: str | None
    """Model that wrote the state, or None for an extract."""
    sources: tuple[int, ...]
    """Messages that the text cites."""


async def write_handover(
    engine: EngineState,
    conversation: str,
    *,
    branch: int = MAIN_BRANCH,
    max_tokens: int = DEFAULT_HANDOVER_TOKENS,
    calls_model: bool = True,
) -> Handover:
    """Writes the hand-over of a branch in at most `max_tokens`, without changing the branch.

    Secrets are masked. The summarizer is called only if the settings name one. If it fails, the
    state is an extract.
    """
    if not MIN_HANDOVER_TOKENS <= max_tokens <= MAX_HANDOVER_TOKENS:
        raise InvalidRequest(
            f"A hand-over has {MIN_HANDOVER_TOKENS:,} to {MAX_HANDOVER_TOKENS:,} tokens, not {max_tokens:,}."
        )
    material = await _read_material(engine, conversation, branch)
    summary, model = None, None
    if calls_model and engine.document_summarizer is not None:
        compactor = Compactor(engine, conversation, branch)
        try:
            written = await compactor.summarize(
                material.unsummarized, previous=material.summary, target_tokens=int(max_tokens * SUMMARY_SHARE)
            )
        except (SummaryFailed, ModelError, SpendCapReached, SpendReserved, UnknownPrice):
            # An extract takes its place.
            pass
        else:
            summary, model = mask_secrets(written.text), written.model
    from quire.compaction.handover_text import write_handover_text

    counter = engine.message_counter.token_counter
    size = measure_entries((*material.unsummarized, *material.newest))
    text = await run_sized(size, write_handover_text, material, summary=summary, max_tokens=max_tokens, counter=counter)
    origin = material.record.origin
    return Handover(
        conversation=conversation,
        branch=branch,
        title=material.record.title,
        source=origin.client if origin is not None else None,
        project=origin.project if origin is not None else None,
        messages=material.head,
        text=text,
        tokens=counter.count(text),
        max_tokens=max_tokens,
        model=model,
        sources=tuple(sorted(find_cited_entries(text, last_entry=material.head))),
    )


async def _read_material(engine: EngineState, conversation: str, branch: int) -> "HandoverMaterial":
    from quire.compaction.handover_text import HandoverMaterial, find_request

    store = engine.store
    window = await store.read_window(conversation, branch=branch, max_tokens=0)
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    newest = await store.read_tail(conversation, MAX_READ_MESSAGES, branch=branch, kinds=["message"])
    first = await store.read_range(
        conversation, branch=branch, kinds=["message"], roles=["user"], limit=MAX_FIRST_MESSAGES
    )
    body = window.compaction.body if window.compaction is not None else None
    compaction = body if isinstance(body, Compaction) and not body.is_sealed else None
    last_covered = compaction.covers.last if compaction is not None and compaction.covers is not None else 0
    summary = compaction.summary if compaction is not None else None
    client = record.origin.client if record.origin is not None else None

    def clean(entries: Sequence[Entry]) -> list[Entry]:
        spoken = (_remove_boilerplate(each, client) for each in entries)
        return [mask_entry(each) for each in spoken if each is not None]

    size = sum(len(entry.raw) for entry in (*newest, *first))
    newest, first = await run_sized(size, lambda: (clean(newest), clean(first)))
    record = record._replace(title=mask_secrets(record.title))
    summary = mask_secrets(summary) if summary is not None else None
    return HandoverMaterial(
        record,
        branch,
        window.branch.head_seq,
        await run_sized(
            sum(len(entry.raw) for entry in first),
            lambda: next((entry for entry in first if find_request(entry)), None),
        ),
        summary,
        tuple(entry for entry in newest if entry.seq > last_covered),
        tuple(newest),
    )


def _remove_boilerplate(entry: Entry, agent: str | None) -> Entry | None:
    """The entry without what a coding agent added to its message, or None if that is all."""
    message = entry.message
    spoken = remove_boilerplate(message, agent=agent)
    if not spoken.parts:
        return None
    return entry if spoken is message else entry._replace(raw=spoken.canonical_json(), content_digest=None)


def mask_entry(entry: Entry) -> Entry:
    """The entry with the secrets of its message masked. It is no longer what the log has recorded."""
    message = entry.message
    masked = mask_message(message)
    return entry if masked == message else entry._replace(raw=masked.canonical_json(), content_digest=None)
