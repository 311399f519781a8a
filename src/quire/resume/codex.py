"""Writes sessions of Codex: a rollout with the items of the Responses API.

Codex 0.166 resumes a file with these lines. The events repeat what was said, for its screen.
"""

import secrets
from datetime import datetime
from typing import Any
from uuid import UUID

from quire.model.ids import now
from quire.model.json_values import dump_json
from quire.model.messages import Message
from quire.resume.history import AdaptedHistory, AgentTraits, SessionWriter
from quire.resume.session import NativeSession, SessionPlace, format_time
from quire.wire.responses.render import OpenAIResponsesFormat

TRAITS = AgentTraits(
    name="codex", client="codex", source="codex", media_types=("image/",), takes_urls=True, call_prefix="call_"
)
VERSION = "0.166.0"


def build_session(history: AdaptedHistory, place: SessionPlace) -> NativeSession:
    written_at = now()
    began = history.messages[0].at if history.messages else written_at
    session = str(_make_uuid7(written_at // 1_000))
    lines: list[dict[str, Any]] = []

    def add(at: int, kind: str, payload: dict[str, Any]) -> None:
        line = {"timestamp": format_time(at), "ordinal": len(lines), "type": kind, "payload": payload}
        lines.append(line)

    meta = {
        "id": session, "session_id": session, "timestamp": format_time(began), "cwd": str(place.folder),
        "originator": "codex_cli_rs", "cli_version": VERSION, "source": "cli",
    }  # fmt: skip
    add(began, "session_meta", meta)
    for at, message, _ in history.messages:
        for item in _render_items(message):
            add(at, "response_item", item)
        if message.role != "tool" and message.text:
            kind = "user_message" if message.role == "user" else "agent_message"
            add(at, "event_msg", {"type": kind, "message": message.text})
    # Codex names its files by local time.
    local = datetime.fromtimestamp(written_at / 1_000_000)
    folder = place.find_folder("CODEX_HOME", ".codex") / "sessions" / local.strftime("%Y/%m/%d")
    path = folder / f"rollout-{local:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"
    text = "".join(f"{dump_json(line)}\n" for line in lines)
    return NativeSession(id=session, path=path, text=text, arguments=("resume", session))


WRITER = SessionWriter(TRAITS, build_session)


def _render_items(message: Message) -> list[dict[str, Any]]:
    """Items of the Responses API whose content is always a list, as Codex reads them."""
    items: list[dict[str, Any]] = []
    kind = "output_text" if message.role == "assistant" else "input_text"
    for item in OpenAIResponsesFormat().render_message(message):
        if item.get("type") == "message" and isinstance(text := item["content"], str):
            item = {**item, "content": [{"type": kind, "text": text}]}
        items.append(item)
    return items


def _make_uuid7(milliseconds: int) -> UUID:
    """A UUID of version 7: the time, then random bits."""
    value = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return UUID(int=value)
