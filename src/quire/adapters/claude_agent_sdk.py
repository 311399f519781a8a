"""`SessionStore` of the Claude Agent SDK: sessions of Claude Code in Quire's log, with search and retention.

Entries are stored as they are, so that the SDK resumes a session from them on any machine. The messages made from them
are appended to the log as an import of the same transcript would, shortly after the entries.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.concurrency.worker_threads import run_in_worker
from quire.engine import Engine, open_engine
from quire.engine.file_import import import_files
from quire.errors import ConversationNotFound, MissingExtra
from quire.log import MAIN_BRANCH
from quire.log.imports import make_conversation_id
from quire.log.transcripts import TranscriptKey, TranscriptLine
from quire.sources.base import SourceConversation
from quire.sources.registry import SOURCES

SOURCE_NAME = "claude-code"
IMPORT_DELAY_SECONDS = 1.0
"""Time after an append when its messages, and the messages of later appends, are written to the log."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")

SessionKey = Mapping[str, Any]
"""`project_key`, `session_id` and, for a sub-agent, `subpath`."""
SessionEntry = dict[str, Any]
"""A line of the transcript: opaque JSON, with a `uuid` in most of them."""


@asynccontextmanager
async def open_session_store(url: str, **options: Any) -> AsyncGenerator["QuireSessionStore"]:
    """Opens the log at `url` as a session store; it takes the options of `quire.open`."""
    async with open_engine(url, **options) as engine:
        store = QuireSessionStore(engine)
        try:
            yield store
        finally:
            await store.flush()


class QuireSessionStore:
    """Give it to `ClaudeAgentOptions(session_store=…)`.

    `delete` removes the entries and the summary of a session, and with `purge_on_delete` also the content of its
    messages in the log, which stays otherwise. A purge of a message deletes the entries of its session.
    """

    def __init__(self, engine: Engine, *, purge_on_delete: bool = False) -> None:
        self._engine, self._store, self._purge_on_delete = engine, engine.store, purge_on_delete
        self._pending: dict[TranscriptKey, asyncio.Task[None]] = {}

    async def append(self, key: SessionKey, entries: Sequence[SessionEntry]) -> None:
        """Stores the entries whose `uuid` is not stored yet, and those without one."""
        if not entries:
            return
        transcript = _to_key(key)
        lines: list[TranscriptLine] = []
        for entry in entries:
            uuid = entry.get("uuid")
            lines.append(TranscriptLine(uuid if isinstance(uuid, str) and uuid else None, json.dumps(entry)))
        fold = None if transcript.subpath else _make_fold(key)
        if (
            await self._store.transcripts.append(transcript, lines, fold_summary=fold)
            and transcript not in self._pending
        ):
            self._pending[transcript] = asyncio.ensure_future(self._import_later(transcript))

    async def load(self, key: SessionKey) -> list[SessionEntry] | None:
        """The entries in their order, equal to what was appended, or None for an unknown key."""
        lines = await self._store.transcripts.load(_to_key(key))
        return None if lines is None else [json.loads(line) for line in lines]

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        found = await self._store.transcripts.list(project_key)
        return [{"session_id": each.session, "mtime": each.modified_at // 1_000} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        found = await self._store.transcripts.list(project_key)
        return [json.loads(each.summary) for each in found if each.summary is not None]

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        return await self._store.transcripts.list_subpaths(key["project_key"], key["session_id"])

    async def delete(self, key: SessionKey) -> None:
        """Deletes a transcript. With a session, the transcripts of its sub-agents are deleted."""
        transcript = _to_key(key)
        subpaths = [] if transcript.subpath else await self.list_subkeys(key)
        deleted = [transcript, *(transcript._replace(subpath=each) for each in subpaths)]
        await self._cancel(deleted)
        await self._store.transcripts.delete(transcript)
        if self._purge_on_delete:
            for each in deleted:
                source_id = "/".join(_list_path_names(each))
                with suppress(ConversationNotFound):
                    await self._store.purge(make_conversation_id(SOURCE_NAME, source_id), branch=MAIN_BRANCH)

    async def flush(self) -> None:
        """Writes the messages of all entries to the log now."""
        keys = list(self._pending)
        await self._cancel(keys)
        for key in keys:
            await self._import(key, is_complete=True)
        await self._engine.wait_for_background()

    async def _import_later(self, key: TranscriptKey) -> None:
        await asyncio.sleep(IMPORT_DELAY_SECONDS)
        del self._pending[key]
        await self._import(key, is_complete=False)

    async def _import(self, key: TranscriptKey, *, is_complete: bool) -> None:
        """Imports the transcript from a temporary file, as Claude Code would have written it."""
        source = SOURCES[SOURCE_NAME]
        lines = await self._store.transcripts.load(key) or []
        with tempfile.TemporaryDirectory(prefix="quire-transcript-") as folder:
            path = await run_in_worker(_write_transcript, Path(folder), key, lines, is_complete=is_complete)
            await import_files(self._engine, source, [path])
            found = await run_in_worker(
                lambda: [each for each in source.read(path) if isinstance(each, SourceConversation)]
            )
        for conversation in found[:1]:
            await self._store.transcripts.link(key, make_conversation_id(source.name, conversation.id))

    async def _cancel(self, keys: Sequence[TranscriptKey]) -> None:
        tasks = [self._pending.pop(key) for key in keys if key in self._pending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _to_key(key: SessionKey) -> TranscriptKey:
    return TranscriptKey(key["project_key"], key["session_id"], key.get("subpath") or "")


def _make_fold(key: SessionKey) -> Any:
    """The SDK's fold of a session's summary, for the transaction that appends its entries."""
    try:
        sdk: Any = import_module("claude_agent_sdk")
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="claude-agent-sdk", feature="The session store of the Claude Agent SDK") from error

    def fold(previous: str | None, lines: Sequence[str], at: int) -> str:
        before = None if previous is None else json.loads(previous)
        summary = sdk.fold_session_summary(before, dict(key), [json.loads(line) for line in lines])
        return json.dumps({**summary, "mtime": at // 1_000})

    return fold


def _write_transcript(folder: Path, key: TranscriptKey, lines: Sequence[str], *, is_complete: bool) -> Path:
    """Writes the file where Claude Code has it; `is_complete` says that its last reply has no more parts."""
    session, *sub_agent = _list_path_names(key)
    path = folder / f"{session}.jsonl"
    if sub_agent:
        path = folder / session / "subagents" / f"{sub_agent[0]}.jsonl"
        path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if is_complete:
        os.utime(path, (0, 0))
    return path


def _list_path_names(key: TranscriptKey) -> list[str]:
    """Names for the session and its sub-agent, if any, in the path of the transcript and in the id of its source."""
    names = [key.session, key.subpath.rsplit("/", 1)[-1]] if key.subpath else [key.session]
    return [name if _SAFE_NAME.fullmatch(name) else sha256(name.encode(errors="replace")).hexdigest() for name in names]
