"""Messages of the log in a form that another agent continues from.

`select_messages` decides which messages those are. `adapt_history` makes them valid for one agent: every call has its
result, tools that the agent does not have become text, and what it cannot take is left out and counted.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard
from uuid import uuid4

from quire.model import (
    BranchState,
    Compaction,
    Entry,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.model.json_values import dump_json, parse_object
from quire.model.messages import ToolResultContent
from quire.model.state import ActiveCompaction, apply_entry
from quire.resume.session import NativeSession, SessionPlace, TimedMessage
from quire.resume.tool_equivalents import translate_call
from quire.wire.base import BlobLoader
from quire.wire.compaction_blocks import drop_summary_requests
from quire.wire.labels import describe_drop, label_text
from quire.wire.media import PDF_MEDIA_TYPE, describe_media, resolve_url, split_data_url
from quire.wire.messages.render import OPENER_TEXT

INTERRUPTED_TEXT = "[The tool call was interrupted: the log has no result of it.]"
SEALED_TEXT = "The summary of the messages before this one was made by the provider and cannot be read."
_MIN_STEP_MICROS = 1_000
"""Agents order messages by milliseconds."""
_CALL_ID_CHARS = 24
_TEXT_MEDIA_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTraits:
    """What an agent takes: its name as a program and as a client in the log, and the media of its messages."""

    name: str
    client: str
    """Beginning of the client's name in the origin of conversations that the agent itself held."""
    source: str
    """Name of the source that imports its sessions."""
    media_types: tuple[str, ...]
    """Beginnings of the media types that a session may have."""
    takes_urls: bool
    """Whether an image may be an https URL."""
    call_prefix: str
    """Beginning of the ids of tool calls."""


class AdaptedHistory(NamedTuple):
    messages: tuple[TimedMessage, ...]
    """Each assistant message with calls is followed by one tool message with all their results, in that order."""
    changes: Counter[str]
    """What was left out or written in another form, and how often."""


class SessionWriter(NamedTuple):
    """What an agent's module gives to the entry point `quire.resume`."""

    traits: AgentTraits
    build_session: Callable[[AdaptedHistory, SessionPlace], NativeSession]


def select_messages(entries: Iterable[Entry], changes: Counter[str] | None = None) -> list[TimedMessage]:
    """The messages of the context after these entries, which are a branch from its first entry on. Adds to `changes`
    what is not in them.

    A compaction that is active after the last entry replaces what it covers by its summary. One that was undone does
    not, and leaves neither its summary nor the request for it. A message that is dropped is a stub. This is the only
    place that decides what a resumed session has of the log.
    """
    state, compactions = BranchState(), dict[int, tuple[Entry, Compaction]]()

    def find_compaction(seq: int) -> ActiveCompaction:
        return ActiveCompaction.from_entry(seq, compactions[seq][1])

    entries = list(entries)
    stored = drop_summary_requests(entries)
    for entry in entries:
        if entry.kind == "message":
            continue
        body = entry.body
        state = apply_entry(state, entry.seq, body, compaction_at=find_compaction)
        if isinstance(body, Compaction):
            compactions[entry.seq] = (entry, body)
    active = state.active_compaction
    messages: list[TimedMessage] = []
    preserved: set[int] = set()
    is_sealed = False
    if active is not None and active.covers is not None:
        preserved = {*state.pins, *(active.preserved or ())}
        preserved |= {active.question} if active.question is not None else set()
        entry, compaction = compactions[active.seq]
        is_sealed = compaction.is_sealed
        if summary := SEALED_TEXT if is_sealed else compaction.summary:
            messages.append(TimedMessage(entry.created_at, Message.user(label_text("summary", summary))))
    calls = {call.id: f"{call.name} {call.arguments}" for entry in stored for call in entry.message.tool_calls}
    for entry in stored:
        is_covered = active is not None and active.covers is not None and entry.seq in active.covers
        if not is_covered or entry.seq in preserved:
            usage = entry.metadata.usage
            message = _drop_content(entry, calls) if entry.seq in state.dropped else entry.message
            messages.append(TimedMessage(entry.created_at, message, usage.model if usage is not None else None))
        elif changes is not None and is_sealed:
            changes["messages left out: the provider made their summary, which cannot be read"] += 1
    return messages


def _drop_content(entry: Entry, calls: Mapping[str, str]) -> Message:
    """The message with stubs in place of its results, or of its texts and media. Calls stay."""
    parts: list[Part] = []
    for part in entry.message.parts:
        if isinstance(part, ToolResultPart):
            stub = describe_drop(calls.get(part.call_id, "a tool"), chars=len(part.text), message=entry.seq)
            parts.append(part.model_copy(update={"content": (TextPart(text=stub),)}))
        elif not _is_content(part):
            parts.append(part)
    if entry.role != "tool":
        stub = describe_drop("a message", chars=len(entry.message.text), message=entry.seq)
        parts.insert(0, TextPart(text=stub))
    return entry.message.model_copy(update={"parts": tuple(parts)})


def adapt_history(
    messages: Sequence[TimedMessage],
    traits: AgentTraits,
    *,
    client: str | None,
    load_blob: BlobLoader | None,
    now: int,
) -> AdaptedHistory:
    """Makes the messages valid for an agent; `client` is the program that held the conversation, `now` in microseconds.

    Thinking is left out: its signature holds only for the request that it was made for. Instructions of the former
    program are, too, since the agent has its own. Calls get new ids, because one may occur twice in a log.
    """
    adapter = _Adapter(traits, is_own=client is not None and client.startswith(traits.client), load_blob=load_blob)
    adapted = adapter.adapt(messages)
    if adapted and adapted[0].message.role != "user":
        # No provider takes a list that begins with the assistant.
        adapted.insert(0, TimedMessage(adapted[0].at, Message.user(OPENER_TEXT)))
    # Times ascend strictly and lie in the past: agents order by them, and what the user says next comes after.
    latest = now
    for index in range(len(adapted) - 1, -1, -1):
        latest = min(adapted[index].at, latest - _MIN_STEP_MICROS)
        adapted[index] = adapted[index]._replace(at=latest)
    return AdaptedHistory(tuple(adapted), adapter.changes)


class _Adapter:
    def __init__(self, traits: AgentTraits, *, is_own: bool, load_blob: BlobLoader | None) -> None:
        self._traits, self._is_own, self._load_blob = traits, is_own, load_blob
        self.changes = Counter[str]()

    def adapt(self, messages: Sequence[TimedMessage]) -> list[TimedMessage]:
        results, orphans = _match_results(messages)
        adapted: list[TimedMessage] = []

        def add(source: TimedMessage, role: str, parts: Iterable[Part]) -> None:
            filled = tuple(part for part in parts if not isinstance(part, TextPart) or part.text.strip())
            if filled:
                message = Message.model_validate({"role": role, "parts": filled})
                adapted.append(source._replace(message=message))

        for index, each in enumerate(messages):
            match each.message.role:
                case "system":
                    self.changes["system messages left out"] += 1
                case "user":
                    add(each, "user", (self._adapt_content(part) for part in each.message.parts if _is_content(part)))
                case "tool":
                    # Results are written after their calls; only those without a call are left.
                    for result in orphans.get(index, ()):
                        self.changes["results without a call written as text"] += 1
                        add(each, "user", self._quote_result(result, "unknown"))
                case "assistant":
                    own, answers, quoted = list[Part](), list[Part](), list[Part]()
                    for position, part in enumerate(each.message.parts):
                        if isinstance(part, ToolCallPart):
                            self._adapt_call(part, results.get((index, position)), own, answers, quoted)
                        elif isinstance(part, ThinkingPart):
                            self.changes["thinking blocks left out"] += 1
                        elif _is_content(part):
                            own.append(self._adapt_content(part, is_reply=True))
                    add(each, "assistant", own)
                    add(each._replace(model=None), "tool", answers)
                    add(each._replace(model=None), "user", quoted)
        return adapted

    def _adapt_call(
        self,
        call: ToolCallPart,
        result: ToolResultPart | None,
        own: list[Part],
        answers: list[Part],
        quoted: list[Part],
    ) -> None:
        """Adds a call to the reply and its result to the answers. As texts to the reply and the quotations if the agent
        has no such tool."""
        if result is None:
            self.changes["calls without a result, marked as interrupted"] += 1
            result = ToolResultPart(call_id=call.id, content=(TextPart(text=INTERRUPTED_TEXT),), is_error=True)
        arguments = parse_object(call.arguments)
        form = translate_call(call.name, arguments, program=self._traits.name) if arguments is not None else None
        if not self._is_own and form is None:
            self.changes[f"calls of {call.name} written as text"] += 1
            own.append(TextPart(text=f"[Called the tool {call.name} with {call.arguments}]"))
            quoted += self._quote_result(result, call.name)
            return
        id_ = self._traits.call_prefix + uuid4().hex[:_CALL_ID_CHARS]
        if self._is_own or form is None:
            own.append(call.model_copy(update={"id": id_}))
        else:
            if form[0] != call.name:
                self.changes[f"calls of {call.name} written as {form[0]}"] += 1
            own.append(ToolCallPart(id=id_, name=form[0], arguments=dump_json(form[1])))
        content = tuple(self._adapt_content(piece) for piece in result.content)
        fields = result.provider_fields if self._is_own else None
        answers.append(ToolResultPart(call_id=id_, content=content, is_error=result.is_error, provider_fields=fields))

    def _quote_result(self, result: ToolResultPart, tool: str) -> list[Part]:
        pieces = [self._adapt_content(piece) for piece in result.content]
        error = True if result.is_error else None
        return [
            TextPart(text=label_text("result", piece.text, tool=tool, error=error))
            if isinstance(piece, TextPart)
            else piece
            for piece in pieces
        ]

    def _adapt_content(self, part: ToolResultContent, *, is_reply: bool = False) -> ToolResultContent:
        """The part as the agent takes it: media as a data URL, a text file as text, else a description."""
        if isinstance(part, TextPart):
            return part if self._is_own else TextPart(text=part.text)
        url = resolve_url(part, self._load_blob, media_type="image/png" if part.type == "image" else PDF_MEDIA_TYPE)
        media_type, data = (split_data_url(url) if url is not None else None) or (None, "")
        is_image_url = url is not None and url.startswith("https://") and isinstance(part, ImagePart)
        if not is_reply and (
            (media_type is not None and media_type.startswith(self._traits.media_types))
            or (is_image_url and self._traits.takes_urls)
        ):
            update = {"url": url, "blob": None, "media_type": media_type or part.media_type, "provider_fields": None}
            return part.model_copy(update=update)
        if media_type is not None and media_type.startswith(_TEXT_MEDIA_TYPES):
            try:
                text = b64decode(data).decode()
            except (Base64Error, ValueError):
                pass
            else:
                name = part.name if isinstance(part, FilePart) else None
                return TextPart(text=label_text("document", text, name=name))
        kind = "images" if isinstance(part, ImagePart) else "files"
        self.changes[f"{kind} replaced by a description"] += 1
        return TextPart(text=describe_media(part))


def _is_content(part: Part) -> TypeGuard[ToolResultContent]:
    return isinstance(part, TextPart | ImagePart | FilePart)


def _match_results(
    messages: Sequence[TimedMessage],
) -> tuple[dict[tuple[int, int], ToolResultPart], dict[int, list[ToolResultPart]]]:
    """Results by the position of their call (message and part), and those without a call by their message.

    An id may be used again in a later message, so a result belongs to the newest open call of its id.
    """
    open_calls: dict[str, tuple[int, int]] = {}
    matched: dict[tuple[int, int], ToolResultPart] = {}
    orphans: dict[int, list[ToolResultPart]] = {}
    for index, (_, message, _) in enumerate(messages):
        for position, part in enumerate(message.parts):
            if isinstance(part, ToolCallPart):
                open_calls[part.id] = (index, position)
            elif isinstance(part, ToolResultPart):
                call = open_calls.pop(part.call_id, None)
                if call is None:
                    orphans.setdefault(index, []).append(part)
                else:
                    matched[call] = part
    return matched, orphans
