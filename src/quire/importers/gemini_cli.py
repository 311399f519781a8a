"""Reads the sessions of Gemini CLI: JSON Lines of messages and of patches to the list of them.

A later line with the same id replaces a message. `$set.messages` replaces the whole list, as a compression and a resume
do, and `$rewindTo` cuts it. What was removed from the list stays in the conversation: before the
summary of a compression, or on a branch. A resume writes replies in another form, so both forms give the same message.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.importers.google_content import list_parts, make_usage, parse_parts
from quire.importers.message_trees import MessageLinks, order_tree
from quire.importers.places import find_home
from quire.importers.readers import read_json_lines, read_json_object
from quire.importers.retention import find_gemini_deletions
from quire.importers.source_fields import list_values, parse_time, read_id, read_title, retain_fields
from quire.model import Message, Part, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text
from quire.sources.base import (
    Deletion,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_growing,
    make_origin,
)

_CONTEXT_START = "<session_context>"
_SUMMARY_MARK = "<state_snapshot>"
_USAGE_NAMES = ("input", "cached", "output", "thoughts")
_MESSAGE_FIELDS = frozenset(
    {"id", "timestamp", "type", "content", "displayContent", "model", "tokens", "thoughts", "toolCalls"}
)
_MAX_ROOT_BYTES = 4_000


class GeminiCliSource(StoredSource):
    name = "gemini"
    title = "Gemini CLI"
    patterns = ("*/chats/**/*.jsonl", "*/chats/**/*.json", "session-*.jsonl", "session-*.json")
    not_stored = ("cost",)
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("GEMINI_CLI_HOME") or find_home(env)) / ".gemini" / "tmp"

    def find_deletions(self, root: Path, files: Mapping[Path, float]) -> Iterator[Deletion]:
        return find_gemini_deletions(root, files)

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        history = _SessionHistory(path)
        yield from history.errors
        if not history.has_messages:
            return
        session = read_id(history.fields.get("sessionId")) or path.stem
        chats = next((folder for folder in path.parents if folder.name == "chats"), None)
        folders = list_values(history.fields.get("directories"))
        project = next((each for each in folders if isinstance(each, str)), None)
        with suppress(OSError, UnicodeDecodeError):
            if chats is not None and (root := chats.with_name(".project_root")).stat().st_size <= _MAX_ROOT_BYTES:
                project = root.read_text(encoding="utf-8").strip()
        is_sub_agent = chats is not None and path.parent != chats
        parent = path.parent.name if is_sub_agent else None
        yield SourceConversation(
            id=f"{parent}/{session}" if is_sub_agent else session,
            messages=history.read_messages(self.name),
            title=read_title(history.fields.get("summary") or history.first_prompt),
            origin=make_origin(
                self.name, parent or session, project, agent=session if is_sub_agent else None, parent=parent
            ),
            created_at=parse_time(history.fields.get("startTime")),
        )


class _SessionHistory:
    """The lines of a file, replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fields: dict[str, Any] = {}
        """Fields of the session."""
        self.errors: list[SourceError] = []
        self._records: dict[str, dict[str, Any]] = {}
        """The last version of each message, in the order in which they first appeared."""
        self._parents: dict[str, str | None] = {}
        self._current: list[str] = []
        """Ids of the messages that are in the list now."""
        self._compactions: dict[str, list[str]] = {}
        """Summaries, and the ids of the earlier messages that remained in the list."""
        self._successors: dict[str, str] = {}
        """For a message that remained last in the list: what is new in that list, which later messages follow."""
        if path.suffix == ".json":
            self._apply({"$set": read_json_object(path)}, 1)
            return
        for line in read_json_lines(path):
            if isinstance(line, SourceError):
                self.errors.append(line)
            else:
                self._apply(line.value, line.number)

    @property
    def has_messages(self) -> bool:
        """Whether there is more than the context that every start writes."""
        return any(
            record.get("type") == "gemini" or not _get_text(record).startswith(_CONTEXT_START)
            for record in self._records.values()
        )

    @property
    def first_prompt(self) -> str:
        """What the user said first, after the context."""
        texts = (_get_text(record) for record in self._records.values() if record.get("type") == "user")
        return next((text for text in texts if text and not text.startswith(_CONTEXT_START)), "")

    def _apply(self, line: dict[str, Any], number: int) -> None:
        match line:
            case {"$set": dict()}:
                patch = get_object(line, "$set")
                self.fields.update(patch)
                if isinstance(patch.get("messages"), list):
                    self._replace(filter_objects(patch["messages"]), number)
            case {"$rewindTo": id_}:
                self._current = self._current[: self._current.index(id_)] if id_ in self._current else []
            case {"type": str()}:
                id_ = read_id(line.get("id")) or f"line:{number}"
                if id_ not in self._current:
                    self._parents.setdefault(id_, self._find_last())
                    self._current.append(id_)
                self._update(id_, line)
            case _:
                self.fields.update(line)

    def _replace(self, messages: list[dict[str, Any]], number: int) -> None:
        last = self._find_last()
        ids = [read_id(message.get("id")) or f"line:{number}:{index}" for index, message in enumerate(messages)]
        previous: str | None = None
        added: str | None = None
        for id_, message in zip(ids, messages, strict=True):
            if id_ not in self._records:
                if last is not None and message.get("type") == "user" and _SUMMARY_MARK in _get_text(message):
                    self._compactions[id_] = [each for each in ids if each in self._records]
                    previous = last
                self._parents[id_] = previous
                added = id_
            self._update(id_, message)
            previous = self._successors.get(id_, id_)
        if ids and added is not None and self._compactions and ids[-1] != added:
            self._successors[ids[-1]] = added
        self._current = ids

    def _find_last(self) -> str | None:
        """The message that a new one follows."""
        return self._successors.get(self._current[-1], self._current[-1]) if self._current else None

    def _update(self, id_: str, message: dict[str, Any]) -> None:
        """Stores a version of a message; a resume leaves out its tokens and results."""
        self._records[id_] = {**self._records.get(id_, {}), **message}

    def read_messages(self, source: str) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        messages: list[SourceMessage] = []
        answered: set[str] = set()
        records = self._records
        if is_growing(self._path) and self._current and records[self._current[-1]].get("type") == "gemini":
            # The calls of the last reply may be yet to come.
            records = {id_: record for id_, record in records.items() if id_ != self._current[-1]}
        for id_, record in records.items():
            kind = record.get("type")
            parsed: list[Message] = []
            if kind == "gemini":
                parsed = _build_reply(record, source)
                answered.update(result.call_id for each in parsed for result in each.tool_results)
            elif kind == "user":
                # Results are in the reply that made the calls, too.
                each = parse_parts(list_parts(record.get("content")), role="user", source=source)
                parsed = [
                    message for message in each if not any(part.call_id in answered for part in message.tool_results)
                ]
            compaction: SourceCompaction | None = None
            if id_ in self._compactions and parsed:
                preserved = [each for item in self._compactions[id_] for each in links.get_messages(item)]
                compaction = SourceCompaction(parsed[0].text, preserved=tuple(preserved))
            messages += links.add(
                id_,
                parsed,
                after=self._parents[id_],
                at=parse_time(record.get("timestamp")),
                usage=make_usage(get_object(record, "tokens"), _USAGE_NAMES, model=record.get("model")),
                compaction=compaction,
                dropped=(str(kind),) if kind not in ("gemini", "user") else (),
            )
        leaf = links.get_end(self._find_last())
        yield from order_tree(messages, leaf=leaf)


def _get_text(record: dict[str, Any]) -> str:
    return "".join(get_text(part, "text") or "" for part in list_parts(record.get("content")))


def _build_reply(record: dict[str, Any], source: str) -> list[Message]:
    calls = filter_objects(record.get("toolCalls"))
    raw_parts = list_parts(record.get("content"))
    if not any("functionCall" in part for part in raw_parts):
        raw_parts += [{"functionCall": {key: call.get(key) for key in ("id", "name", "args")}} for call in calls]
    thoughts: list[Part] = []
    for thought in filter_objects(record.get("thoughts")):
        lines = (get_text(thought, name) for name in ("subject", "description"))
        thoughts.append(ThinkingPart(text="\n".join(line for line in lines if line)))
    messages = parse_parts(raw_parts, role="assistant", source=source)
    parts = tuple(part for message in messages if message.role == "assistant" for part in message.parts)
    if thoughts:
        parts = (*thoughts, *(part for part in parts if not isinstance(part, ThinkingPart)))
    # A signature is in one of the two forms only.
    parts = tuple(part.model_copy(update={"provider_fields": None}) for part in parts)
    results = [
        result
        for call in calls
        for result in parse_parts(list_parts(call.get("result")), role="assistant", source=source)
        if result.role == "tool"
    ]
    fields = retain_fields(record, _MESSAGE_FIELDS, source)
    return [*([Message(role="assistant", parts=parts, provider_fields=fields)] if parts else []), *results]
