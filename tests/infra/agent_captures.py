"""Captured sessions of real agents as test data: `python -m infra.agent_captures` records them again.

Each line of a file is one request with the scripted reply to it. Long texts are shortened by a rule that depends on the
text alone, so equal texts stay equal over a session; paths, keys and ids of the recording machine are replaced.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from infra.real_agents import Claude, Codex
from infra.scripted_provider import (
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    play,
    run_scripted_provider,
)

DATA_FOLDER = Path(__file__).parents[1] / "server" / "data"

MAX_TEXT_CHARS = 1_300
"""Texts of messages above it are shortened; the summary that Claude Code writes into a message stays whole."""
MAX_TOOL_TEXT_CHARS = 60
_SHORTENED_CHARS = 200

_DROPPED_HEADERS = {"host", "connection", "content-length", "accept-encoding"}
_KEY_HEADERS = {"x-api-key", "authorization"}
_FIXED_ID = "0" * 64
_ECHO = {"command": "echo ahoy", "description": "Greet"}


@dataclass(frozen=True)
class CapturedRequest:
    """One request of a captured session, and the reply to it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    reply: ScriptedReply

    @property
    def raw(self) -> bytes:
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


def load_capture(name: str) -> list[CapturedRequest]:
    lines = (DATA_FOLDER / f"{name}.jsonl").read_text().splitlines()
    return [_parse_line(json.loads(line)) for line in lines]


def _parse_line(line: dict[str, Any]) -> CapturedRequest:
    reply = line["reply"]
    calls = tuple(ScriptedCall(**call) for call in reply["calls"])
    return CapturedRequest(
        line["path"], line["headers"], line["body"], ScriptedReply(reply["text"], calls, reply["thinking"])
    )


def replay_script(captured: list[CapturedRequest]) -> Script:
    """Gives the recorded replies in turn; sent in the recorded order, every call has its recorded id."""
    return play(*(each.reply for each in captured))


class _Sanitizer:
    """Replaces what belongs to the recording machine, and shortens long texts."""

    def __init__(self, folder: Path) -> None:
        dashed = re.sub(r"[^a-zA-Z0-9]", "-", str(folder))
        self._replacements = {
            f"{folder}/work": "/home/dev/project",
            f"{folder}/home": "/home/dev",
            str(folder): "/home/dev",
            dashed: "-home-dev",
        }

    def clean_text(self, text: str) -> str:
        for found, replacement in self._replacements.items():
            text = text.replace(found, replacement)
        text = re.sub(r"OS Version: [^\n\\]+", "OS Version: Linux 6.1", text)
        text = re.sub(r'((?:device_id|installation[_-]id)\\*"\s*:\s*\\*")[0-9a-f-]+', rf"\g<1>{_FIXED_ID}", text)
        return re.sub(r"/tmp/claude-\d+", "/tmp/claude", text)

    def clean(self, value: Any, *, limit: int = MAX_TEXT_CHARS) -> Any:
        if isinstance(value, str):
            return shorten(self.clean_text(value), limit)
        if isinstance(value, list):
            return [self.clean(each, limit=limit) for each in value]
        if isinstance(value, dict):
            return {
                name: _FIXED_ID
                if name == "x-codex-installation-id"
                else self.clean(each, limit=MAX_TOOL_TEXT_CHARS if name == "tools" else limit)
                for name, each in value.items()
            }
        return value

    def clean_headers(self, headers: dict[str, str]) -> dict[str, str]:
        sent = {name: value for name, value in headers.items() if name not in _DROPPED_HEADERS | _KEY_HEADERS}
        return {name: self.clean_text(value) for name, value in sent.items()}


def shorten(text: str, limit: int) -> str:
    """Cuts a text above the limit to its beginning and the digest of the whole."""
    if len(text) <= limit:
        return text
    digest = sha256(text.encode()).hexdigest()[:12]
    return f"{text[: min(limit, _SHORTENED_CHARS)]}… [{digest}]"


async def capture_claude_session(provider: ScriptedProvider, folder: Path) -> None:
    """Two turns with a tool each, then `/compact`, then another turn: string and block forms, moving cache markers."""
    turn = [
        ScriptedReply("I will greet.", (ScriptedCall("Bash", _ECHO),), "They want a greeting."),
        ScriptedReply("It said ahoy."),
    ]
    summary = ScriptedReply("<analysis>Short.</analysis><summary>The user greeted; echo printed ahoy.</summary>")
    provider.script = play(*turn, *turn, summary, *turn)
    claude = Claude(folder, provider.url)
    for prompt, *flags in (
        ["Greet."],
        ["Again.", "--continue"],
        ["/compact", "--continue"],
        ["Once more.", "--continue"],
    ):
        await claude.run(prompt, *flags)


async def capture_claude_sub_agent(provider: ScriptedProvider, folder: Path) -> None:
    """A turn that delegates to a sub-agent, which calls a tool."""
    task = {"description": "Greet", "prompt": "Greet them.", "subagent_type": "claude"}
    main = play(ScriptedReply(calls=(ScriptedCall("Agent", task),)), ScriptedReply("Delegated."))
    sub = play(ScriptedReply(calls=(ScriptedCall("Bash", _ECHO),)), ScriptedReply("Greeted."))
    provider.script = lambda request: (sub if "x-claude-code-agent-id" in request.headers else main)(request)
    await Claude(folder, provider.url).run("Delegate.")


async def capture_codex_session(provider: ScriptedProvider, folder: Path) -> None:
    """A turn with a tool, then a second turn of the same thread."""
    call = ScriptedCall("exec_command", {"cmd": "echo ahoy"})
    provider.script = play(
        ScriptedReply("I will greet.", (call,), "They want a greeting."),
        ScriptedReply("It said ahoy."),
        ScriptedReply("Again: ahoy."),
    )
    codex = Codex(folder, provider.url)
    first = await codex.run("Greet.")
    await codex.run("Again.", resume=first.session_id)


async def capture_codex_compaction(provider: ScriptedProvider, folder: Path) -> None:
    """A turn, then Codex's own compaction before the second turn."""
    usage = ScriptedUsage(5_000)
    texts = ("One it is.", "The user counted to one.", "Two it is.")
    provider.script = play(*(ScriptedReply(text, usage=usage) for text in texts))
    codex = Codex(folder, provider.url, config=["model_auto_compact_token_limit=3000"])
    first = await codex.run("One.")
    await codex.run("Two.", resume=first.session_id)


SESSIONS: dict[str, Callable[[ScriptedProvider, Path], Awaitable[None]]] = {
    "claude_code_session": capture_claude_session,
    "claude_code_sub_agent": capture_claude_sub_agent,
    "codex_session": capture_codex_session,
    "codex_compaction": capture_codex_compaction,
}


def _format_lines(provider: ScriptedProvider, sanitizer: _Sanitizer) -> Iterator[str]:
    for request in provider.requests:
        reply = provider.replies[request]
        calls = [{"name": each.name, "arguments": each.arguments} for each in reply.calls]
        line = {
            "path": request.path,
            "headers": sanitizer.clean_headers(request.headers),
            "body": sanitizer.clean(request.body),
            "reply": {"text": reply.text, "thinking": reply.thinking, "calls": calls},
        }
        yield json.dumps(line, ensure_ascii=False)


async def record_captures() -> None:
    DATA_FOLDER.mkdir(exist_ok=True)
    for name, capture in SESSIONS.items():
        with tempfile.TemporaryDirectory() as folder, run_scripted_provider() as provider:
            await capture(provider, Path(folder))
            lines = list(_format_lines(provider, _Sanitizer(Path(folder))))
        (DATA_FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(lines)} requests")


if __name__ == "__main__":
    asyncio.run(record_captures())
