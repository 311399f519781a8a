"""The tools that read messages: history_search, history_read and history_list."""

from collections.abc import Mapping, Sequence

from quire.engine.search import MessageFilter, MessageHit, MessageSearchResult, search_messages
from quire.errors import EntryNotFound, InvalidRequest
from quire.log.types import Branch, ConversationOrigin, ConversationRecord
from quire.log.worker_threads import run_in_worker
from quire.mcp_server.access import HistoryAccess, branch_or_none, format_time
from quire.mcp_server.answers import (
    MAX_ANSWER_TOKENS,
    MAX_CHARS_PER_TOKEN,
    MAX_SEARCH_TOKENS,
    HistoryHit,
    ListAnswer,
    ListedConversation,
    NextRead,
    ReadAnswer,
    ReadMessage,
    SearchAnswer,
    ToolAnswer,
    fit_answer,
    fit_text,
)
from quire.mcp_server.arguments import HistoryListCall, HistoryReadCall, HistorySearchCall, to_micros
from quire.model import Entry
from quire.search.highlights import make_excerpt
from quire.search.query_words import find_query_words
from quire.view.excerpts import excerpt_message
from quire.view.recalled_messages import message_to_text

MAX_READ_MESSAGES = 50
"""Messages that one call reads from the log; the tokens usually end an answer earlier."""
MESSAGES_AROUND = 5
"""Messages before and after the one that `around` names."""
NEWEST_MESSAGES = 20
"""Messages of an answer to a call without numbers."""
MAX_EXCERPT_TOKENS = 300
"""Tokens of the excerpt of a hit, which has about 75 in English; a rare script has more for each character."""
MAX_TOOL_OUTPUT_CHARS = 1_200
"""Characters of a tool's output or arguments in an answer with several messages."""


async def search(access: HistoryAccess, call: HistorySearchCall) -> ToolAnswer:
    if call.conversation is not None:
        await access.engine.store.get_conversation(call.conversation)
    where = MessageFilter(
        conversations=(call.conversation,) if call.conversation is not None else None,
        project=call.project,
        source=call.source,
        role=call.role,
        since=to_micros(call.since) if call.since is not None else None,
        until=to_micros(call.until, is_end=True) if call.until is not None else None,
    )
    found = await search_messages(access.engine, call.query, where=where, limit=call.limit)
    titled = await access.load_titles(*{each.conversation.id: each.conversation for each in found.messages}.values())
    titles = {each.id: each.title for each in titled}
    # In a thread: masking and counting long messages takes time.
    return await run_in_worker(_build_hits, access, found, titles, call.query)


def _build_hits(
    access: HistoryAccess, found: MessageSearchResult, titles: Mapping[str, str], query: str
) -> SearchAnswer:
    terms = frozenset(term for word in find_query_words(query) for term in word)
    hits = [_to_hit(access, each, titles[each.conversation.id], terms) for each in found.messages]
    hint = None if hits else "No message matches. Try other words or fewer filters; history_list names projects."

    def build(taken: Sequence[HistoryHit]) -> SearchAnswer:
        omitted = len(hits) - len(taken)
        return SearchAnswer(hits=list(taken), omitted=omitted or None, complete=found.complete, hint=hint)

    return fit_answer(hits, build, max_tokens=MAX_SEARCH_TOKENS, counter=access.counter)


def _to_hit(access: HistoryAccess, found: MessageHit, title: str, terms: frozenset[str]) -> HistoryHit:
    entry, origin = found.entry, found.conversation.origin or ConversationOrigin()
    # Masked whole: a secret that an excerpt cuts would not be recognised.
    text = message_to_text(access.mask_message(entry.message))
    return HistoryHit(
        conversation=entry.conversation,
        branch=branch_or_none(entry.branch),
        number=entry.seq,
        role=entry.role or "",
        name=access.to_label(entry.message.name),
        time=format_time(entry.created_at),
        title=access.to_label(title) or "",
        source=access.to_label(origin.client),
        project=access.to_label(origin.project),
        score=round(found.score, 3),
        excerpt=access.cut_text(make_excerpt(text, terms).text, MAX_EXCERPT_TOKENS),
    )


async def list_conversations(access: HistoryAccess, call: HistoryListCall) -> ToolAnswer:
    store = access.engine.store
    origin = ConversationOrigin(client=call.source, project=call.project)
    since = to_micros(call.since) if call.since is not None else 0
    records = await store.list_conversations(limit=call.limit, origin=origin, main_only=True)
    records = await access.load_titles(*(each for each in records if each.updated_at >= since))
    tokens = await store.sum_tokens([each.id for each in records])
    # A conversation without a title has the beginning of its first question.
    questions = await access.load_titles(*(each._replace(title="") for each in records))
    rows = [
        await _to_row(access, each, first_question=question.title, tokens=tokens.get(each.id, 0))
        for each, question in zip(records, questions, strict=True)
    ]
    hint = None
    if not rows:
        is_filtered = (call.project, call.source, call.since) != (None, None, None)
        hint = "Nothing matches; list without filters to see all." if is_filtered else "Nothing is stored yet."

    def build(taken: Sequence[ListedConversation]) -> ListAnswer:
        omitted = len(rows) - len(taken)
        return ListAnswer(conversations=list(taken), omitted=omitted or None, hint=hint)

    return fit_answer(rows, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)


async def _to_row(
    access: HistoryAccess, record: ConversationRecord, *, first_question: str, tokens: int
) -> ListedConversation:
    origin, title = record.origin or ConversationOrigin(), access.to_label(record.title) or ""
    question = access.to_label(first_question)
    branch = await access.engine.store.get_branch(record.id)
    return ListedConversation(
        id=record.id,
        title=title,
        source=access.to_label(origin.client),
        project=access.to_label(origin.project),
        first_question=question if question != title else None,
        last_activity=format_time(record.updated_at),
        messages=branch.head_seq,
        tokens=tokens,
    )


async def read(access: HistoryAccess, call: HistoryReadCall) -> ToolAnswer:
    store = access.engine.store
    branch = await store.get_branch(call.conversation, call.branch)
    [record] = await access.load_titles(await store.get_conversation(call.conversation))
    reader = _Reader(access, branch, access.to_label(record.title) or "", call.max_tokens)
    if call.start is not None:
        if call.first is None:
            raise InvalidRequest("`start` needs `from`, the number of the message to read in full.")
        return await reader.read_part(call.first, call.start)
    first, last = _select_range(call, branch)
    return await reader.read_range(first, last)


def _select_range(call: HistoryReadCall, branch: Branch) -> tuple[int, int]:
    if call.around is not None:
        if call.first is not None or call.last is not None:
            raise InvalidRequest("Give either `around`, or `from` and `to`.")
        return max(1, call.around - MESSAGES_AROUND), call.around + MESSAGES_AROUND
    if call.first is None and call.last is None:
        return max(1, branch.head_seq - NEWEST_MESSAGES + 1), branch.head_seq
    last = call.last if call.last is not None else branch.head_seq
    first = call.first if call.first is not None else max(1, last - NEWEST_MESSAGES + 1)
    if first > last and call.last is not None:
        raise InvalidRequest(f"`from` is {first} and `to` is {last}; the first number must not be larger.")
    return first, last


class _Reader:
    """Reads messages of one branch into answers of at most `max_tokens`."""

    def __init__(self, access: HistoryAccess, branch: Branch, title: str, max_tokens: int) -> None:
        self._access, self._branch, self._title, self._max_tokens = access, branch, title, max_tokens

    async def read_range(self, first: int, last: int) -> ReadAnswer:
        """Messages while they fit; the first one is shortened if it does not fit alone."""
        entries = await self._access.engine.store.read_range(
            self._branch.conversation,
            branch=self._branch.number,
            first=first,
            last=last,
            kinds=["message"],
            limit=MAX_READ_MESSAGES + 1,
        )
        if not entries:
            raise EntryNotFound(
                f"There is no message from #{first} to #{last}; the newest entry is #{self._branch.head_seq}."
            )
        return await run_in_worker(self._build_range, entries)

    async def read_part(self, number: int, start: int) -> ReadAnswer:
        """As much of one message as fits, from the character `start` on."""
        entry = await self._access.engine.store.get_entry(self._branch.conversation, number, branch=self._branch.number)
        if entry.kind != "message":
            raise EntryNotFound(f"#{number} is no message but a {entry.kind}; read another number.")
        return await run_in_worker(self._build_part, entry, start)

    def _build_range(self, entries: Sequence[Entry]) -> ReadAnswer:
        messages: list[ReadMessage] = []
        left_chars = MAX_CHARS_PER_TOKEN * self._max_tokens
        for entry in entries[:MAX_READ_MESSAGES]:
            message = self._to_message(entry)
            left_chars -= len(message.text)
            if left_chars < 0:
                break
            messages.append(message)

        def build(taken: Sequence[ReadMessage]) -> ReadAnswer:
            rest = entries[len(taken) :]
            return self._build(taken, next=NextRead(first=rest[0].seq) if rest else None)

        answer = fit_answer(messages, build, max_tokens=self._max_tokens, counter=self._access.counter)
        # A message that does not fit alone is read in parts.
        return answer if answer.messages else self._build_part(entries[0], 0)

    def _build_part(self, entry: Entry, start: int) -> ReadAnswer:
        text = message_to_text(self._access.mask_message(entry.message))
        if start and start >= len(text):
            raise InvalidRequest(f"Message #{entry.seq} has {len(text):,} characters; nothing starts at {start:,}.")
        after = NextRead(first=entry.seq + 1) if entry.seq < self._branch.head_seq else None

        def build(chars: int) -> ReadAnswer:
            end = min(len(text), start + chars)
            message = self._make_message(entry, text[start:end], chars=len(text) if end - start < len(text) else None)
            return self._build([message], next=NextRead(first=entry.seq, start=end) if end < len(text) else after)

        return fit_text(build, len(text) - start, max_tokens=self._max_tokens, counter=self._access.counter)

    def _to_message(self, entry: Entry) -> ReadMessage:
        whole = self._access.mask_message(entry.message)
        is_tool = whole.role == "tool" or bool(whole.tool_calls)
        excerpt = excerpt_message(whole, MAX_TOOL_OUTPUT_CHARS, seq=entry.seq) if is_tool else whole
        full_text, text = message_to_text(whole), message_to_text(excerpt)
        return self._make_message(entry, text, chars=len(full_text) if text != full_text else None)

    def _make_message(self, entry: Entry, text: str, *, chars: int | None) -> ReadMessage:
        return ReadMessage(
            number=entry.seq,
            role=entry.role or "",
            name=self._access.to_label(entry.message.name),
            time=format_time(entry.created_at),
            text=text,
            chars=chars,
        )

    def _build(self, messages: Sequence[ReadMessage], *, next: NextRead | None) -> ReadAnswer:
        return ReadAnswer(title=self._title, newest=self._branch.head_seq, messages=list(messages), next=next)
