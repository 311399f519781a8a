"""Runs Quire's built-in tools, by which a model reads archived messages and vault documents and adds memories.

A call never fails a turn: errors are returned to the model as an error result, so that it can retry. Each result names
the documents that the call read or found.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, assert_never

from quire.context.builtin_tool_schemas import (
    FindDocuments,
    FindExcerpts,
    ReadDocument,
    ReadHistory,
    Remember,
    ResolveWikilink,
    SearchHistory,
    parse_builtin_call,
)
from quire.engine.embeddings import search_passages
from quire.engine.memory_writer import MemoryWriter
from quire.engine.recall import make_candidate
from quire.engine.search import search_memories, search_messages
from quire.engine.state import EngineState
from quire.errors import InvalidRequest, QuireError
from quire.index.types import SearchHit, vault_scope
from quire.model.entry_metadata import DocumentReference
from quire.view.recalled_messages import RecallCandidate, render_recalled
from quire.wire.labels import label_text

if TYPE_CHECKING:
    from quire.context.vault import Vault

MAX_RESULT_CHARS = 20_000
"""Maximum characters of one result, about 5,000 tokens. A longer one ends with a hint how to read the rest."""
SNIPPET_CHARS = 100
"""Characters of a document reference's snippet."""


class BuiltinToolResult(NamedTuple):
    """The text for the model, and the documents that the tool read or found."""

    text: str
    references: tuple[DocumentReference, ...] = ()
    is_error: bool = False


class BuiltinTools:
    """Runs built-in tool calls for one branch."""

    def __init__(self, engine: EngineState, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._memory_writer = MemoryWriter(engine, conversation, branch)

    async def run(self, name: str, arguments: str, *, recalled_texts: Callable[[], Iterable[str]]) -> BuiltinToolResult:
        """Runs one call. `recalled_texts` returns what the current request recalled, which must not be remembered
        again."""
        try:
            call = parse_builtin_call(name, arguments)
            match call:
                case SearchHistory(query=query, limit=limit):
                    return await self._search_history(query, limit)
                case ReadHistory(first=first, last=last):
                    return await self._read_history(first, last or first)
                case ReadDocument(path=path, start=start):
                    return await self._read_document(path, start)
                case FindDocuments(query=query, limit=limit):
                    return await self._find_documents(query, limit)
                case FindExcerpts(query=query, limit=limit):
                    return await self._find_excerpts(query, limit)
                case ResolveWikilink(link=link):
                    return await self._resolve_link(link)
                case Remember(text=text, replaces=replaces):
                    recalled = recalled_texts()
                    return BuiltinToolResult(
                        await self._memory_writer.remember(text, replaces=replaces, recalled_texts=recalled)
                    )
            assert_never(call)
        except QuireError as error:
            return BuiltinToolResult(str(error), is_error=True)

    async def _search_history(self, query: str, limit: int) -> BuiltinToolResult:
        branch = await self._engine.store.get_branch(self._conversation, self._branch)
        found = await search_messages(self._engine, query, branch=branch, limit=limit)
        memories = await search_memories(self._engine, query, limit=limit) if self._engine.agent.memory.enabled else []
        texts = [label_text("memory", hit.text, name=hit.key) for hit in memories]
        if found.messages:
            candidates = [make_candidate(hit.entry, hit.score, query=query) for hit in found.messages]
            texts.append(render_recalled(candidates))
        if not texts:
            return BuiltinToolResult("No earlier message matches. Try other words.")
        text = "\n\n".join(texts)
        return BuiltinToolResult(_truncate(text, "search with a smaller limit"))

    async def _read_history(self, first: int, last: int) -> BuiltinToolResult:
        entries = await self._engine.store.read_range(
            self._conversation, branch=self._branch, first=first, last=max(first, last), kinds=["message"], limit=50
        )
        if not entries:
            return BuiltinToolResult(f"There is no message between #{first} and #{last}.", is_error=True)
        text = render_recalled(RecallCandidate(entry, 1.0) for entry in entries)
        return BuiltinToolResult(_truncate(text, f"read fewer messages at once, starting at #{first}"))

    @property
    def _vault(self) -> "Vault":
        if self._engine.vault is None:
            raise InvalidRequest("No vault is configured, so there are no documents.")
        return self._engine.vault

    async def _read_document(self, path: str, start: int) -> BuiltinToolResult:
        file = await asyncio.to_thread(self._vault.read, path)
        rest = file.text[start:]
        if not rest and start:
            return BuiltinToolResult(
                f"{path} has {len(file.text)} characters, so nothing starts at {start}.", is_error=True
            )
        next_start = start + MAX_RESULT_CHARS
        text = (
            rest
            if len(rest) <= MAX_RESULT_CHARS
            else f"{rest[:MAX_RESULT_CHARS]}\n[… continue with start={next_start} of {len(file.text)} …]"
        )
        return BuiltinToolResult(text, (_to_reference(file.path, rest),))

    async def _search_vault(self, query: str, limit: int) -> list[SearchHit]:
        engine, scope = self._engine, vault_scope(self._vault.name)
        return await search_passages(engine.store, engine.embedder, query, scope=scope, limit=limit)

    async def _find_documents(self, query: str, limit: int) -> BuiltinToolResult:
        paths = list(dict.fromkeys(hit.key for hit in await self._search_vault(query, 4 * limit)))[:limit]
        by_path = {each.path: each for each in await self._engine.store.documents.list(self._vault.name, paths=paths)}
        documents = [by_path[path] for path in paths if path in by_path]
        if not documents:
            return BuiltinToolResult("No document matches. Try other words.")
        lines = [f"- {each.path}: {' '.join((each.summary or each.title).split())}" for each in documents]
        references = tuple(_to_reference(each.path, each.summary) for each in documents)
        return BuiltinToolResult("\n".join(lines), references)

    async def _find_excerpts(self, query: str, limit: int) -> BuiltinToolResult:
        """Labels each passage as data. The passages together have at most `MAX_RESULT_CHARS`."""
        hits = await self._search_vault(query, limit)
        if not hits:
            return BuiltinToolResult("No passage matches. Try other words.")
        blocks: list[str] = []
        available = MAX_RESULT_CHARS
        for hit in hits:
            if available <= 0:
                break
            blocks.append(label_text("document", hit.text[:available], name=hit.key, title=hit.title))
            available -= len(hit.text)
        omitted = sum(len(hit.text) for hit in hits) - MAX_RESULT_CHARS
        if omitted > 0:
            blocks.append(f"[… {omitted} more characters; search with a smaller limit …]")
        references = {hit.key: _to_reference(hit.key, hit.text) for hit in reversed(hits)}
        return BuiltinToolResult("\n\n".join(blocks), tuple(reversed(references.values())))

    async def _resolve_link(self, link: str) -> BuiltinToolResult:
        from quire.context.vault import AmbiguousLink, BrokenLink, ResolvedLink

        destination = await asyncio.to_thread(self._vault.resolve, link)
        match destination:
            case ResolvedLink(path=path):
                return BuiltinToolResult(path, (_to_reference(path, None),))
            case AmbiguousLink(options=options):
                return BuiltinToolResult(
                    f"Several documents have this name: {', '.join(options)}. Use the path of one."
                )
            case BrokenLink(reason=reason):
                return BuiltinToolResult(f"The link is broken: {reason}.", is_error=True)
        assert_never(destination)


def _to_reference(path: str, text: str | None) -> DocumentReference:
    snippet = " ".join((text or "").split())[:SNIPPET_CHARS] or None
    return DocumentReference(link=f"[[{PurePosixPath(path).stem}]]", path=path, kind="search", snippet=snippet)


def _truncate(text: str, hint: str) -> str:
    return (
        text
        if len(text) <= MAX_RESULT_CHARS
        else f"{text[:MAX_RESULT_CHARS]}\n[… {len(text) - MAX_RESULT_CHARS} more characters; {hint} …]"
    )
