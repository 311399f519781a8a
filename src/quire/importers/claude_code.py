"""Reads the transcripts of Claude Code: one file per session, and one per sub-agent in the session's folder.

Every content block of a reply is a line of its own; lines with the same message id become one message. `parentUuid`
links the lines to a tree, in which a compaction begins at a new root: `logicalParentUuid` names what came before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from quire.errors import InvalidEntry
from quire.importers.base import SourceCompaction, SourceConversation, SourceError, SourceMessage
from quire.importers.json_lines import JsonLine, parse_json, read_json_lines
from quire.importers.times import parse_time
from quire.importers.transcripts import is_growing, is_older, list_files
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.view.wire_formats.anthropic_messages_parse import parse_messages, parse_reply
from quire.view.wire_formats.fields import filter_objects, get_object, get_text, is_object

NAME = "claude-code"
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
    name = NAME
    title = "Claude Code"

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
        head = _read_head(path)
        if head.first is None:
            return
        is_sub_agent = path.parent.name == _SUB_AGENT_FOLDER
        yield _build_conversation(path, head.first, head.title, is_sub_agent=is_sub_agent)
        if head.has_side_chains and not is_sub_agent:
            yield _build_side_chains(path, head.first)


class _Head(NamedTuple):
    """What precedes the messages: the first line of the conversation, its title, and whether it has side chains."""

    first: dict[str, Any] | None
    title: str
    has_side_chains: bool


def _read_head(path: Path) -> _Head:
    """Searches the file for titles, which may be anywhere in it, and for side chains, before any line is parsed."""
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return _Head(None, "", has_side_chains=False)
        with mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            has_titles = any(data.find(marker) >= 0 for marker in _TITLE_MARKERS)
            has_side_chains = data.find(b'"isSidechain":true') >= 0
        titles = dict(_read_titles(stream)) if has_titles else {}
    first = next((line.value for line in _read_message_lines(path)), None)
    return _Head(first, next((titles[kind] for kind in _TITLE_FIELDS if kind in titles), ""), has_side_chains)


def _read_titles(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    """The kinds and texts of the titles; of two of a kind, the later counts."""
    for line in iter(lambda: stream.readline(MAX_TITLE_LINE_BYTES), b""):
        if any(marker in line[:_HEAD_BYTES] for marker in _TITLE_MARKERS):
            try:
                value: Any = parse_json(line)
            except ValueError:
                continue
            kind = str(value.get("type")) if is_object(value) else ""
            if kind in _TITLE_FIELDS and (title := get_text(value, _TITLE_FIELDS[kind])):
                yield kind, title


def _read_message_lines(path: Path) -> Iterator[JsonLine]:
    for line in read_json_lines(path, is_skipped=_is_bookkeeping):
        if isinstance(line, JsonLine) and line.value.get("type") in _MESSAGE_TYPES:
            yield line


def _build_conversation(path: Path, first: dict[str, Any], title: str, *, is_sub_agent: bool) -> SourceConversation:
    session = get_text(first, "sessionId") or path.stem
    origin = ConversationOrigin(client=NAME, session=session, project=get_text(first, "cwd"))
    if is_sub_agent:
        meta = _read_agent_metadata(path)
        title = title or get_text(meta, "description") or ""
        origin = origin.model_copy(
            update={
                "agent": get_text(first, "agentId") or path.stem,
                "parent_agent": get_text(meta, "parentAgentId") or session,
                "purpose": "subagent",
            }
        )
    return SourceConversation(
        id=f"{session}/{path.stem}" if is_sub_agent else path.stem,
        messages=_read_messages(path, side_chains=is_sub_agent),
        title=title,
        origin=origin,
        created_at=parse_time(first.get("timestamp")),
    )


def _build_side_chains(path: Path, first: dict[str, Any]) -> SourceConversation:
    """The sub-agents of older versions, whose lines are in the file of the session; each begins a branch."""
    session = get_text(first, "sessionId") or path.stem
    return SourceConversation(
        id=f"{path.stem}/side-chains",
        messages=_read_messages(path, side_chains=True),
        origin=ConversationOrigin(
            client=NAME,
            session=session,
            project=get_text(first, "cwd"),
            agent="side-chains",
            parent_agent=session,
            purpose="subagent",
        ),
        created_at=parse_time(first.get("timestamp")),
    )


def _read_agent_metadata(path: Path) -> dict[str, Any]:
    try:
        with path.with_suffix(".meta.json").open("rb") as stream:
            value: Any = parse_json(stream.read(MAX_TITLE_LINE_BYTES))
    except (OSError, ValueError):
        return {}
    return value if is_object(value) else {}


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

    Results of parallel calls have the lines of their calls as parents; they follow each other instead, as the model
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
        parent = self._find_parent(value)
        try:
            messages = _parse_line(kind, value)
        except (InvalidEntry, ValueError, TypeError) as error:
            yield SourceError.of(f"{self._file_name}:{line.number}", error)
            messages = []
        if not messages:
            self._ids[uuid] = parent
            self._note_dropped(kind, value)
            return
        if messages[0].message.role == "tool" and parent is not None:
            parent = self._last_of_step[self._steps[parent]]
        yield from self._link(uuid, parent, messages, value)
        if kind == "assistant":
            self._ids.update((each, uuid) for each in value["uuids"] if isinstance(each, str))

    def _find_parent(self, value: dict[str, Any]) -> str | None:
        for name in ("parentUuid", "logicalParentUuid"):
            if (parent := get_text(value, name)) is not None and parent in self._ids:
                return self._ids[parent]
        if value.get("subtype") == "compact_boundary":
            # Where hooks ran, its logical parent may be a line that was never written.
            segment = get_object(get_object(value, "compactMetadata"), "preservedSegment")
            return self._ids.get(get_text(segment, "tailUuid") or "") or next(reversed(self._ids.values()), None)
        return None

    def _note_dropped(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "system" and value.get("subtype") == "compact_boundary":
            self._boundaries[str(value["uuid"])] = get_object(value, "compactMetadata")
            return
        detail = (
            get_text(get_object(value, "attachment"), "type") if kind == "attachment" else get_text(value, "subtype")
        )
        self._dropped[f"{kind}:{detail}" if detail else kind] = None

    def _link(
        self, uuid: str, parent: str | None, messages: list[SourceMessage], value: dict[str, Any]
    ) -> Iterator[SourceMessage]:
        step = self._steps.get(parent or "")
        if step is None or value["type"] == "assistant" or _is_prompt(value):
            step = messages[0].id
        dropped = (*self._dropped, *(["toolUseResult"] if "toolUseResult" in value else ()))
        self._dropped = {}
        compaction = self._build_compaction(value, messages[0].message) if parent is not None else None
        for message in messages:
            yield message._replace(parent=parent, dropped=dropped, compaction=compaction)
            parent, dropped, compaction = message.id, (), None
            self._steps[message.id], self._last_of_step[step] = step, message.id
        self._ids[uuid] = parent

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
            tokens_before=_to_count(metadata.get("preTokens")),
            tokens_after=_to_count(metadata.get("postTokens")),
            preserved=tuple(ids),
        )


def _to_count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _parse_line(kind: str, value: dict[str, Any]) -> list[SourceMessage]:
    """The messages of a line; empty if it holds none that the model was sent."""
    uuid, at = str(value["uuid"]), parse_time(value.get("timestamp"))
    if kind == "system":
        return []
    if kind == "assistant":
        reply = parse_reply(value.get("message"))
        return [SourceMessage(uuid, None, reply.message, at, usage=reply.usage)] if reply.message.parts else []
    message = _read_attachment(value) if kind == "attachment" else get_object(value, "message")
    parsed = [each for each in parse_messages([message]) if each.parts] if message else []
    return [SourceMessage(f"{uuid}#{index}" if index else uuid, None, each, at) for index, each in enumerate(parsed)]


def _read_attachment(value: dict[str, Any]) -> dict[str, Any]:
    """The text that an attachment adds to the request, as a message; empty if the file does not hold it."""
    texts = [text for piece in filter_objects(value.get("rendered")) if (text := get_text(piece, "content"))]
    if texts:
        role = "system" if value.get("renderedRole") == "system" else "user"
        return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
    attachment = get_object(value, "attachment")
    prompt = attachment.get("prompt") if attachment.get("type") == "queued_command" else None
    return {"role": "user", "content": prompt} if prompt else {}
