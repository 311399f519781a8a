"""Reads the transcripts of Claude Code: one file per session, and one per sub-agent in the session's folder.

Every content block of a reply is one line. Lines with the same message id become one message. `parentUuid`
links the lines to a tree, in which a compaction begins at a new root: `logicalParentUuid` names what came before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

from quire.errors import InvalidEntry
from quire.importers.base import (
    NotStored,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    is_growing,
    is_older,
    list_files,
)
from quire.importers.readers import JsonLine, parse_json, read_json_lines
from quire.importers.source_fields import parse_time, read_count
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.wire.messages.parse import parse_messages, parse_reply

MAX_WAITING_LINES = 1_000
"""Maximum lines after the first line of a reply that wait for its last one."""
MAX_TITLE_LINE_BYTES = 4_000
_HEAD_BYTES = 300
"""Bytes of a line in which its type is searched."""

_SUB_AGENT_FOLDER = "subagents"
_PROMPT_HISTORY = "history.jsonl"
_TITLE_FIELDS = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""Lines with a title, by precedence, and the field that holds it."""
_TITLE_MARKERS = tuple(f'"{name}"'.encode() for name in _TITLE_FIELDS)
_MESSAGE_TYPES = ("user", "assistant", "attachment", "system")
_BOOKKEEPING_TYPES = frozenset(
    {
        "api-request", "api-request-blob", "api-request-shape", "atis-latch", "cost-state", "file-history-snapshot",
        "last-prompt", "mode", "progress", "queue-operation", "tag", "tools-used", *_TITLE_FIELDS,
    }
)  # fmt: skip
"""Lines that hold no content of the conversation, or repeat it."""
_BOOKKEEPING_STARTS = tuple(f'{{"type":"{name}",'.encode() for name in sorted(_BOOKKEEPING_TYPES))


class ClaudeCodeSource:
    name = "claude-code"
    title = "Claude Code"
    is_experimental = False
    not_stored: tuple[NotStored, ...] = ("cost",)

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        folder = env.get("CLAUDE_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / ".claude"
        return [path] if (path := Path(folder) / "projects").is_dir() else []

    def find_files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            return iter([path])
        projects = path / "projects"
        files = list_files(projects if projects.is_dir() else path, ".jsonl")
        return (file for file in files if file.name != _PROMPT_HISTORY)

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        if is_older(path, since):
            return
        lines = read_json_lines(path, is_skipped=_is_bookkeeping)
        values = (line.value for line in lines if isinstance(line, JsonLine))
        first = next((value for value in values if value.get("type") in _MESSAGE_TYPES), None)
        if first is None:
            return
        title, has_side_chains = _search_file(path)
        session, created_at = get_text(first, "sessionId") or path.stem, parse_time(first.get("timestamp"))
        origin = ConversationOrigin(client=self.name, session=session, project=get_text(first, "cwd"))
        if path.parent.name == _SUB_AGENT_FOLDER:
            meta: Any = None
            with suppress(OSError, ValueError), path.with_suffix(".meta.json").open("rb") as stream:
                meta = parse_json(stream.read(MAX_TITLE_LINE_BYTES))
            meta = meta if is_object(meta) else {}
            agent, parent = get_text(first, "agentId") or path.stem, get_text(meta, "parentAgentId") or session
            yield SourceConversation(
                id=f"{session}/{path.stem}",
                messages=_read_messages(path, side_chains=True),
                title=title or get_text(meta, "description") or "",
                origin=origin.model_copy(update={"agent": agent, "parent_agent": parent, "purpose": "subagent"}),
                created_at=created_at,
            )
            return
        messages = _read_messages(path, side_chains=False)
        yield SourceConversation(id=path.stem, messages=messages, title=title, origin=origin, created_at=created_at)
        if has_side_chains:
            # The sub-agents of older versions, whose lines are in the file of the session; each begins a branch.
            names = {"agent": "side-chains", "parent_agent": session, "purpose": "subagent"}
            yield SourceConversation(
                id=f"{path.stem}/side-chains",
                messages=_read_messages(path, side_chains=True),
                origin=origin.model_copy(update=names),
                created_at=created_at,
            )


def _search_file(path: Path) -> tuple[str, bool]:
    """The title, which may be anywhere in the file, and whether there are side chains. Most lines are not parsed."""
    titles: dict[str, str] = {}
    with path.open("rb") as stream:
        with mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            has_titles = any(data.find(marker) >= 0 for marker in _TITLE_MARKERS)
            has_side_chains = data.find(b'"isSidechain":true') >= 0
        for line in iter(lambda: stream.readline(MAX_TITLE_LINE_BYTES), b"") if has_titles else ():
            if any(marker in line[:_HEAD_BYTES] for marker in _TITLE_MARKERS):
                try:
                    value: Any = parse_json(line)
                except ValueError:
                    continue
                kind = str(value.get("type")) if is_object(value) else ""
                # Of two titles of a kind, the later counts.
                if kind in _TITLE_FIELDS and (title := get_text(value, _TITLE_FIELDS[kind])):
                    titles[kind] = title
    return next((titles[kind] for kind in _TITLE_FIELDS if kind in titles), ""), has_side_chains


def _read_messages(path: Path, *, side_chains: bool) -> Iterator[SourceMessage | SourceError]:
    tree = _Tree(path.name)
    lines = read_json_lines(path, is_skipped=_is_bookkeeping)
    for line in _merge_replies(lines, side_chains=side_chains, path=path):
        if isinstance(line, SourceError):
            yield line
        else:
            yield from tree.add(line)


def _is_bookkeeping(line: bytes) -> bool:
    """Whether a line is bookkeeping by its first field, where Claude Code writes the type: half of a file is."""
    return line.startswith(_BOOKKEEPING_STARTS)


class _Reply:
    """The lines of one reply, which are merged to one."""

    def __init__(self, line: JsonLine) -> None:
        self.lines = [line]
        self.id = get_object(line.value, "message").get("id")

    def merge(self) -> JsonLine:
        last = self.lines[-1].value
        message = get_object(last, "message")
        content = [block for line in self.lines for block in filter_objects(_get_content(line.value))]
        merged = {
            **self.lines[0].value,
            "message": {**message, "content": content},
            "timestamp": last.get("timestamp"),
            "uuids": [line.value.get("uuid") for line in self.lines],
        }
        return JsonLine(self.lines[0].number, merged)

    @property
    def is_complete(self) -> bool:
        return any(get_object(line.value, "message").get("stop_reason") for line in self.lines)


def _get_content(line: Mapping[str, Any]) -> object:
    return get_object(line, "message").get("content")


def _merge_replies(
    lines: Iterable[JsonLine | SourceError], *, side_chains: bool, path: Path
) -> Iterator[JsonLine | SourceError]:
    """Merges the lines of each reply. Results of its first calls may be between them, and then follow the reply.

    The reply at the end of a growing file is held back until it is complete.
    """
    reply: _Reply | None = None
    waiting: list[JsonLine] = []
    for line in lines:
        if isinstance(line, SourceError):
            if not side_chains or path.parent.name == _SUB_AGENT_FOLDER:
                yield line
            continue
        if bool(line.value.get("isSidechain")) != side_chains and "isSidechain" in line.value:
            continue
        kind = line.value.get("type")
        if kind == "assistant" and reply is not None and get_object(line.value, "message").get("id") == reply.id:
            reply.lines.append(line)
            continue
        if (
            reply is not None
            and kind != "assistant"
            and not _is_prompt(line.value)
            and len(waiting) < MAX_WAITING_LINES
        ):
            waiting.append(line)
            continue
        if reply is not None:
            yield reply.merge()
            yield from waiting
            reply, waiting = None, []
        if kind == "assistant":
            reply = _Reply(line)
        else:
            yield line
    if reply is not None and (reply.is_complete or not is_growing(path)):
        yield reply.merge()
        yield from waiting


def _is_prompt(line: Mapping[str, Any]) -> bool:
    """Whether a user's line ends the step of the reply before it, as all but tool results do."""
    if line.get("type") != "user":
        return False
    return not any(block.get("type") == "tool_result" for block in filter_objects(_get_content(line)))


class _Tree:
    """Links the messages of a transcript.

    Results of parallel calls have the lines of their calls as parents. They follow each other instead, as the model
    was sent them. A step is a reply with all that follows it up to the next reply or prompt.
    """

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name
        self._ids: dict[str, str | None] = {}
        """Id of the message that each line belongs to or, for a line without one, of the message before it."""
        self._steps: dict[str, str] = {}
        """First message of each message's step."""
        self._last_of_step: dict[str, str] = {}
        self._boundaries: dict[str, dict[str, Any]] = {}
        """Metadata of each compaction, by the UUID of its boundary."""
        self._dropped: dict[str, None] = {}
        """Names of what the lines since the last message held."""

    def add(self, line: JsonLine) -> Iterator[SourceMessage | SourceError]:
        value = line.value
        uuid, kind = get_text(value, "uuid"), get_text(value, "type") or "unknown"
        if uuid is None or kind not in _MESSAGE_TYPES:
            if kind not in _BOOKKEEPING_TYPES:
                self._dropped[kind] = None
            return
        if uuid in self._ids:
            return
        boundary = get_object(value, "compactMetadata") if value.get("subtype") == "compact_boundary" else None
        links = (get_text(value, name) for name in ("parentUuid", "logicalParentUuid"))
        link = next((each for each in links if each is not None and each in self._ids), None)
        parent = self._ids[link] if link is not None else None
        if link is None and boundary is not None:
            # Where hooks ran, its logical parent may be a line that was never written.
            tail = get_text(get_object(boundary, "preservedSegment"), "tailUuid")
            parent = self._ids.get(tail or "") or next(reversed(self._ids.values()), None)
        try:
            messages = _parse_line(kind, value)
        except (InvalidEntry, ValueError, TypeError) as error:
            yield SourceError.of(f"{self._file_name}:{line.number}", error)
            messages = []
        if not messages:
            self._ids[uuid] = parent
            if kind == "system" and boundary is not None:
                self._boundaries[uuid] = boundary
                return
            is_attachment = kind == "attachment"
            detail = get_text(get_object(value, "attachment"), "type") if is_attachment else get_text(value, "subtype")
            self._dropped[f"{kind}:{detail}" if detail else kind] = None
            return
        if messages[0].message.role == "tool" and parent is not None:
            parent = self._last_of_step[self._steps[parent]]
        step = self._steps.get(parent or "")
        if step is None or kind == "assistant" or _is_prompt(value):
            step = messages[0].id
        dropped = (*self._dropped, *(["toolUseResult"] if "toolUseResult" in value else ()))
        self._dropped = {}
        compaction = self._build_compaction(value, messages[0].message) if parent is not None else None
        for message in messages:
            yield message._replace(parent=parent, dropped=dropped, compaction=compaction)
            parent, dropped, compaction = message.id, (), None
            self._steps[message.id], self._last_of_step[step] = step, message.id
        self._ids[uuid] = parent
        if kind == "assistant":
            self._ids.update((each, uuid) for each in value["uuids"] if isinstance(each, str))

    def _build_compaction(self, value: dict[str, Any], message: Message) -> SourceCompaction | None:
        if not value.get("isCompactSummary"):
            return None
        metadata = self._boundaries.get(str(value.get("parentUuid")), {})
        uuids = get_object(metadata, "preservedMessages").get("uuids")
        preserved = (
            [each for each in cast("list[object]", uuids) if isinstance(each, str)] if isinstance(uuids, list) else []
        )
        ids = {id_: None for each in preserved if (id_ := self._ids.get(each)) is not None}
        tail = get_text(get_object(metadata, "preservedSegment"), "tailUuid")
        # What follows the preserved messages follows the summary, which is before them in the agent's context.
        for each in (tail, *preserved[-1:]):
            if each is not None and each in self._ids:
                self._ids[each] = str(value["uuid"])
        return SourceCompaction(
            summary=message.text,
            trigger="manual" if metadata.get("trigger") == "manual" else "threshold",
            tokens_before=read_count(metadata.get("preTokens")),
            tokens_after=read_count(metadata.get("postTokens")),
            preserved=tuple(ids),
        )


def _parse_line(kind: str, value: dict[str, Any]) -> list[SourceMessage]:
    """The messages of a line. Empty if it holds none that the model was sent."""
    uuid, at = str(value["uuid"]), parse_time(value.get("timestamp"))
    if kind == "system":
        return []
    if kind == "assistant":
        reply = parse_reply(value.get("message"))
        return [SourceMessage(uuid, None, reply.message, at, usage=reply.usage)] if reply.message.parts else []
    message = get_object(value, "message")
    if kind == "attachment":
        # The text that the attachment adds to the request; empty if the file does not hold it.
        attachment = get_object(value, "attachment")
        prompt = attachment.get("prompt") if attachment.get("type") == "queued_command" else None
        message = {"role": "user", "content": prompt} if prompt else {}
        texts = [text for piece in filter_objects(value.get("rendered")) if (text := get_text(piece, "content"))]
        if texts:
            role = "system" if value.get("renderedRole") == "system" else "user"
            message = {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
    parsed = [each for each in parse_messages([message]) if each.parts] if message else []
    return [SourceMessage(f"{uuid}#{index}" if index else uuid, None, each, at) for index, each in enumerate(parsed)]
