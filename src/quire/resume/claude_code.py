"""Writes sessions of Claude Code: a transcript in the folder of the project, one line per content block.

Claude Code 2.1.325 resumes a file with these fields. It follows `parentUuid` from the last line, so that the lines are
one chain, with the results of parallel calls in one line.
"""

import re
import unicodedata
from hashlib import sha256
from typing import Any
from uuid import uuid4

from quire.model.json_values import dump_json
from quire.resume.history import AdaptedHistory, AgentTraits, SessionWriter
from quire.resume.session import NativeSession, SessionPlace, format_time
from quire.wire.messages.render import IMAGE_MEDIA_TYPES, AnthropicMessagesFormat

TRAITS = AgentTraits(
    name="claude",
    client="claude",
    source="claude-code",
    media_types=(*IMAGE_MEDIA_TYPES, "application/pdf"),
    takes_urls=True,
    call_prefix="toolu_",
)
VERSION = "2.1.325"
UNKNOWN_MODEL = "unknown"
"""Model of replies whose model the log does not have. Claude Code continues with a model of the session that it knows,
else with the user's."""
MAX_PROJECT_NAME_CHARS = 200
_USAGE = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
"""No request of these was made by Claude Code. It counts from the usage of the next reply on."""


def build_session(history: AdaptedHistory, place: SessionPlace) -> NativeSession:
    session, parent = str(uuid4()), None
    lines: list[dict[str, Any]] = []
    wire_format = AnthropicMessagesFormat()
    for at, message, model in history.messages:
        for rendered in wire_format.render_message(message):
            blocks: list[dict[str, Any]] = rendered["content"]
            is_reply, message_id = rendered["role"] == "assistant", f"msg_{uuid4().hex[:24]}"
            stop_reason = "tool_use" if message.tool_calls else "end_turn"
            for content in [[block] for block in blocks] if is_reply else [blocks]:
                body: dict[str, Any] = {"role": rendered["role"], "content": content}
                if is_reply:
                    body = {
                        "id": message_id, "type": "message", "role": "assistant", "model": model or UNKNOWN_MODEL,
                        "content": content, "stop_reason": stop_reason, "stop_sequence": None, "usage": _USAGE,
                    }  # fmt: skip
                uuid = str(uuid4())
                lines.append(
                    {
                        "parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": str(place.folder),
                        "sessionId": session, "version": VERSION, "gitBranch": "", "type": rendered["role"],
                        "message": body, "uuid": uuid, "timestamp": format_time(at),
                    }
                )  # fmt: skip
                parent = uuid
    folder = place.find_folder("CLAUDE_CONFIG_DIR", ".claude") / "projects" / name_project_folder(str(place.folder))
    text = "".join(f"{dump_json(line)}\n" for line in lines)
    return NativeSession(id=session, path=folder / f"{session}.jsonl", text=text, arguments=("--resume", session))


WRITER = SessionWriter(TRAITS, build_session)


def name_project_folder(folder: str) -> str:
    """The name that Claude Code gives to a project: all but letters and digits replaced, by UTF-16 code units.

    For a long name, it compares the beginning and appends a hash.
    """
    units = unicodedata.normalize("NFC", folder).encode("utf-16-le", "surrogatepass")
    characters = (chr(int.from_bytes(units[index : index + 2], "little")) for index in range(0, len(units), 2))
    name = re.sub(r"[^A-Za-z0-9]", "-", "".join(characters))
    if len(name) <= MAX_PROJECT_NAME_CHARS:
        return name
    return f"{name[:MAX_PROJECT_NAME_CHARS]}-{sha256(folder.encode(errors='replace')).hexdigest()[:6]}"
