"""The tools that explain a request and that read or write memories, and the dispatch of all tools."""

from collections.abc import Sequence
from typing import assert_never

from quire.engine.memory_writer import write_cited_memory
from quire.engine.search import search_memories
from quire.errors import InsufficientScope, MemoryNotFound, RequestNotFound
from quire.log.types import Citation, Memory
from quire.log.worker_threads import run_in_worker
from quire.mcp_server import history
from quire.mcp_server.access import HistoryAccess, branch_or_none, format_time
from quire.mcp_server.answers import (
    MAX_ANSWER_TOKENS,
    ExplainAnswer,
    ExplainedItem,
    MemoryAnswer,
    MemoryHit,
    SlotTokens,
    ToolAnswer,
    WrittenMemory,
    fit_answer,
)
from quire.mcp_server.arguments import (
    ContextExplainCall,
    HistoryListCall,
    HistoryReadCall,
    HistorySearchCall,
    HistoryToolCall,
    MemorySearchCall,
    MemoryWriteCall,
)
from quire.model import Decision, Manifest

MAX_EXPLAINED_ROWS = 60
"""Rows of a manifest in one answer."""


async def run_tool(access: HistoryAccess, call: HistoryToolCall) -> ToolAnswer:
    match call:
        case HistorySearchCall():
            return await history.search(access, call)
        case HistoryReadCall():
            return await history.read(access, call)
        case HistoryListCall():
            return await history.list_conversations(access, call)
        case ContextExplainCall(conversation=conversation, reply=reply, branch=branch):
            return await explain_request(access, conversation, reply, branch=branch)
        case MemorySearchCall():
            return await _search_memories(access, call)
        case MemoryWriteCall():
            return await _write_memory(access, call)
    assert_never(call)


async def explain_request(access: HistoryAccess, conversation: str, reply: int | None, *, branch: int) -> ExplainAnswer:
    store = access.engine.store
    if reply is None:
        newest = await store.list_manifests(conversation, branch=branch, limit=1)
        if not newest:
            raise RequestNotFound(
                f"No request of {conversation!r} is on record: its messages were imported or appended. "
                "Read them with history_read."
            )
        reply, manifest = newest[0]
    else:
        manifest = await store.get_manifest(conversation, reply, branch=branch)
    return await run_in_worker(_build_explanation, access, reply, manifest)


def _build_explanation(access: HistoryAccess, reply: int, manifest: Manifest) -> ExplainAnswer:
    # What was left out first: a client sees what was in, but not what was missing.
    rows = [*manifest.excluded, *manifest.included]

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
        )

    items = [_to_item(access, row) for row in rows[:MAX_EXPLAINED_ROWS]]
    return fit_answer(items, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)


def _to_item(access: HistoryAccess, row: Decision) -> ExplainedItem:
    span = row.span
    numbers = "" if span is None else f"#{span.first}" if span.first == span.last else f"#{span.first}-#{span.last}"
    item = access.to_label(row.name) or numbers
    return ExplainedItem(kind=row.kind, item=item, slot=row.slot, reason=row.reason, tokens=row.tokens)


async def _search_memories(access: HistoryAccess, call: MemorySearchCall) -> ToolAnswer:
    hits = await search_memories(access.engine, call.query, limit=call.limit)
    memories: list[MemoryHit] = []
    for hit in hits:
        try:
            memory = await access.engine.store.get_memory(hit.key)
        except MemoryNotFound:
            continue
        memories.append(_to_memory(access, memory, score=round(hit.score, 3)))
    hint = None if memories else "No memory matches. Try other words, or history_search."

    def build(taken: Sequence[MemoryHit]) -> MemoryAnswer:
        omitted = len(memories) - len(taken)
        return MemoryAnswer(memories=list(taken), omitted=omitted or None, hint=hint)

    return fit_answer(memories, build, max_tokens=MAX_ANSWER_TOKENS, counter=access.counter)


async def _write_memory(access: HistoryAccess, call: MemoryWriteCall) -> ToolAnswer:
    if not access.writes_memories:
        raise InsufficientScope(
            "memory_write is off: it needs an API key with the scope `write`, or `quire mcp --write` on this machine."
        )
    citation = Citation(call.conversation, call.branch, call.number)
    memory = await write_cited_memory(access.engine, call.text, citation=citation)
    return WrittenMemory(memory=_to_memory(access, memory))


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
