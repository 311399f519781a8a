"""Transcripts that the real agents write, as test data: `python -m infra.agent_transcripts` records them again.

Paths and ids of the recording machine are replaced, and long texts that the agents add to requests are shortened.
"""

import asyncio
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from infra.agent_captures import shorten
from infra.real_agents import Claude, Codex
from infra.scripted_provider import (
    ProviderRequest,
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    play,
    run_scripted_provider,
)

DATA_FOLDER = Path(__file__).parents[1] / "importers" / "data"
MAX_TEXT_CHARS = 100
MAX_MESSAGE_CHARS = 1_300
"""Longer texts are cut to a shorter beginning and the digest of the whole; messages have the higher limit."""

SUMMARY = "<analysis>Short.</analysis><summary>The user greeted; echo printed ahoy.</summary>"
_DROPPED_FIELDS = {"shape", "params", "tools", "state", "base_instructions", "rate_limits"}
"""Long fields that no reader uses."""
_CLAUDE_ECHO = ScriptedCall("Bash", {"command": "echo ahoy", "description": "Greet"})
_CODEX_ECHO = ScriptedCall("exec_command", {"cmd": "echo ahoy"})


def _answer_main_and_sub_agent(main: Script, sub: Script, header: str) -> Script:
    return lambda request: (sub if header in request.headers else main)(request)


async def write_claude_transcripts(provider: ScriptedProvider, folder: Path) -> Path:
    """A session with tools, a sub-agent, `/compact` and a turn after it; then a fork. Returns the home's folder."""
    task = {"description": "Greet", "prompt": "Greet them.", "subagent_type": "claude"}
    summarized = play(ScriptedReply(SUMMARY))
    main = play(
        ScriptedReply("I will greet.", (_CLAUDE_ECHO, _CLAUDE_ECHO), "They want a greeting."),
        ScriptedReply("It said ahoy."),
        ScriptedReply(calls=(ScriptedCall("Agent", task),)),
        ScriptedReply("Delegated."),
        ScriptedReply("The sub-agent is done."),
        ScriptedReply("After the summary."),
        ScriptedReply("In the fork."),
        tool="Bash",
    )
    sub = play(ScriptedReply(calls=(_CLAUDE_ECHO,)), ScriptedReply("Greeted."))

    def choose(request: ProviderRequest) -> ScriptedReply:
        if "Respond with TEXT ONLY" in json.dumps(request.items[-1]):
            return summarized(request)
        return _answer_main_and_sub_agent(main, sub, "x-claude-code-agent-id")(request)

    provider.script = choose
    claude = Claude(folder, provider.url)
    first = await claude.run("Greet.")
    await claude.run("Delegate.", "--continue")
    await claude.run("/compact", "--continue")
    await claude.run("Once more.", "--continue")
    await claude.run("Another way.", "--resume", str(first.session_id), "--fork-session")
    return claude.home / ".claude" / "projects"


async def write_codex_transcripts(provider: ScriptedProvider, folder: Path) -> Path:
    """A thread with a tool, a sub-agent and a compaction, resumed; then a fork. Returns the folder of the sessions."""
    spawn = ScriptedCall("spawn_agent", {"message": "Greet them."}, namespace="multi_agent_v1")
    main = play(
        ScriptedReply("I will greet.", (_CODEX_ECHO,), "They want a greeting."),
        ScriptedReply("It said ahoy."),
        ScriptedReply(calls=(spawn,)),
        ScriptedReply(calls=(_CODEX_ECHO,)),
        ScriptedReply("Delegated.", usage=ScriptedUsage(50_000)),
        ScriptedReply("The user greeted and delegated."),
        ScriptedReply("After the summary."),
        ScriptedReply("In the fork."),
    )
    sub = play(ScriptedReply("Greeted."))
    provider.script = _answer_main_and_sub_agent(main, sub, "x-openai-subagent")
    codex = Codex(folder, provider.url, config=["model_auto_compact_token_limit=40000"])
    first = await codex.run("Greet.")
    await codex.run("Delegate.", resume=first.session_id)
    await codex.run("Once more.", resume=first.session_id)
    await codex.run("Another way.", fork=first.session_id)
    return codex.home / "sessions"


WRITERS = {"claude_code": write_claude_transcripts, "codex": write_codex_transcripts}


def _clean(value: Any, folder: Path, *, limit: int = MAX_TEXT_CHARS) -> Any:
    match value:
        case str():
            text = value.replace(f"{folder}/work", "/home/dev/project").replace(f"{folder}/home", "/home/dev")
            text = text.replace(str(folder), "/home/dev").replace(_to_dashes(folder), "-home-dev")
            text = re.sub(r"Linux \d[\w.-]+", "Linux 6.1", re.sub(r"/tmp/claude-\d+", "/tmp/claude", text))
            return shorten(text, limit)
        case list():
            return [_clean(each, folder, limit=limit) for each in value]
        case dict():
            return {
                name: _clean(each, folder, limit=MAX_MESSAGE_CHARS if name in ("message", "payload") else limit)
                for name, each in value.items()
                if name not in _DROPPED_FIELDS
            }
        case _:
            return value


def _to_dashes(folder: Path) -> str:
    """The folder's path as Claude Code writes it into names."""
    return re.sub(r"[^a-zA-Z0-9]", "-", str(folder))


def _copy_transcripts(source: Path, target: Path, folder: Path) -> None:
    for path in sorted(source.rglob("*.json*")):
        copy = target / str(path.relative_to(source)).replace(_to_dashes(folder), "-home-dev")
        copy.parent.mkdir(parents=True, exist_ok=True)
        cleaned = [_clean(json.loads(line), folder) for line in path.read_text().splitlines()]
        lines = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in cleaned]
        copy.write_text("\n".join(lines) + "\n")
        print(copy.relative_to(target), len(lines), "lines", copy.stat().st_size, "bytes")


async def record_transcripts(names: list[str]) -> None:
    for name in names or list(WRITERS):
        with tempfile.TemporaryDirectory() as folder, run_scripted_provider() as provider:
            source = await WRITERS[name](provider, Path(folder))
            shutil.rmtree(DATA_FOLDER / name, ignore_errors=True)
            _copy_transcripts(source, DATA_FOLDER / name, Path(folder))


if __name__ == "__main__":
    asyncio.run(record_transcripts(sys.argv[1:]))
