"""The tools: search, read and list conversations, explain a request, search and write memories, edit a context."""

from collections.abc import Sequence
from typing import assert_never

from quire.concurrency.worker_threads import measure_entries, run_in_worker, run_sized
from quire.engine import Conversation
from quire.engine.memory_writer import write_cited_memory
from quire.engine.search import REQUEST_REFRESH_SECONDS, MessageFilter, search_memories, search_messages
from quire.errors import EntryNotFound, InsufficientScope, InvalidRequest, MemoryNotFound, RequestNotFound
from quire.ledger.cache_history import load_cache_report
from quire.log.types import Branch, Citation, ConversationOrigin, Memory
from quire.mcp_server.access import HistoryAccess, branch_or_none, format_time
from quire.mcp_server.answers import (
    MAX_ANSWER_TOKENS,
    MAX_CHARS_PER_TOKEN,
    MAX_SEARCH_TOKENS,
    ContextAnswer,
    ExplainAnswer,
    ExplainedCacheBreak,
    ExplainedItem,
    HistoryHit,
    LargeMessage,
    ListAnswer,
    ListedConversation,
    MemoryAnswer,
    MemoryHit,
    NextRead,
    ReadAnswer,
    ReadMessage,
    SearchAnswer,
    SlotTokens,
    ToolAnswer,
    WaitingEffect,
    WrittenMemory,
    fit_answer,
    fit_text,
)
from quire.mcp_server.arguments import (
    ContextDropCall,
    ContextExplainCall,
    ContextRestoreCall,
    ContextUsageCall,
    HistoryListCall,
    HistoryReadCall,
    HistorySearchCall,
    HistoryToolCall,
    MemorySearchCall,
    MemoryWriteCall,
    to_micros,
)
from quire.model import Entry
from quire.proxy.edit_effects import EditEffect, load_effect
from quire.search.passages import make_excerpt
from quire.search.tokenizer import tokenize_query
from quire.view.excerpts import excerpt_message
from quire.view.recalled_messages import message_to_text, to_searchable_text

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
MAX_LARGE_MESSAGES = 20
"""Messages that context_usage lists."""
MAX_EXPLAINED_ROWS = 60
"""Rows of a manifest in one answer."""


async def run_tool(access: HistoryAccess, call: HistoryToolCall) -> ToolAnswer:
    match call:
        case HistorySearchCall():
            return await search_history(access, call)
        case HistoryReadCall():
            return await read_messages(access, call)
        case HistoryListCall():
            return await list_conversations(access, call)
        case ContextExplainCall(conversation=conversation, reply=reply, branch=branch):
            return await explain_request(access, conversation, reply, branch=branch)
        case MemorySearchCall():
            return await find_memories(access, call)
        case MemoryWriteCall():
            _check_write(access, call)
            citation = Citation(call.conversation, call.branch, call.number)
            memory = await write_cited_memory(access.engine, call.text, citation=citation)
            return WrittenMemory(memory=_to_memory(access, memory))
        case ContextUsageCall() | ContextDropCall() | ContextRestoreCall():
            _check_write(access, call)
            return await edit_context(access, call)
    assert_never(call)


def _check_write(access: HistoryAccess, call: HistoryToolCall) -> None:
    if not access.may_write:
        raise InsufficientScope(
            f"{call.tool_name} is off: it needs an API key with the scope `write`, or `quire mcp --write` on this "
            "machine."
        )


async def edit_context(
    access: HistoryAccess, call: ContextUsageCall | ContextDropCall | ContextRestoreCall
) -> ToolAnswer:
    """Drops or restores messages, and says what the context has after the newest request."""
    store = access.engine.store
    await store.get_conversation(call.conversation)
    conversation = Conversation(access.engine, call.conversation, call.branch)
    match call:
        case ContextDropCall():
            for number in call.numbers:
                await conversation.drop(number, reason=call.reason, now=call.now)
        case ContextRestoreCall():
            for number in call.numbers:
                await conversation.restore(number, now=call.now)
        case ContextUsageCall():
            pass
    state = (await store.get_branch(call.conversation, call.branch)).state
    effect = await load_effect(conversation)
    answer = ContextAnswer(
        conversation=call.conversation,
        branch=branch_or_none(call.branch),
        dropped=sorted(state.dropped),
        pinned=list(state.pins),
        waiting=_to_waiting(effect) if effect is not None else None,
    )
    newest = await store.list_manifests(call.conversation, branch=call.branch, limit=1)
    if not newest or not isinstance(call, ContextUsageCall):
        return answer
    reply, manifest = newest[0]
    usage = (await store.get_entry(call.conversation, reply, branch=call.branch)).metadata.usage
    spans = [row.span for row in manifest.included if row.span is not None and row.kind == "message"]
    first = min((span.first for span in spans), default=1)
    entries = await store.read_range(call.conversation, branch=call.branch, first=first, kinds=["message"])
    in_context = [each for each in entries if each.seq not in state.dropped]
    largest = sorted(in_context, key=lambda each: -(each.tokens or 0))[:MAX_LARGE_MESSAGES]
    return answer.model_copy(
        update={
            "tokens": usage.input_tokens if usage is not None else manifest.total_tokens,
            "max_input_tokens": manifest.max_input_tokens,
            "largest": [
                LargeMessage(number=each.seq, role=each.role or "", tokens=each.tokens or 0) for each in largest
            ],
        }
    )


def _to_waiting(effect: EditEffect) -> WaitingEffect:
    waiting, cost, unedited = effect.waiting, effect.cost, effect.unedited_cost
    return WaitingEffect(
        numbers=sorted({*waiting.drops, *waiting.restores, *waiting.quotes}),
        moment=effect.moment,
        cold_in_seconds=effect.cold_in_seconds,
        removed_tokens=effect.removed_tokens,
        added_tokens=effect.added_tokens,
        prompt_tokens=effect.prompt_tokens,
        rewritten_tokens=effect.rewritten_tokens,
        cost_usd=cost.usd if cost.is_complete else None,
        unedited_cost_usd=unedited.usd if unedited.is_complete else None,
    )


async def search_history(access: HistoryAccess, call: HistorySearchCall) -> ToolAnswer:
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
    results = await search_messages(
        access.engine, call.query, where=where, limit=call.limit, refresh_seconds=REQUEST_REFRESH_SECONDS
    )
    titled = await access.load_titles(*{each.conversation.id: each.conversation for each in results.messages}.values())
    titles = {each.id: each.title for each in titled}

    def build_answer() -> SearchAnswer:
        terms = tokenize_query(call.query)
        hits: list[HistoryHit] = []
        for result in results.messages:
            entry, origin = result.entry, result.conversation.origin or ConversationOrigin()
            # Masked whole: a secret that an excerpt cuts would not be recognised.
            text = to_searchable_text(access.mask_message(entry.message))
            hit = HistoryHit(
                conversation=entry.conversation,
                branch=branch_or_none(entry.branch),
                number=entry.seq,
                role=entry.role or "",
                name=access.to_label(entry.message.name),
                time=format_time(entry.created_at),
                title=access.to_label(titles[result.conversation.id]) or "",
                source=access.to_label(origin.client),
                project=access.to_label(origin.project),
                score=round(result.score, 3),
                excerpt=access.cut_text(make_excerpt(text, terms).text, MAX_EXCERPT_TOKENS),
            )
            hits.append(hit)
        hint = None if hits else "No message matches. Try other words or fewer filters; history_list names projects."

        def build(taken: Sequence[HistoryHit]) -> SearchAnswer:
            omitted = len(hits) - len(taken)
            return SearchAnswer(hits=list(taken), omitted=omitted or None, complete=results.complete, hint=hint)

        return fit_answer(hits, build, max_tokens=MAX_SEARCH_TOKENS, counter=access.counter)

    return await run_sized(measure_entries(result.entry for result in results.messages), build_answer)


async def list_conversations(access: HistoryAccess, call: HistoryListCall) -> ToolAnswer:
    store = access.engine.store
    filters = ConversationOrigin(client=call.source, project=call.project)
    since = to_micros(call.since) if call.since is not None else 0
    records = await store.list_conversations(limit=call.limit, origin=filters, main_only=True)
    records = await access.load_titles(*(each for each in records if each.updated_at >= since))
    tokens = await store.sum_tokens([each.id for each in records])
    # A conversation without a title has the beginning of its first question.
    questions = await access.load_titles(*(each._replace(title="") for each in records))
    rows: list[ListedConversation] = []
    for record, first in zip(records, questions, strict=True):
        origin, title = record.origin or ConversationOrigin(), access.to_label(record.title) or ""
        question = access.to_label(first.title)
        row = ListedConversation(
            id=record.id,
            title=title,
            source=access.to_label(origin.client),
            project=access.to_label(origin.project),
            first_question=question if question != title else None,
            last_activity=format_time(record.updated_at),
            messages=(await store.get_branch(record.id)).head_seq,
            tokens=tokens.get(record.id, 0),
        )
        rows.append(row)
    hint = None
    if not rows:
        is_filtered = (call.project, call.source, call.since) != (None, None, None)
        hint = "Nothing matches; list without filters to see all." if is_filtered else "Nothing is stored yet."

    def build(taken: Sequence[ListedConversation]) -> ListAnswer:
        omitted = len(rows) - len(taken)
        return ListAnswer(conversations=list(taken), omitted=omitted or None, hint=hint)

    return fit_answer(rows, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)


async def read_messages(access: HistoryAccess, call: HistoryReadCall) -> ToolAnswer:
    store = access.engine.store
    branch = await store.get_branch(call.conversation, call.branch)
    [record] = await access.load_titles(await store.get_conversation(call.conversation))
    builder = _ReadAnswerBuilder(access, branch, access.to_label(record.title) or "", call.max_tokens)
    if call.start is not None:
        if call.first is None:
            raise InvalidRequest("`start` needs `from`, the number of the message to read in full.")
        entry = await store.get_entry(call.conversation, call.first, branch=call.branch)
        if entry.kind != "message":
            raise EntryNotFound(f"#{call.first} is no message but a {entry.kind}; read another number.")
        return await run_sized(len(entry.raw), builder.build_part, entry, call.start)
    if call.around is not None:
        if call.first is not None or call.last is not None:
            raise InvalidRequest("Give either `around`, or `from` and `to`.")
        first, last = max(1, call.around - MESSAGES_AROUND), call.around + MESSAGES_AROUND
    else:
        last = call.last if call.last is not None else branch.head_seq
        first = call.first if call.first is not None else max(1, last - NEWEST_MESSAGES + 1)
        if first > last and call.last is not None:
            raise InvalidRequest(f"`from` is {first} and `to` is {last}; the first number must not be larger.")
    entries = await store.read_range(
        call.conversation, branch=call.branch, first=first, last=last, kinds=["message"], limit=MAX_READ_MESSAGES + 1
    )
    if not entries:
        raise EntryNotFound(f"There is no message from #{first} to #{last}; the newest entry is #{branch.head_seq}.")
    return await run_sized(measure_entries(entries), builder.build_range, entries)


class _ReadAnswerBuilder:
    """Builds answers of at most `max_tokens` with messages of one branch."""

    def __init__(self, access: HistoryAccess, branch: Branch, title: str, max_tokens: int) -> None:
        self._access, self._branch, self._title, self._max_tokens = access, branch, title, max_tokens

    def build_range(self, entries: Sequence[Entry]) -> ReadAnswer:
        """Messages while they fit; the first one is shortened if it does not fit alone."""
        messages: list[ReadMessage] = []
        left_chars = MAX_CHARS_PER_TOKEN * self._max_tokens
        for entry in entries[:MAX_READ_MESSAGES]:
            whole = self._access.mask_message(entry.message)
            is_tool = whole.role == "tool" or bool(whole.tool_calls)
            excerpt = excerpt_message(whole, MAX_TOOL_OUTPUT_CHARS, seq=entry.seq) if is_tool else whole
            full_text, text = message_to_text(whole), message_to_text(excerpt)
            left_chars -= len(text)
            if left_chars < 0:
                break
            messages.append(self._make_message(entry, text, chars=len(full_text) if text != full_text else None))

        def build(taken: Sequence[ReadMessage]) -> ReadAnswer:
            rest = entries[len(taken) :]
            return self._build(taken, next=NextRead(first=rest[0].seq) if rest else None)

        answer = fit_answer(messages, build, max_tokens=self._max_tokens, counter=self._access.counter)
        # A message that does not fit alone is read in parts.
        return answer if answer.messages else self.build_part(entries[0], 0)

    def build_part(self, entry: Entry, start: int) -> ReadAnswer:
        """As much of one message as fits, from the character `start` on."""
        text = message_to_text(self._access.mask_message(entry.message))
        if start and start >= len(text):
            raise InvalidRequest(f"Message #{entry.seq} has {len(text):,} characters; nothing starts at {start:,}.")
        after = NextRead(first=entry.seq + 1) if entry.seq < self._branch.head_seq else None

        def build(chars: int) -> ReadAnswer:
            end = min(len(text), start + chars)
            message = self._make_message(entry, text[start:end], chars=len(text) if end - start < len(text) else None)
            return self._build([message], next=NextRead(first=entry.seq, start=end) if end < len(text) else after)

        return fit_text(build, len(text) - start, max_tokens=self._max_tokens, counter=self._access.counter)

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


async def explain_request(access: HistoryAccess, conversation: str, reply: int | None, *, branch: int) -> ExplainAnswer:
    store = access.engine.store
    if reply is None:
        newest = await store.list_manifests(conversation, branch=branch, limit=1)
        if not newest:
            raise RequestNotFound(
                f"No request of {conversation!r} is recorded: its messages were imported or appended. "
                "Read them with history_read."
            )
        reply, manifest = newest[0]
    else:
        manifest = await store.get_manifest(conversation, reply, branch=branch)
    # What was left out first: a client sees what was in, but not what was missing.
    rows = [*manifest.excluded, *manifest.included]
    compute_cost = access.engine.config.compute_cost
    report = await load_cache_report(store, conversation, branch=branch, reply=reply, compute_cost=compute_cost)
    cache_break = None
    if report.breaks:
        found = report.breaks[0]
        cache_break = ExplainedCacheBreak(
            kind=found.kind,
            detail=access.to_label(found.detail) or "",
            place=found.place,
            before=access.to_label(found.before),
            after=access.to_label(found.after),
            tokens=found.tokens,
            cost_usd=found.cost_usd,
        )

    def build(taken: Sequence[ExplainedItem]) -> ExplainAnswer:
        excluded = min(len(taken), len(manifest.excluded))
        return ExplainAnswer(
            conversation=manifest.conversation,
            branch=branch_or_none(manifest.branch),
            reply=reply,
            model=access.to_label(manifest.policy.model) or "",
            tokens=manifest.total_tokens,
            exact=manifest.exact,
            max_input_tokens=manifest.max_input_tokens,
            slots=[SlotTokens(slot=each.slot, used=each.used, budget=each.budget) for each in manifest.slots],
            included=list(taken[excluded:]),
            left_out=list(taken[:excluded]),
            omitted=len(rows) - len(taken) or None,
            cache_break=cache_break,
        )

    def build_answer() -> ExplainAnswer:
        items: list[ExplainedItem] = []
        for row in rows[:MAX_EXPLAINED_ROWS]:
            first, last = (row.span.first, row.span.last) if row.span is not None else (0, 0)
            numbers = "" if row.span is None else f"#{first}" if first == last else f"#{first}-#{last}"
            item = access.to_label(row.name) or numbers
            items.append(ExplainedItem(kind=row.kind, item=item, slot=row.slot, reason=row.reason, tokens=row.tokens))
        return fit_answer(items, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)

    return await run_in_worker(build_answer)


async def find_memories(access: HistoryAccess, call: MemorySearchCall) -> ToolAnswer:
    memories: list[MemoryHit] = []
    for hit in await search_memories(access.engine, call.query, limit=call.limit):
        try:
            memory = await access.engine.store.memories.get(hit.key)
        except MemoryNotFound:
            continue
        memories.append(_to_memory(access, memory, score=round(hit.score, 3)))
    hint = None if memories else "No memory matches. Try other words, or history_search."

    def build(taken: Sequence[MemoryHit]) -> MemoryAnswer:
        omitted = len(memories) - len(taken)
        return MemoryAnswer(memories=list(taken), omitted=omitted or None, hint=hint)

    return fit_answer(memories, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)


def _to_memory(access: HistoryAccess, memory: Memory, *, score: float | None = None) -> MemoryHit:
    citation = memory.citation
    return MemoryHit(
        id=memory.id,
        text=" ".join(access.mask(memory.text).split()),
        time=format_time(memory.created_at),
        conversation=citation.conversation if citation is not None else None,
        branch=branch_or_none(citation.branch) if citation is not None else None,
        number=citation.seq if citation is not None else None,
        source=access.to_label(memory.source),
        score=score,
    )
