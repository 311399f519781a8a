"""Suggests one change of the context after a turn: an item that the question names and the request lacked, or one that
was added by hand and that no answer used.

Computed from the log and the manifests alone, so that the same turn always has the same suggestion. Each is made once:
a missing item when a question names it for the first time, an unused one after exactly `UNUSED_TURNS` turns.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from quire.concurrency.worker_threads import measure_entries, run_sized
from quire.context.selection import MAX_MESSAGE_CHARS
from quire.engine.state import EngineState
from quire.errors import EntryNotFound
from quire.model import Entry, Manifest
from quire.model.events import ContextSuggestion

if TYPE_CHECKING:
    from quire.context.vault import Vault

UNUSED_TURNS = 5
"""Turns without use after which an item is suggested to be removed."""
MAX_READ_MESSAGES = 200
"""Newest messages that are read for the turns before this one."""
MIN_NAME_CHARS = 3
"""Shorter names are words of any sentence."""
MAX_NAMED_FILES = 5
"""File names of a question that are looked up."""

_NON_WORD = re.compile(r"[^\w-]+")
_FILE_NAME = re.compile(r"(?<![\w@/\[.\\-])\w[\w./-]{0,200}\.[A-Za-z][A-Za-z0-9]{0,11}(?![\w/])")


async def find_suggestion(engine: EngineState, conversation: str, branch: int) -> ContextSuggestion | None:
    """The suggestion for the turn that the newest reply of the branch ended, or None without one."""
    if engine.vault is None and not (engine.agent.rules or engine.agent.references or engine.agent.tools):
        return None
    store = engine.store
    messages = await store.read_tail(
        conversation, MAX_READ_MESSAGES, branch=branch, kinds=["message"], roles=["user", "assistant"]
    )
    turns = _split_turns(messages)
    if not turns or turns[-1][-1].role != "assistant":
        return None
    try:
        manifest = await store.get_manifest(conversation, turns[-1][-1].seq, branch=branch)
    except EntryNotFound:
        return None
    questions = [turn[0] for turn in turns]
    *earlier, question = await run_sized(
        measure_entries(questions), lambda: [entry.message.text for entry in questions]
    )
    for suggestion in _list_missing_items(manifest, question):
        if not any(_names(text, suggestion.name) for text in earlier):
            return suggestion
    if engine.vault is not None:
        for path in await asyncio.to_thread(_find_named_files, engine.vault, question):
            is_included = any(row.name == path and row.kind != "message" for row in manifest.decisions)
            if not is_included and not any(path.rpartition("/")[2] in text for text in earlier):
                return ContextSuggestion(action="refer", kind="document", name=path)
    return await _find_unused_item(engine, manifest, turns)


def _split_turns(messages: Sequence[Entry]) -> list[list[Entry]]:
    """Turns, each from its question on. Messages before the first question are left out."""
    turns: list[list[Entry]] = []
    for entry in messages:
        if entry.role == "user":
            turns.append([entry])
        elif turns:
            turns[-1].append(entry)
    return turns


def _list_missing_items(manifest: Manifest, question: str) -> Iterator[ContextSuggestion]:
    for row in manifest.decisions:
        match row.kind:
            case "rule" | "reference" | "tool" if row.reason == "not_added" and _names(question, row.name or ""):
                yield ContextSuggestion(action="add", kind=row.kind, name=row.name or "")
            case _:
                pass


def _names(text: str, name: str) -> bool:
    """Whether a text has the name as separate words."""
    words, named = (_NON_WORD.sub(" ", f" {each} ").casefold() for each in (text[:MAX_MESSAGE_CHARS], name))
    return len(name) >= MIN_NAME_CHARS and named in words


def _find_named_files(vault: "Vault", question: str) -> list[str]:
    """Paths of the vault's files that the question names without a reference to them."""
    from quire.context.vault import ResolvedLink

    names = dict.fromkeys(match[0] for match in _FILE_NAME.finditer(question[:MAX_MESSAGE_CHARS]))
    resolved = [vault.resolve(name) for name in list(names)[:MAX_NAMED_FILES]]
    return [each.path for each in resolved if isinstance(each, ResolvedLink)]


async def _find_unused_item(
    engine: EngineState, manifest: Manifest, turns: Sequence[Sequence[Entry]]
) -> ContextSuggestion | None:
    """The first item that was added to the session, and that exactly the last `UNUSED_TURNS` turns had unused."""
    unused = _list_unused(manifest, turns[-1])
    if not unused or len(turns) < UNUSED_TURNS:
        return None
    for age, turn in enumerate(reversed(turns[-UNUSED_TURNS - 1 : -1]), start=1):
        try:
            before = await engine.store.get_manifest(manifest.conversation, turn[-1].seq, branch=manifest.branch)
        except EntryNotFound:  # A turn without an answer.
            before = None
        listed = _list_unused(before, turn) if before is not None else []
        is_before = age == UNUSED_TURNS
        unused = [each for each in unused if (each in listed) != is_before]
    if not unused:
        return None
    kind, name = unused[0]
    return ContextSuggestion(action="remove", kind=kind, name=name, turns=UNUSED_TURNS)


def _list_unused(manifest: Manifest, turn: Sequence[Entry]) -> list[tuple[Literal["reference", "tool"], str]]:
    """References and tools of the session that the turn had and did not use."""
    called = {call.name for entry in turn if entry.role == "assistant" for call in entry.message.tool_calls}
    return [
        (row.kind, row.name)
        for row in manifest.included
        if row.kind in ("reference", "tool")
        and row.reason in ("manual", "carried")
        and row.used is False
        and row.name is not None
        and row.name not in called
    ]
