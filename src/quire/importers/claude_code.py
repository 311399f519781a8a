"""Reads the transcripts of Claude Code: one file per session, and one per sub-agent in the session's folder.

A file is read twice. The first pass takes the links of its lines: every line with a `uuid` names the line before it in
`parentUuid`, be it a message, the progress of a hook or a note. From them, `_Chain` finds which message each message
follows. The second pass reads the lines of each message.

Every content block of a reply is one line. Lines with the same message id become one message. A compaction begins at a
new root: `logicalParentUuid` names what came before it.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from quire.errors import InvalidEntry
from quire.importers.readers import JsonLine, parse_json, read_json_lines
from quire.importers.retention import find_claude_code_deletions
from quire.importers.source_fields import list_values, parse_time, read_count
from quire.log.types import ConversationOrigin
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.rows.boilerplate import strip_text
from quire.sources.base import (
    ABANDONED_SECONDS,
    BEGINNING,
    Deletion,
    NotStored,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    is_growing,
    is_older,
    list_files,
)
from quire.wire.agent_boilerplate import mark_boilerplate
from quire.wire.messages.parse import parse_messages, parse_reply

MAX_STEP_MESSAGES = 1_000
"""Messages after the one that a line follows, among which the end of its branch is searched."""
MAX_META_BYTES = 4_000
"""Bytes of a sub-agent's description that are read."""

_SUB_AGENT_FOLDER = "subagents"
_PROMPT_HISTORY = "history.jsonl"
_TITLE_FIELDS = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""Lines with a title, by precedence, and the field that holds it."""
_MESSAGE_TYPES = ("user", "assistant", "attachment", "system")
_SKIPPED_TYPES = frozenset(
    {
        "agent-name", "agent-setting", "api-request", "api-request-blob", "api-request-shape", "atis-latch",
        "bridge-session", "cost-state", "file-history-delta", "file-history-snapshot", "frame-link", "last-prompt",
        "mode", "permission-mode", "pr-link", "relocated", "tag", "tools-used", "worktree-state",
    }
)  # fmt: skip
"""Lines without content of the conversation, or that repeat it."""
_SKIPPED_STARTS = tuple(f'{{"type":"{name}",'.encode() for name in sorted(_SKIPPED_TYPES))
_SYNTHETIC_MODEL = "<synthetic>"
_SLASH_COMMAND = re.compile(r"/[\w:-]+(?:\s|$)")

_START, _JOINED = -1, -2
"""What a line follows that follows no message: the start of the file, or the last message before it."""


class ClaudeCodeSource:
    name = "claude-code"
    title = "Claude Code"
    reads = 3
    is_experimental = False
    not_stored: tuple[NotStored, ...] = ("cost",)

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        folder = env.get("CLAUDE_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / ".claude"
        return [path] if (path := Path(folder) / "projects").is_dir() else []

    def find_deletions(self, root: Path, files: Mapping[Path, float]) -> Iterator[Deletion]:
        return find_claude_code_deletions(root, files)

    def find_files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            return iter([path])
        projects = path / "projects"
        files = list_files(projects if projects.is_dir() else path, ".jsonl")
        return (file for file in files if file.name != _PROMPT_HISTORY)

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        if is_older(path, since):
            return
        transcript = _Transcript(path)
        first = transcript.first
        if first is None:
            return
        session = get_text(first, "sessionId") or path.stem
        origin = ConversationOrigin(client=self.name, session=session, project=get_text(first, "cwd"))
        if transcript.is_sub_agent:
            meta: Any = None
            with suppress(OSError, ValueError), path.with_suffix(".meta.json").open("rb") as stream:
                meta = parse_json(stream.read(MAX_META_BYTES))
            meta = meta if is_object(meta) else {}
            agent, parent = get_text(first, "agentId") or path.stem, get_text(meta, "parentAgentId") or session
            origin = origin.model_copy(update={"agent": agent, "parent_agent": parent, "purpose": "subagent"})
            title = transcript.title or get_text(meta, "description") or ""
            yield transcript.build_conversation(f"{session}/{path.stem}", origin, title=title)
            return
        yield transcript.build_conversation(path.stem, origin, title=transcript.title)
        if transcript.side_chains:
            # The sub-agents of older versions, whose lines are in the file of the session; each begins a branch.
            names = {"agent": "side-chains", "parent_agent": session, "purpose": "subagent"}
            origin = origin.model_copy(update=names)
            yield transcript.build_conversation(f"{path.stem}/side-chains", origin, side_chains=True)


_Kind = Literal["reply", "prompt", "summary", "message", "aside", "notice", "link"]


class _Line(NamedTuple):
    """What the first pass keeps of a line with a `uuid`."""

    uuid: str
    before: str | None
    """The `uuid` of the line before it in the chain."""
    number: int
    start: int
    end: int
    """Its place in the file, in bytes."""
    kind: _Kind
    """`prompt` is what a person wrote. `aside` may stand between the lines of a reply: results and attachments. So may
    `notice`: attachments that the model gets as a system message. `link` is no message."""
    reply: str = ""
    """Id of the reply that the line belongs to."""
    is_complete: bool = False
    """Whether the line says why the reply ended."""
    dropped: tuple[str, ...] = ()
    """Names of what the lines since the last message held."""


class _Transcript:
    """What the first pass over a file finds."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_sub_agent = path, path.parent.name == _SUB_AGENT_FOLDER
        self.first: dict[str, Any] | None = None
        """The first line of a message or a note."""
        self.lines: dict[str, _Line] = {}
        self.side_chains: dict[str, _Line] = {}
        """Lines of sub-agents in the file of a session."""
        self.boundaries: dict[str, dict[str, Any]] = {}
        """Metadata of each compaction, by the UUID of its boundary."""
        self.queued: list[tuple[int, _Line]] = []
        """Prompts that were typed while the model worked and have no other line, and the line that says when the model
        was sent each."""
        self._errors: list[SourceError] = []
        self._queue: list[tuple[str, _Line]] = []
        self._sent: list[tuple[str, int, _Line]] = []
        self._prompts: dict[str, int] = {}
        """Number of the last line of each prompt after the first one in the queue."""
        self._titles: dict[str, str] = {}
        self._dropped: dict[str, None] = {}
        self._has_attachments = False
        for line in read_json_lines(path, is_skipped=lambda data: data.startswith(_SKIPPED_STARTS)):
            if isinstance(line, SourceError):
                self._errors.append(line)
            else:
                self._add(line)
        self.title = next((self._titles[kind] for kind in _TITLE_FIELDS if kind in self._titles), "")
        # Newer versions write an attachment of each that was sent, and take back what the model has read elsewhere.
        self.queued = [
            (sent, each)
            for text, sent, each in self._sent
            if self._prompts.get(text, 0) <= each.number and (_is_typed(text) or not self._has_attachments)
        ]

    def _add(self, line: JsonLine) -> None:
        value = line.value
        uuid, kind = get_text(value, "uuid"), get_text(value, "type") or "unknown"
        if kind in _TITLE_FIELDS:
            # Of two titles of a kind, the later counts. A summary may be of another session.
            leaf = get_text(value, "leafUuid")
            if (title := get_text(value, _TITLE_FIELDS[kind])) and (leaf is None or leaf in self.lines):
                self._titles[kind] = title
        elif kind == "queue-operation":
            self._add_queue_operation(line)
        elif uuid is None and kind not in _SKIPPED_TYPES:
            self._dropped[kind] = None
        if uuid is None:
            return
        if self.first is None and kind in _MESSAGE_TYPES:
            self.first = value
        lines = self.side_chains if value.get("isSidechain") and not self.is_sub_agent else self.lines
        if uuid in lines:
            return
        self._has_attachments |= kind == "attachment"
        before = get_text(value, "parentUuid") or get_text(value, "logicalParentUuid")
        lines[uuid] = found = _Line(uuid, before, line.number, line.start, line.end, _classify(kind, value))
        if found.kind != "link":
            message, dropped, self._dropped = get_object(value, "message"), tuple(self._dropped), {}
            reply = (get_text(message, "id") or uuid) if found.kind == "reply" else ""
            is_complete = bool(message.get("stop_reason"))
            lines[uuid] = found._replace(reply=reply, is_complete=is_complete, dropped=dropped)
            if (self._queue or self._sent) and found.kind != "reply":
                self._prompts[_read_prompt(value)] = line.number
        elif value.get("subtype") == "compact_boundary":
            self.boundaries[uuid] = get_object(value, "compactMetadata")
        elif kind != "progress":
            detail = get_text(get_object(value, "attachment"), "type") or get_text(value, "subtype")
            self._dropped[f"{kind}:{detail}" if detail else kind] = None

    def _add_queue_operation(self, line: JsonLine) -> None:
        text, operation = _read_prompt(line.value), line.value.get("operation")
        if operation == "enqueue":
            queued = _Line(f"line:{line.number}", None, line.number, line.start, line.end, "message")
            self._queue.append((text, queued))
        elif operation == "popAll":
            # The person took them back to edit them.
            self._queue = []
        elif operation in ("dequeue", "remove") and self._queue:
            texts = [each for each, _ in self._queue]
            text, queued = self._queue.pop(texts.index(text) if text in texts else 0)
            # One that is dequeued begins a turn and has a line. One that is removed was sent within the turn.
            if operation == "remove" and not _SLASH_COMMAND.match(text):
                self._sent.append((text, line.number, queued))

    def build_conversation(
        self, id: str, origin: ConversationOrigin, *, title: str = "", side_chains: bool = False
    ) -> SourceConversation:
        chain = _Chain(self, side_chains=side_chains)
        first = next(iter(self.lines.values()), None)
        is_part = not side_chains and first is not None and first.before is not None and first.before not in self.lines
        unfinished = held_back = chain.find_unfinished() if is_growing(self.path) else None
        if held_back is None and chain.ends_with_notice and is_growing(self.path, ABANDONED_SECONDS):
            # Others may join it.
            held_back = len(chain.members) - 1
        return SourceConversation(
            id=id,
            messages=self._read_messages(chain, held_back, () if side_chains else self._errors),
            title=title,
            origin=origin,
            created_at=parse_time((self.first or {}).get("timestamp")),
            dropped=(BEGINNING,) if is_part else (),
            unfinished_replies=int(unfinished is not None),
        )

    def _read_messages(
        self, chain: "_Chain", held_back: int | None, errors: Iterable[SourceError]
    ) -> Iterator[SourceMessage | SourceError]:
        """The second pass over the file, up to a message at its end that is held back."""
        last_ids: dict[int, str | None] = {_START: None}
        """Id of the last message of each place, or of the message before it."""
        with self.path.open("rb") as stream:
            for place in chain.list_places():
                if held_back is not None and place >= held_back:
                    continue
                member, parent = chain.members[place], last_ids[chain.parents[place]]
                try:
                    messages = _build_messages(stream, member)
                except (InvalidEntry, ValueError, TypeError) as error:
                    yield SourceError.of(f"{self.path.name}:{member[0].number}", error)
                    messages = []
                compaction: SourceCompaction | None = None
                if messages and parent is not None and place in chain.summaries:
                    metadata, preserved = chain.summaries[place]
                    ids = (last_ids.get(each) for each in preserved)
                    compaction = SourceCompaction(
                        summary=messages[0].message.text,
                        trigger="manual" if metadata.get("trigger") == "manual" else "threshold",
                        tokens_before=read_count(metadata.get("preTokens")),
                        tokens_after=read_count(metadata.get("postTokens")),
                        preserved=tuple(dict.fromkeys(each for each in ids if each is not None)),
                    )
                for message in messages:
                    yield message._replace(parent=parent, compaction=compaction)
                    parent, compaction = message.id, None
                last_ids[place] = parent
        yield from errors


class _Chain:
    """Which message each message of a session follows.

    Messages follow each other in the order of the file: results of parallel calls have the lines of their calls as
    parents, and hooks and notes may be siblings of a message. Only a prompt of a person that goes back begins a branch.
    """

    def __init__(self, transcript: _Transcript, *, side_chains: bool) -> None:
        self.members: list[list[_Line]] = []
        """The lines of each message. A message's place is its number here."""
        self.parents: list[int] = []
        self.places: dict[str, int] = {}
        """Place of the message that each line belongs to or, for a line without one, of the message before it."""
        self.summaries: dict[int, tuple[dict[str, Any], list[int]]] = {}
        """Metadata of the compaction of each summary, and the places of the messages that it preserved."""
        self._lines = transcript.side_chains if side_chains else transcript.lines
        self._boundaries, self._joins_roots = transcript.boundaries, not side_chains
        self._replies: dict[str, int] = {}
        self._next: dict[int, int] = {}
        """The newest message after each place."""
        self._spoken = {_START: 0}
        """Prompts and replies on the path to each place."""
        self._queued = [] if side_chains else transcript.queued[::-1]
        for line in self._lines.values():
            # A line may stand before the one that it follows.
            waiting = {line.uuid: line}
            while (before := self._lines.get(line.before or "")) is not None:
                if before.uuid in self.places or before.uuid in waiting:
                    break
                waiting[before.uuid] = line = before
            for each in reversed(waiting.values()):
                if each.uuid not in self.places:
                    self._add(each)
        self._add_queued(sys.maxsize)

    def _add(self, line: _Line) -> None:
        # A root, or a link to a line that was never written, follows the last message.
        root = _JOINED if self.places and self._joins_roots else _START
        place = self.places.get(line.before or "", root)
        if line.reply in self._replies:
            place = self._replies[line.reply]
            self.members[place].append(line)
        elif line.kind != "link":
            if line.kind not in ("aside", "notice"):
                self._add_queued(line.number)
            place = self._append(line, place)
        self.places[line.uuid] = place
        if line.kind == "reply":
            self._replies[line.reply] = place
        elif line.kind == "summary":
            metadata = self._boundaries.get(line.before or "", {})
            uuids = list_values(get_object(metadata, "preservedMessages").get("uuids"))
            preserved = [each for each in uuids if isinstance(each, str) and each in self.places]
            self.summaries[place] = metadata, [self.places[each] for each in preserved]
            # What follows the preserved messages follows the summary, which is before them in the agent's context.
            tail = get_text(get_object(metadata, "preservedSegment"), "tailUuid")
            for uuid in (tail, *preserved[-1:]):
                if uuid in self.places:
                    self.places[uuid] = place

    def _add_queued(self, number: int) -> None:
        """Adds the queued prompts that were sent before a line: after the results of the step that they waited for."""
        while self._queued and self._queued[-1][0] < number:
            self._append(self._queued.pop()[1], _JOINED)

    def _append(self, line: _Line, before: int) -> int:
        place, last = len(self.members), len(self.members) - 1
        tip = before = last if before == _JOINED else before
        for _ in range(MAX_STEP_MESSAGES):
            if tip not in self._next:
                break
            tip = self._next[tip]
        else:
            tip = last
        goes_back = line.kind == "prompt" and self._spoken[before] < self._spoken[tip]
        parent = before if goes_back else tip
        follows_notice = parent == last and self.ends_with_notice
        if follows_notice and line.kind == "notice":
            # Claude Code sends those between two messages as one.
            self.members[last].append(line)
            return last
        self._next[parent] = place
        self._spoken[place] = self._spoken[parent] + (line.kind in ("prompt", "reply"))
        self.members.append([line])
        self.parents.append(parent)
        if follows_notice and line.kind == "aside":
            # The results of a step come before what hooks add to them.
            self.members[last:] = [line], self.members[last]
            for each in self.members[place]:
                self.places[each.uuid] = place
            return last
        return place

    def list_places(self) -> list[int]:
        """All places, parents first, and the path that continues before abandoned ones."""
        path, place = set[int](), len(self.members) - 1
        while place != _START:
            path.add(place)
            place = self.parents[place]
        return sorted(range(len(self.members)), key=lambda each: each not in path)

    @property
    def ends_with_notice(self) -> bool:
        return bool(self.members) and self.members[-1][0].kind == "notice"

    def find_unfinished(self) -> int | None:
        """Place of a reply at the end that does not say why it ended. Nothing but results and notes follows it."""
        place = max(self._replies.values(), default=len(self.members))
        end = self.members[place:]
        is_open = all(each[0].kind in ("reply", "aside", "notice") for each in end)
        return place if end and is_open and not any(line.is_complete for line in end[0]) else None


def _classify(kind: str, value: Mapping[str, Any]) -> _Kind:
    message = get_object(value, "message")
    match kind:
        case "assistant":
            return "message" if message.get("model") == _SYNTHETIC_MODEL else "reply"
        case "user" if value.get("isCompactSummary"):
            return "summary"
        case "user" if any(each.get("type") == "tool_result" for each in filter_objects(message.get("content"))):
            return "aside"
        case "user":
            is_image = any(each.get("type") == "image" for each in filter_objects(message.get("content")))
            return "prompt" if not _is_meta(value) and (is_image or _is_typed(_read_prompt(value))) else "message"
        case "attachment":
            if not value.get("rendered"):
                return "aside" if _read_prompt(value) else "link"
            return "notice" if value.get("renderedRole") == "system" else "aside"
        case _:
            return "link"


def _is_meta(value: Mapping[str, Any]) -> bool:
    """Whether a program wrote a line of the user: Claude Code, a hook, or another agent."""
    marks = (value, get_object(value, "attachment"))
    kinds = (get_text(get_object(each, "origin"), "kind") or "human" for each in marks)
    return any(each.get("isMeta") for each in marks) or any(kind != "human" for kind in kinds)


def _is_typed(text: str) -> bool:
    words: list[str] = []
    return bool(strip_text(text, "user", words) or any(words))


def _read_prompt(value: Mapping[str, Any]) -> str:
    """The text of a user's line, or of a prompt that was typed while the model worked."""
    attachment = get_object(value, "attachment")
    content = attachment.get("prompt") if attachment.get("type") == "queued_command" else value.get("content")
    content = get_object(value, "message").get("content", content)
    if isinstance(content, str):
        return content.strip()
    return "\n".join(get_text(each, "text") or "" for each in filter_objects(content)).strip()


def _build_messages(stream: BinaryIO, member: list[_Line]) -> list[SourceMessage]:
    """The messages of a place. Empty if it holds none that the model was sent."""
    values: list[dict[str, Any]] = []
    for line in member:
        stream.seek(line.start)
        values.append(parse_json(stream.read(line.end - line.start)))
    value, dropped = values[0], dict.fromkeys(name for line in member for name in line.dropped)
    if any("toolUseResult" in each for each in values):
        dropped["toolUseResult"] = None
    uuid, at = member[0].uuid, parse_time(values[-1].get("timestamp"))
    if member[0].kind == "reply":
        messages = [get_object(each, "message") for each in values]
        content = [block for each in messages for block in filter_objects(each.get("content"))]
        # The output is counted while it is written: the line with the most is the latest.
        latest = max(reversed(messages), key=lambda each: read_count(get_object(each, "usage").get("output_tokens")))
        message, usage, _ = parse_reply({**latest, "content": content})
        if usage is not None and not any(line.is_complete for line in member):
            usage = usage.model_copy(update={"partial": True})
        return [SourceMessage(uuid, None, message, at, usage, dropped=tuple(dropped))] if message.parts else []
    message = get_object(value, "message")
    if value.get("type") == "assistant":
        # The error of a request, or a filler. No model made it.
        message = {"role": "system", "content": message.get("content")}
    elif value.get("type") == "queue-operation":
        message = {"role": "user", "content": _read_prompt(value)}
    elif value.get("type") == "attachment":
        # The text that the attachment adds to the request; empty if the file does not hold it.
        pieces = [piece for each in values for piece in filter_objects(each.get("rendered"))]
        texts = [text for piece in pieces if (text := get_text(piece, "content"))]
        if member[0].kind == "notice":
            bare = (text.removeprefix("<system-reminder>\n").removesuffix("\n</system-reminder>") for text in texts)
            message = {"role": "system", "content": "\n\n".join(bare)}
        else:
            content = [{"type": "text", "text": text} for text in texts]
            message = {"role": "user", "content": content or get_object(value, "attachment").get("prompt")}
    parsed = [each for each in parse_messages([message]) if each.parts]
    if _is_meta(value):
        parsed = [mark_boilerplate(each) for each in parsed]
    return [
        SourceMessage(f"{uuid}#{index}" if index else uuid, None, each, at, dropped=() if index else tuple(dropped))
        for index, each in enumerate(parsed)
    ]
