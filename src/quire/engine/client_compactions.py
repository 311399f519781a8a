"""Compactions that an agent made itself, and the facts that its summary left out. Read from the log on demand.

An agent asks for a summary with its own prompt after the messages, and sends the summary in place of them from
then on. Claude Code asks on a fork and continues on the branch before; Codex asks on the branch and continues on a
fork.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import NamedTuple, cast

from pydantic_core import from_json

from quire.compaction.lost_facts import LostFacts, find_lost_facts
from quire.concurrency.worker_threads import measure_entries, run_sized
from quire.errors import EntryNotFound
from quire.log import ConversationRecord
from quire.model import Entry, Manifest, Message, TextPart
from quire.rows.boilerplate import CODEX_SUMMARY_OPENING, SUMMARY_PROMPTS
from quire.store import SqlStore
from quire.wire.agent_boilerplate import remove_boilerplate

MAX_ENTRIES = 20_000
"""Newest messages of a conversation's branches that are searched for compactions."""


class ClientCompaction(NamedTuple):
    """A summary that an agent had written, and the messages that it replaces."""

    conversation: str
    branch: int
    """Branch that has the summary."""
    reply: int
    """Number of the reply with the summary."""
    created_at: int
    first: int
    last: int
    """The replaced messages, which the log still has on this branch."""
    messages: int
    """Number of the replaced messages."""
    lost: LostFacts


async def find_client_compactions(
    store: SqlStore, conversation: ConversationRecord, *, since: int = 0
) -> list[ClientCompaction]:
    """The compactions of the agent's session whose summaries were written at `since` or later, oldest first.

    A list that begins with a summary may have begun another conversation of the session.
    """
    own: dict[tuple[str, int, int], Entry] = {}
    room = MAX_ENTRIES
    for record in await _list_session(store, conversation):
        for branch in sorted(await store.list_branches(record.id), key=lambda each: -each.updated_at):
            if branch.updated_at < since or room <= 0:
                break
            first = max(branch.fork_seq + 1, branch.head_seq - room + 1)
            entries = await store.read_range(record.id, branch=branch.number, first=first, kinds=["message"])
            room -= len(entries)
            own |= {(record.id, entry.branch, entry.seq): entry for entry in entries}

    def find_summaries() -> list[tuple[Entry, Entry]]:
        summaries = [
            (prompt, reply)
            for (name, branch, seq), prompt in own.items()
            if prompt.role == "user"
            and any(map(_starts_prompt, prompt.message.parts))
            and (reply := _find_reply(own, name, branch, seq)) is not None
            and reply.created_at >= since
        ]
        return sorted(summaries, key=lambda each: each[1].created_at)

    summaries = await run_sized(measure_entries(own.values()), find_summaries)
    found: list[ClientCompaction] = []
    for number, (prompt, reply) in enumerate(summaries):
        earlier = summaries[number - 1][1] if number else None
        later = [entry for entry in own.values() if entry.role == "assistant" and entry.created_at > reply.created_at]
        following = min(later, key=lambda entry: entry.created_at, default=None)
        found.append(await _compare(store, prompt, reply, earlier=earlier, following=following))
    return found


async def _list_session(store: SqlStore, conversation: ConversationRecord) -> list[ConversationRecord]:
    """The conversations of the same agent in the same session."""
    origin = conversation.origin
    if origin is None or origin.session is None:
        return [conversation]
    records = await store.list_session(origin.session)
    key = (origin.agent, origin.purpose)
    return [each for each in records if each.origin is not None and (each.origin.agent, each.origin.purpose) == key]


async def _compare(
    store: SqlStore, prompt: Entry, reply: Entry, *, earlier: Entry | None, following: Entry | None
) -> ClientCompaction:
    """Compares what the request for the summary has with the summary, and with what the request after it has."""
    covered, manifest = await _read_request(store, reply)
    remaining, sent = (await _read_request(store, following)) if following is not None else ([], None)
    body: bytes | None = None
    if following is not None and sent is not None and sent.forwarded is not None and sent.forwarded.unrecorded_messages:
        # Codex repeats messages of the user's before its summary, which the log has on the covered branch only.
        body = await store.get_request_body(following.conversation, following.seq, branch=following.branch)

    def find() -> tuple[int, LostFacts]:
        messages = {entry.seq: entry.message for entry in covered}
        removed = [(seq, remove_boilerplate(message)) for seq, message in messages.items() if seq < prompt.seq]
        if question := tuple(part for part in prompt.message.parts if not _starts_prompt(part)):
            removed.append((prompt.seq, remove_boilerplate(prompt.message.model_copy(update={"parts": question}))))
        # Codex continues from a summary in a message of the user's.
        opened = {seq for seq, message in messages.items() if message.text.startswith(CODEX_SUMMARY_OPENING)}
        summaries = [(seq, message.text) for seq, message in removed if seq in opened]
        if earlier is not None and manifest and manifest.forwarded and manifest.forwarded.unrecorded_messages:
            # The summary before this one, which the log has only as a reply.
            summaries.append((earlier.seq, extract_summary(earlier.message.text)))
        texts = [extract_summary(reply.message.text)]
        texts += [_join_texts(remove_boilerplate(entry.message)) for entry in remaining]
        return len(removed), find_lost_facts(removed, chain(texts, _list_texts(body or b"{}")), summaries=summaries)

    size = measure_entries((*covered, *remaining, reply)) + len(body or b"")
    removed, lost = await run_sized(size, find)
    seqs = [entry.seq for entry in covered]
    return ClientCompaction(
        conversation=reply.conversation,
        branch=reply.branch,
        reply=reply.seq,
        created_at=reply.created_at,
        first=min(seqs, default=prompt.seq),
        last=max(seqs, default=prompt.seq),
        messages=removed,
        lost=lost,
    )


async def _read_request(store: SqlStore, reply: Entry) -> tuple[list[Entry], Manifest | None]:
    """The stored messages of the client's list that the reply answers."""
    try:
        manifest = await store.get_manifest(reply.conversation, reply.seq, branch=reply.branch)
    except EntryNotFound:
        manifest = None
    # A list of a summary alone has no stored message.
    spans = [row.span.first for row in manifest.included if row.span and row.kind == "message"] if manifest else [1]
    if not spans:
        return [], manifest
    entries = await store.read_range(
        reply.conversation, branch=reply.branch, first=min(spans), last=reply.seq - 1, kinds=["message"]
    )
    return entries, manifest


def _find_reply(entries: Mapping[tuple[str, int, int], Entry], name: str, branch: int, prompt: int) -> Entry | None:
    """The reply to a prompt. Reminders of the system's may be between them."""
    following = (entries.get((name, branch, seq)) for seq in count(prompt + 1))
    found = next(entry for entry in following if entry is None or entry.role != "system")
    return found if found is not None and found.role == "assistant" else None


def _starts_prompt(part: object) -> bool:
    return isinstance(part, TextPart) and part.text.startswith(SUMMARY_PROMPTS)


def _join_texts(message: Message) -> str:
    results = (result.text for result in message.tool_results)
    return "\n".join([message.text, *(call.arguments for call in message.tool_calls), *results])


def _list_texts(body: bytes) -> Iterator[str]:
    """All texts in the list of messages of a request's body, in any format."""
    fields = from_json(body)
    values: list[object] = [fields.get(name) for name in ("messages", "input", "contents")]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            values += cast("dict[str, object]", value).values()
        elif isinstance(value, list):
            values += cast("list[object]", value)


def extract_summary(text: str) -> str:
    """The summary in a reply, without the analysis before it."""
    _, tag, tagged = text.partition("<summary>")
    return (tagged.partition("</summary>")[0] if tag else text).strip()
