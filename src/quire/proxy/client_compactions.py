"""Compactions by a client, recognized from its list of messages alone.

An agent has the model summarize its list, and then begins a new list with that summary. So a list whose start is not
stored, and in which a message contains the text of a reply that the log has from this session, continues the
conversation that the summary covers. A client that names no session is searched for in the conversations without one,
if its list begins as an agent begins it after a compaction: other clients often begin lists that are not stored. The
request for the summary may not have passed through the gateway. Then the form of the list says that it is one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import EntryNotFound
from quire.log import Branch, ConversationOrigin, ConversationRecord
from quire.model import Compaction, Entry, Message, Span, TextPart
from quire.rows.boilerplate import OPENCODE_SUMMARY_QUESTION, SUMMARY_OPENINGS
from quire.store import SqlStore
from quire.wire.client_messages import ClientMessage, ParsedMessage
from quire.wire.compaction_blocks import read_sealed, read_summary

MIN_SUMMARY_CHARS = 40
"""Shorter replies occur in other messages by chance."""
MAX_SUMMARY_CHARS = 200_000
"""Maximum length of a message that is searched for a summary."""
MAX_SESSION_CONVERSATIONS = 20
"""Maximum number of a session's conversations whose newest replies may be the summary."""
MAX_RECENT_CONVERSATIONS = 50
"""Maximum number of the newest conversations that are searched if the client names no session."""
MAX_SEPARATE_ENTRIES = 3
"""Entries of a conversation that may be a separate call for a summary: instructions, the request, and the reply."""
MAX_SESSION_BRANCHES = 6
"""Maximum number of branches of each, the most recently used ones."""
MAX_QUESTION_ENTRIES = 4
"""Newest messages of a branch among which the instruction to summarize is, and its answer."""
MAX_SEARCHED_COMPACTIONS = 20
"""Newest compactions of a branch that are searched for a summary."""

_ANALYSIS = re.compile(r"<analysis>(?:(?!<analysis>).)*?</analysis>", re.DOTALL)
"""From the last beginning before an end: otherwise every beginning would search the rest of the text for an end."""
_TAG = re.compile(r"</?summary>|Summary:\s")
"""Claude Code writes the second in place of the first, wherever in the reply that is."""


def normalize_summary(text: str) -> str:
    """The text of a summary as it is found in a later list: without its analysis, tags and runs of white space."""
    return " ".join(_TAG.sub("", _ANALYSIS.sub("", text)).split())


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """A reply of a client's session that may be a summary, and where it was recorded."""

    record: ConversationRecord
    branch: Branch
    reply: Entry
    question: Entry | None
    """The user's newest message before it: the instruction to summarize. Reminders of the system's may follow it."""

    @property
    def is_side_call(self) -> bool:
        """Whether the request was no part of the client's conversation. Without a session, only its length says so."""
        origin = self.record.origin
        if origin is None or origin.session is None:
            return self.branch.head_seq <= MAX_SEPARATE_ENTRIES
        return origin.purpose == "side"


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """A summary that the log has no reply for: its request did not pass through the gateway."""

    text: str | None
    """The agent's whole message. None if only the provider can read it."""

    def has(self, compaction: Compaction) -> bool:
        """Whether it is the summary of this compaction. Of sealed ones, the newest is."""
        if self.text is None or not compaction.summary:
            return self.text is None and compaction.is_sealed
        return normalize_summary(compaction.summary) in normalize_summary(self.text)


class FoundSummary(NamedTuple):
    """The place of the message with a summary, and the reply that wrote it."""

    place: int
    reply: SummaryReply
    is_certain: bool
    """Whether the agent's own words open the text, with which no user quotes a reply. If not, stored messages must
    follow the summary."""


def find_summary(messages: Sequence[ClientMessage], replies: Iterable[SummaryReply]) -> FoundSummary | None:
    """The first message that contains one of the replies; the newest reply first.

    Agents put the summary into a message of the user. Where it is a reply again, behind the first message, it was
    written in a separate call, apart from the conversation.
    """
    sealed = {
        content: index for index, each in enumerate(messages) if (content := read_sealed(each.message)) is not None
    }
    texts = {
        index: normalize_summary(text)
        for index, each in enumerate(messages)
        if (each.role == "user" or (each.role == "assistant" and index == 1))
        and MIN_SUMMARY_CHARS <= len(text := each.message.text) <= MAX_SUMMARY_CHARS
    }
    own_replies = {normalize_summary(each.message.text) for each in messages[1:] if each.role == "assistant"}
    for reply in replies:
        if (index := sealed.get(read_sealed(reply.reply.message) or "")) is not None:
            return FoundSummary(index, reply, is_certain=True)
        summary = normalize_summary(reply.reply.message.text)
        if len(summary) < MIN_SUMMARY_CHARS:
            continue
        if reply.is_side_call and summary == texts.get(1) and messages[1].role == "assistant":
            return FoundSummary(1, reply, is_certain=True)
        if summary in own_replies:
            # A reply that the list has as such was no summary: the user quoted it.
            continue
        places = (index for index, text in texts.items() if messages[index].role == "user" and summary in text)
        if (index := next(places, None)) is not None:
            return FoundSummary(index, reply, _has_opening(messages[index].message))
    return None


def _has_opening(message: Message) -> bool:
    """Whether it begins with an agent's words before a summary. Reminders of the agent's may be parts before them."""
    texts = (part.text.lstrip() for part in message.parts if isinstance(part, TextPart))
    return any(text.startswith(SUMMARY_OPENINGS) for text in texts)


def find_summary_form(messages: Sequence[ClientMessage]) -> int | None:
    """The place of the newest summary in a list that begins as a known agent begins it after a compaction."""
    if messages[1:] and messages[1].role == "assistant" and messages[0].message.text == OPENCODE_SUMMARY_QUESTION:
        return 1
    places = (
        index
        for index in range(len(messages) - 1, -1, -1)
        if (each := messages[index])
        and (
            _has_opening(each.message)
            if each.role == "user"
            else not each.is_plain_text and read_sealed(each.message) is not None
        )
    )
    return next(places, None)


def is_continued(record: ConversationRecord, origin: ConversationOrigin) -> bool:
    """Whether the client's session is one that Quire wrote, which continues this conversation."""
    return origin.session is not None and (record.origin is None or record.origin.session != origin.session)


async def list_scope(store: SqlStore, origin: ConversationOrigin) -> list[ConversationRecord]:
    """The conversations of the client's session and agent, the most recently used first. One that the session continues
    is there if the session has none of its own."""
    if origin.session is None:
        records = await store.list_conversations(limit=MAX_RECENT_CONVERSATIONS)
        return [each for each in records if each.origin is None or each.origin.session is None]
    records = await store.list_session(origin.session, limit=MAX_SESSION_CONVERSATIONS)
    own = [each for each in records if each.origin is not None and not is_continued(each, origin)]
    if origin.agent is None and not any(each.is_main for each in own):
        return [*own, *(each for each in records if is_continued(each, origin))]
    return [each for each in own if each.origin is not None and each.origin.agent == origin.agent]


async def load_summary_replies(store: SqlStore, origin: ConversationOrigin) -> list[SummaryReply]:
    """The newest reply of each branch in the client's session, the newest first."""
    found: list[SummaryReply] = []
    for record in await list_scope(store, origin):
        branches = sorted(await store.list_branches(record.id), key=lambda branch: -branch.updated_at)
        for branch in branches[:MAX_SESSION_BRANCHES]:
            newest = await store.read_tail(record.id, MAX_QUESTION_ENTRIES, branch=branch.number, kinds=["message"])
            if newest and newest[-1].role == "assistant" and not newest[-1].message.tool_calls:
                earlier = (entry for entry in reversed(newest[:-1]) if entry.role != "system")
                found.append(SummaryReply(record, branch, newest[-1], next(earlier, None)))
    return sorted(found, key=lambda each: -each.reply.created_at)


async def locate_covered(store: SqlStore, found: SummaryReply, origin: ConversationOrigin) -> tuple[Branch, int] | None:
    """The branch that the list continues, and the last of its entries that the summary replaces.

    The request for the summary is on a fork, if the client left out its newest messages. At the head of the branch
    itself, if it did not; or in a separate conversation.
    """
    branch, question = found.branch, found.question
    if not found.is_side_call and question is not None:
        if branch.lineage and branch.fork_seq >= question.seq - 1:
            parent = await store.get_branch(branch.conversation, branch.lineage[-1][0])
            return parent, branch.fork_seq
        return branch, found.reply.seq
    for record in await list_scope(store, origin):
        if record.id == found.record.id or (record.origin is not None and record.origin.purpose is not None):
            continue
        newest = max(await store.list_branches(record.id), key=lambda each: each.updated_at)
        if origin.session is None:
            # The request has the words of the conversation that it covers.
            transcript = question.message.text if question is not None else ""
            tail = await store.read_tail(record.id, MAX_QUESTION_ENTRIES, branch=newest.number, kinds=["message"])
            texts = [entry.message.text for entry in tail if entry.role in ("user", "assistant")]
            if not any(texts) or any(text not in transcript for text in texts):
                continue
        return newest, newest.head_seq
    return None


async def find_newest_branch(store: SqlStore, origin: ConversationOrigin) -> Branch | None:
    """The branch used last of the conversation of the client's session and agent."""
    for record in await list_scope(store, origin):
        if is_continued(record, origin) or (record.origin is not None and record.origin.purpose == origin.purpose):
            return max(await store.list_branches(record.id), key=lambda each: each.updated_at)
    return None


async def find_recorded(store: SqlStore, branch: Branch, found: SummaryReply | WrittenSummary) -> Entry | None:
    """The entry of the compaction with this summary, active or undone, if the branch has it."""
    if not branch.state.compaction_count:
        return None
    entries = await store.read_tail(
        branch.conversation, MAX_SEARCHED_COMPACTIONS, branch=branch.number, kinds=["compaction"]
    )
    recorded = [(entry, body) for entry in entries if isinstance(body := entry.body, Compaction)]
    if isinstance(found, WrittenSummary):
        return next((entry for entry, body in reversed(recorded) if found.has(body)), None)
    summary = read_summary(found.reply.message)
    # Two summaries may have the same text, so a compaction from before the reply is another one.
    later = (each for each in recorded if each[0].created_at >= found.reply.created_at)
    return next((entry for entry, body in later if body.summary == summary), None)


async def record_announced(store: SqlStore, origin: ConversationOrigin, summary: str) -> Entry | None:
    """Records the compaction that a client announces with its summary, before the first list that begins with it.

    None if the log has no reply with this text: the client's requests do not pass through the gateway.
    """
    replies = await load_summary_replies(store, origin)
    masked = summary if store.masker is None else store.masker.mask_text(summary)
    found = find_summary([ParsedMessage(Message.user(masked))], replies)
    located = await locate_covered(store, found.reply, origin) if found is not None else None
    if found is None or located is None:
        return None
    branch, reply = located[0], found.reply
    recorded = await find_recorded(store, branch, reply)
    if recorded is None:
        newest = await store.read_tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
        compaction = await build_compaction(store, branch, newest[-1].seq if newest else located[1], reply)
        [recorded] = await store.append(branch.conversation, compaction, branch=branch.number)
    return recorded


async def build_compaction(
    store: SqlStore, branch: Branch, covers_last: int, found: SummaryReply | WrittenSummary
) -> Compaction:
    """The entry of a client's compaction on the branch that it continues.

    Tokens before and after it count messages only, as Quire counts them: instructions and tools are sent as before. Of
    a summary whose request the gateway did not see, they are unknown.
    """
    active = branch.state.active_compaction
    compaction = Compaction(
        number=branch.state.compaction_count + 1,
        covers=Span(first=1, last=covers_last),
        summary=found.text if isinstance(found, WrittenSummary) else read_summary(found.reply.message),
        trigger="client",
        strategy="client",
        supersedes=active.seq if active is not None else None,
    )
    if isinstance(found, WrittenSummary):
        return compaction
    usage, reply = found.reply.metadata.usage, found.reply
    try:
        manifest = await store.get_manifest(reply.conversation, reply.seq, branch=reply.branch)
    except EntryNotFound:
        tokens_before = usage.input_tokens if usage is not None else 0
    else:
        tokens_before = sum(row.tokens for row in manifest.included if row.kind == "message")
    model = usage.model if usage is not None else None
    return compaction.model_copy(
        update={"model": model, "tokens_before": tokens_before, "tokens_after": reply.tokens or 0}
    )
