"""Writes sessions of opencode in opencode's export format, which `opencode import` adds to its database.

opencode 1.18 compares ids: they begin with the time and must ascend, before what the user says next. Its import
replaces the folder by the one that it runs in, and never changes a session that exists.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from quire.model import FilePart, ImagePart, TextPart, ToolCallPart, ToolResultPart
from quire.model.ids import now
from quire.model.json_values import dump_json, filter_objects, get_text, parse_object
from quire.model.messages import ToolResultContent
from quire.resume.history import AdaptedHistory, AgentTraits, SessionWriter
from quire.resume.session import NativeSession, SessionPlace

TRAITS = AgentTraits(
    name="opencode",
    client="opencode",
    source="opencode",
    media_types=("image/", "application/pdf"),
    takes_urls=False,
    call_prefix="call_",
)
VERSION = "1.18.33"
UNKNOWN_MODEL = ("anthropic", "claude-sonnet-4-5")
"""Provider and model where the user's settings name none; opencode lets the user choose another."""
_CONFIG_NAMES = ("opencode.json", "opencode.jsonc", "config.json")
_ID_BITS = 48
_IDS_PER_MILLISECOND = 0x1000
_RANDOM_ID_CHARS = 14
_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_COMMENT = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*")|//[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*\*/')
MAX_CONFIG_CHARS = 1_000_000


def build_session(history: AdaptedHistory, place: SessionPlace) -> NativeSession:
    folder, (provider, model) = str(place.folder), _find_model(place)
    # Ids by the time of writing: ids by the times of a long log would repeat after two years, as the time in them does.
    ids = _IdSequence(now() // 1_000 - len(history.messages) - 1)
    session = ids.make("ses", descending=True)
    results = {each.call_id: each for _, message, _ in history.messages for each in message.tool_results}
    messages: list[dict[str, Any]] = []
    question_id = ""
    for at, message, _ in history.messages:
        if message.role == "tool":
            continue
        ids.advance()
        own, created = ids.make("msg"), at // 1_000

        def make_part(fields: Mapping[str, Any], message_id: str = own) -> dict[str, Any]:
            return {**fields, "id": ids.make("prt"), "sessionID": session, "messageID": message_id}

        info: dict[str, Any] = {"id": own, "sessionID": session, "role": message.role, "agent": "build"}
        content = [part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart)]
        fields = [_render_content(part) for part in content]
        if message.role == "user":
            question_id = own
            info |= {"time": {"created": created}, "model": {"providerID": provider, "modelID": model}}
        else:
            finish = "tool-calls" if message.tool_calls else "stop"
            info |= {
                "parentID": question_id, "mode": "build", "path": {"cwd": folder, "root": folder}, "cost": 0,
                "tokens": _TOKENS, "modelID": model, "providerID": provider, "finish": finish,
                "time": {"created": created, "completed": created},
            }  # fmt: skip
            for call in message.tool_calls:
                state = _render_call(call, results[call.id], created)
                media = [piece for piece in results[call.id].content if not isinstance(piece, TextPart)]
                if media and state["status"] == "completed":
                    state["attachments"] = [make_part(_render_content(piece)) for piece in media]
                fields.append({"type": "tool", "tool": call.name, "callID": call.id, "state": state})
            step = {"type": "step-finish", "reason": finish, "tokens": _TOKENS, "cost": 0}
            fields = [{"type": "step-start"}, *fields, step]
        parts = [make_part(each) for each in fields]
        messages.append({"info": info, "parts": parts})
    times = [each.at // 1_000 for each in history.messages] or [now() // 1_000]
    info = {
        "id": session, "slug": "quire-resume", "projectID": "global", "directory": folder, "path": "",
        "title": place.title or "Continued from Quire", "agent": "build", "version": VERSION, "cost": 0,
        "model": {"id": model, "providerID": provider}, "time": {"created": times[0], "updated": times[-1]},
        "tokens": _TOKENS,
    }  # fmt: skip
    path = place.files_folder / f"{session}.json"
    return NativeSession(
        id=session,
        path=path,
        text=dump_json({"info": info, "messages": messages}),
        arguments=("--session", session),
        import_arguments=("import", str(path)),
    )


WRITER = SessionWriter(TRAITS, build_session)


class _IdSequence:
    """Ids as opencode makes them: 48 bits of milliseconds and a counter, inverted for sessions, then random text."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds, self._counter = milliseconds, 0

    def advance(self) -> None:
        self._milliseconds, self._counter = self._milliseconds + 1, 0

    def make(self, kind: str, *, descending: bool = False) -> str:
        self._counter += 1
        value = (self._milliseconds * _IDS_PER_MILLISECOND + self._counter) % (1 << _ID_BITS)
        value = (1 << _ID_BITS) - 1 - value if descending else value
        return f"{kind}_{value:012x}{uuid4().hex[:_RANDOM_ID_CHARS]}"


def _render_content(part: ToolResultContent) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    name = part.name if isinstance(part, FilePart) else None
    media_type = part.media_type or "image/png"
    return {
        "type": "file",
        "mime": media_type,
        "filename": name or f"file.{media_type.partition('/')[2]}",
        "url": part.url,
    }


def _render_call(call: ToolCallPart, result: ToolResultPart, created: int) -> dict[str, Any]:
    state: dict[str, Any] = {
        "input": parse_object(call.arguments) or {},
        "time": {"start": created, "end": created},
        "metadata": {},
    }
    if result.is_error:
        return {**state, "status": "error", "error": result.text}
    return {**state, "status": "completed", "output": result.text, "title": call.name}


def _find_model(place: SessionPlace) -> tuple[str, str]:
    """Provider and model of the user's settings, else those used last: the session's must exist in the settings."""
    environ = place.environ
    config = place.find_folder("XDG_CONFIG_HOME", ".config") / "opencode"
    texts = [environ.get("OPENCODE_CONFIG_CONTENT") or ""]
    named = [Path(path)] if (path := environ.get("OPENCODE_CONFIG")) else []
    files = [*named, *(folder / name for folder in (place.folder, config) for name in _CONFIG_NAMES)]
    for text in (*texts, *map(_read_text, files)):
        stripped = _COMMENT.sub(lambda match: match[1] or "", text)
        provider, _, model = (get_text(parse_object(stripped) or {}, "model") or "").partition("/")
        if provider and model:
            return provider, model
    state = place.find_folder("XDG_STATE_HOME", ".local/state") / "opencode" / "model.json"
    for recent in filter_objects((parse_object(_read_text(state)) or {}).get("recent")):
        if (provider := get_text(recent, "providerID")) and (model := get_text(recent, "modelID")):
            return provider, model
    return UNKNOWN_MODEL


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_CONFIG_CHARS)
    except (OSError, ValueError):
        return ""
