"""The plugin in the real Claude Code and Codex: installed by their own commands, used, and removed."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hooked_agents import QUIRE, has_text, make_runtime_folder, wait_for_entries

from infra.real_agents import Claude, Codex, find_claude, find_codex
from infra.scripted_provider import ScriptedProvider, ScriptedReply
from quire.cli.hook import HOOK_EVENTS

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PLUGIN = REPOSITORY / "plugins" / "quire"


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """The variables of a shell in which `quire` is installed."""
    with make_runtime_folder() as folder:
        yield {"PATH": f"{QUIRE.parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(folder)}


async def call(agent: Claude | Codex, binary: Path | None, *words: str) -> str:
    process = await agent.start([str(binary), *words])
    async with asyncio.timeout(120):
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, (stdout + stderr).decode()
    return stdout.decode()


def list_files(folder: Path, *, naming: str) -> list[str]:
    """Files below a folder whose path or content has a word, without transcripts and logs."""
    files = [path for path in folder.rglob("*") if path.is_file() and not {"projects", "debug"} & set(path.parts)]
    return [str(path) for path in files if naming in path.name or naming.encode() in path.read_bytes()]


def load_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_hooks_of_the_plugin_are_those_that_quire_installs() -> None:
    for file in ("hooks.json", "codex.json"):
        assert tuple(load_json(PLUGIN / "hooks" / file)["hooks"]) == HOOK_EVENTS
    own, codex = (load_json(PLUGIN / folder / "plugin.json") for folder in (".claude-plugin", ".codex-plugin"))
    assert {**codex, **own} == codex


@pytest.mark.nightly
async def test_claude_installs_uses_and_removes_the_plugin(
    provider: ScriptedProvider, make_claude: Callable[..., Claude], environment: dict[str, str]
):
    claude = make_claude(provider.url, env=environment)
    binary = find_claude()
    for path in (REPOSITORY, PLUGIN):
        await call(claude, binary, "plugin", "validate", "--strict", str(path))
    await call(claude, binary, "plugin", "marketplace", "add", str(REPOSITORY))
    await call(claude, binary, "plugin", "install", "quire@quire")
    provider.script = lambda request: ScriptedReply("The tide turns at four.")
    first = await claude.run("When does the tide turn?")
    assert first.exit_code == 0, first.stderr
    assert "plugin:quire:quire: quire mcp --write - ✔ Connected" in await call(claude, binary, "mcp", "list")
    await wait_for_entries(claude, str(first.session_id), lambda entries: has_text(entries, "at four"))
    shown = await claude.run("/quire:cache", "--continue")
    assert shown.exit_code == 0, shown.stderr
    sent = json.dumps(provider.requests[-1].items)
    assert "Say in a few sentences" in sent
    assert "parts unknown" in sent
    await call(claude, binary, "plugin", "uninstall", "quire@quire")
    await call(claude, binary, "plugin", "marketplace", "remove", "quire")
    # Claude Code deletes its copy a week after it marked it as orphaned.
    plugins = claude.home / ".claude" / "plugins"
    copy = plugins / "cache" / "quire" / "quire" / "0.1.0"
    assert (copy / ".orphaned_at").exists()
    shutil.rmtree(copy)
    assert list_files(plugins, naming="quire") == []
    assert "quire" not in (claude.home / ".claude" / "settings.json").read_text()


async def test_codex_installs_uses_and_removes_the_plugin(
    provider: ScriptedProvider, make_codex: Callable[..., Codex], environment: dict[str, str]
):
    codex = make_codex(provider.url, env=environment)
    binary = find_codex()
    await call(codex, binary, "plugin", "marketplace", "add", str(REPOSITORY))
    await call(codex, binary, "plugin", "add", "quire@quire")
    provider.script = lambda request: ScriptedReply("The tide turns at four.")
    first = await codex.run("When does the tide turn?", "--dangerously-bypass-hook-trust")
    assert first.exit_code == 0, first.stderr
    assert "quire" in json.dumps(provider.requests[-1].body["tools"])
    await wait_for_entries(codex, str(first.session_id), lambda entries: has_text(entries, "at four"))
    await call(codex, binary, "plugin", "remove", "quire@quire")
    await call(codex, binary, "plugin", "marketplace", "remove", "quire")
    assert "quire@quire" not in (codex.home / "config.toml").read_text()
