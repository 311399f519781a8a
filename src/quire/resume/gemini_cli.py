"""Writes sessions of Gemini CLI: one file per session, in the folder of the project.

Gemini CLI 0.61 resumes a file with these lines. It finds the folder of a project by the marker `.project_root`. On
`--resume` it creates an empty file that ends in the first eight characters of the session's id, and its next start
deletes every file with that ending as damaged, the session's own among them. So the file is named after other
characters. The session is found by the id in its first line.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from quire.model import FilePart, ImagePart, TextPart, ToolCallPart, ToolResultPart
from quire.model.ids import now
from quire.model.json_values import dump_json, get_object, parse_object
from quire.model.messages import Message, ToolResultContent
from quire.resume.history import AdaptedHistory, AgentTraits, SessionWriter
from quire.resume.session import NativeSession, SessionPlace, format_time
from quire.wire.media import split_data_url

TRAITS = AgentTraits(
    name="gemini",
    client="gemini",
    source="gemini",
    media_types=("image/", "application/pdf"),
    takes_urls=False,
    call_prefix="call-",
)
UNKNOWN_MODEL = "gemini-2.5-pro"
_MARKER = ".project_root"
_IGNORED_STARTS = ("/", "?", "<session_context>", "<hook_context>")
"""Gemini CLI leaves out messages of the user that begin like this, or that have no text."""
_SPEAKER_TEXT = "[user] "
_TOKENS = {"input": 0, "output": 0, "cached": 0, "thoughts": 0, "tool": 0, "total": 0}


def build_session(history: AdaptedHistory, place: SessionPlace) -> NativeSession:
    session, folder, written_at = str(uuid4()), str(place.folder), now()
    results = {each.call_id: each for _, message, _ in history.messages for each in message.tool_results}
    began = history.messages[0].at if history.messages else written_at
    lines: list[dict[str, Any]] = [
        {
            "sessionId": session,
            "projectHash": sha256(folder.encode()).hexdigest(),
            "startTime": format_time(began),
            # Sessions are deleted by their age, which counts from here.
            "lastUpdated": format_time(written_at),
            "kind": "main",
        }
    ]
    for at, message, model in history.messages:
        line: dict[str, Any] = {"id": str(uuid4()), "timestamp": format_time(at)}
        if message.role == "user":
            lines.append({**line, "type": "user", "content": _render_prompt(message)})
        elif message.role == "assistant":
            calls = [_render_call(call, results[call.id], line["timestamp"]) for call in message.tool_calls]
            line |= {"type": "gemini", "content": message.text, "thoughts": [], "tokens": _TOKENS}
            lines.append({**line, "model": model or UNKNOWN_MODEL, **({"toolCalls": calls} if calls else {})})
    home = place.find_folder("GEMINI_CLI_HOME", "") / ".gemini"
    project = _find_project_folder(home, folder)
    path = project / "chats" / f"session-{format_time(written_at)[:16].replace(':', '-')}-{uuid4().hex[:8]}.jsonl"
    return NativeSession(
        id=session,
        path=path,
        text="".join(f"{dump_json(line)}\n" for line in lines),
        arguments=("--resume", session),
        markers={project / _MARKER: folder},
    )


WRITER = SessionWriter(TRAITS, build_session)


def _find_project_folder(home: Path, folder: str) -> Path:
    """The folder of a project: as registered, else as marked, else a new one that is named as Gemini CLI would."""
    try:
        registry = parse_object((home / "projects.json").read_text(encoding="utf-8")) or {}
    except (OSError, ValueError):
        registry = {}
    names = get_object(registry, "projects")
    registered = names.get(folder)
    if isinstance(registered, str) and _read_marker(home / "tmp" / registered) in (folder, None):
        return home / "tmp" / registered
    for marker in sorted(home.glob(f"tmp/*/{_MARKER}")):
        if _read_marker(marker.parent) == folder:
            return marker.parent
    base = re.sub(r"[^a-z0-9]+", "-", Path(folder).name.lower()).strip("-") or "project"
    name, number = base, 0
    while name in names.values() or any((home / kind / name).exists() for kind in ("tmp", "history")):
        number += 1
        name = f"{base}-{number}"
    return home / "tmp" / name


def _read_marker(project: Path) -> str | None:
    try:
        return (project / _MARKER).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _render_prompt(message: Message) -> list[dict[str, Any]]:
    parts = [_render_content(part) for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart)]
    text = message.text.strip()
    return parts if text and not text.startswith(_IGNORED_STARTS) else [{"text": _SPEAKER_TEXT}, *parts]


def _render_content(part: ToolResultContent) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    media_type, data = split_data_url(part.url or "") or ("", "")
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _render_call(call: ToolCallPart, result: ToolResultPart, time: str) -> dict[str, Any]:
    """A call with its result, of which images and files follow the text."""
    key = "error" if result.is_error else "output"
    media = [_render_content(piece) for piece in result.content if not isinstance(piece, TextPart)]
    response = {"functionResponse": {"id": call.id, "name": call.name, "response": {key: result.text}}}
    return {
        "id": call.id,
        "name": call.name,
        "args": parse_object(call.arguments) or {},
        "result": [response, *media],
        "status": "error" if result.is_error else "success",
        "timestamp": time,
    }
