"""Answers the tools by which a model reaches what is not in front of it, and notes which documents they touched.

A call never fails a turn: what goes wrong is said to the model, so that it can call again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, assert_never

from quire.context.reach import (
    Call,
    FindDocuments,
    FindExcerpts,
    HistoryRead,
    HistorySearch,
    ReadDocument,
    Remember,
    ResolveWikilink,
    read_call,
)
from quire.engine.core import Core
from quire.engine.meaning import meaning_of
from quire.engine.recalling import Recaller
from quire.engine.surroundings import memory_shelf
from quire.errors import InvalidRequest, QuireError
from quire.log.found import Citation, Hit, vault_scope
from quire.model import Entry
from quire.model.notes import DocumentReference
from quire.view.recalled import Candidate, recalled_text

if TYPE_CHECKING:
    from quire.context.vault import Vault

LONGEST = 20_000
"""Characters of one answer: about 5,000 tokens. What is longer says how to go on."""
SNIPPET = 100


class Answer(NamedTuple):
    """What a tool says to the model, and the documents that it read or found."""

    text: str
    references: tuple[DocumentReference, ...] = ()
    is_error: bool = False


class Toolbox:
    """Answers calls for one branch."""

    def __init__(self, engine: Core, conversation: str, branch: int, *, recaller: Recaller) -> None:
        self._engine, self._conversation, self._branch, self._recaller = engine, conversation, branch, recaller

    async def answer(self, name: str, arguments: str, *, recalled: Callable[[], Iterable[str]]) -> Answer:
        """`recalled` gives the texts that the request at hand recalls, which are not to be remembered."""
        try:
            return await self._answer(read_call(name, arguments), recalled)
        except QuireError as error:
            return Answer(str(error), is_error=True)

    async def _answer(self, call: Call, recalled: Callable[[], Iterable[str]]) -> Answer:
        match call:
            case HistorySearch(query=query, limit=limit):
                return await self._search_history(query, limit)
            case HistoryRead(first=first, last=last):
                return await self._read_history(first, last or first)
            case ReadDocument(path=path, start=start):
                return await self._read_document(path, start)
            case FindDocuments(query=query, limit=limit):
                return await self._find_documents(query, limit)
            case FindExcerpts(query=query, limit=limit):
                return await self._find_excerpts(query, limit)
            case ResolveWikilink(link=link):
                return await self._resolve(link)
            case Remember(text=text, replaces=replaces):
                return await self._remember(text, replaces, recalled())
        assert_never(call)

    async def _search_history(self, query: str, limit: int) -> Answer:
        window = await self._engine.store.window(self._conversation, branch=self._branch, max_tokens=0)
        found = await self._recaller.search(window.branch, query, limit=limit)
        if not found:
            return Answer("Nothing in the earlier messages bears on this. Try other words.")
        return Answer(_cut(recalled_text(found), "search with a smaller limit"))

    async def _read_history(self, first: int, last: int) -> Answer:
        entries = await self._engine.store.range(
            self._conversation, branch=self._branch, first=first, last=max(first, last), kinds=["message"], limit=50
        )
        if not entries:
            return Answer(f"There is no message from #{first} to #{last}.", is_error=True)
        text = recalled_text(Candidate(entry, 1.0) for entry in entries)
        return Answer(_cut(text, f"read fewer at once, from #{first} on"))

    @property
    def _vault(self) -> "Vault":
        if self._engine.vault is None:
            raise InvalidRequest("There is no vault here, so there are no documents.")
        return self._engine.vault

    async def _read_document(self, path: str, start: int) -> Answer:
        file = await asyncio.to_thread(self._vault.read, path)
        rest = file.text[start:]
        if not rest and start:
            return Answer(f"{path} has {len(file.text)} characters; there is nothing from {start} on.", is_error=True)
        more = start + LONGEST
        shown = rest if len(rest) <= LONGEST else f"{rest[:LONGEST]}\n[… go on with start={more} of {len(file.text)} …]"
        return Answer(shown, (_touched(file.path, rest),))

    async def _find(self, query: str, limit: int) -> list[Hit]:
        meaning = await meaning_of(query, self._engine.embedder)
        return await self._engine.store.search(query, scopes=[vault_scope(self._vault.name)], limit=limit, **meaning)

    async def _find_documents(self, query: str, limit: int) -> Answer:
        paths = list(dict.fromkeys(hit.key for hit in await self._find(query, 4 * limit)))[:limit]
        known = {each.path: each for each in await self._engine.store.documents(self._vault.name, paths=paths)}
        found = [known[path] for path in paths if path in known]
        if not found:
            return Answer("No document bears on this. Try other words.")
        lines = [f"- {each.path}: {' '.join((each.summary or each.title).split())}" for each in found]
        return Answer("\n".join(lines), tuple(_touched(each.path, each.summary) for each in found))

    async def _find_excerpts(self, query: str, limit: int) -> Answer:
        hits = await self._find(query, limit)
        if not hits:
            return Answer("No passage bears on this. Try other words.")
        shown = "\n\n".join(f"{hit.key} ({hit.title})\n{hit.text}" for hit in hits)
        touched = {hit.key: _touched(hit.key, hit.text) for hit in reversed(hits)}
        return Answer(_cut(shown, "search with a smaller limit"), tuple(reversed(touched.values())))

    async def _resolve(self, link: str) -> Answer:
        from quire.context.vault import Ambiguous, Broken, Resolved

        destination = await asyncio.to_thread(self._vault.resolve, link)
        match destination:
            case Resolved(path=path):
                return Answer(path, (_touched(path, None),))
            case Ambiguous(options=options):
                return Answer(f"Several documents have this name: {', '.join(options)}. Write the path of one.")
            case Broken(reason=reason):
                return Answer(f"The link leads nowhere: {reason}.", is_error=True)
        assert_never(destination)

    async def _remember(self, text: str, replaces: str | None, recalled: Iterable[str]) -> Answer:
        engine, shelf = self._engine, memory_shelf(self._engine.agent)
        if not engine.agent.memory.enabled:
            raise InvalidRequest("This agent keeps no memories.")
        known = await engine.store.memories(shelf, limit=1_000)
        from quire.context.memory import check_new

        kept = check_new(text, known=[each.text for each in known], recalled=recalled)
        said = await engine.store.tail(self._conversation, 1, branch=self._branch, kinds=["message"], roles=["user"])
        if not said:
            raise InvalidRequest("Nothing was said yet that a memory could come from.")
        cites = _citation(said[0])
        if replaces is None:
            made = await engine.store.remember(shelf, kept, cites=cites)
        else:
            made = await engine.store.correct(replaces, kept, cites=cites)
        return Answer(f"Remembered as {made.id}, from message #{said[0].seq}.")


def merged(touched: Sequence[DocumentReference]) -> tuple[DocumentReference, ...]:
    """Each document once, as it was touched first."""
    return tuple({each.path: each for each in reversed(touched)}.values())[::-1]


def _touched(path: str, text: str | None) -> DocumentReference:
    snippet = " ".join((text or "").split())[:SNIPPET] or None
    return DocumentReference(link=f"[[{PurePosixPath(path).stem}]]", path=path, kind="search", snippet=snippet)


def _citation(entry: Entry) -> Citation:
    return Citation(entry.conversation, entry.branch, entry.seq)


def _cut(text: str, how_to_go_on: str) -> str:
    return (
        text
        if len(text) <= LONGEST
        else f"{text[:LONGEST]}\n[… {len(text) - LONGEST} more characters; {how_to_go_on} …]"
    )
