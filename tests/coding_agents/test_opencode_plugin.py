"""The plugin of opencode: sessions are imported as they end, and the MCP server is one of its settings."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hooked_agents import QUIRE

from infra.real_agents import OpenCode, find_opencode
from infra.scripted_provider import ScriptedProvider, ScriptedReply
from quire.store import SqlStore

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).parents[2] / "plugins" / "opencode" / "quire.js"


async def test_opencode_loads_the_plugin_and_its_sessions_are_imported(provider: ScriptedProvider, tmp_path: Path):
    if find_opencode() is None:
        pytest.skip("OPENCODE IS NOT INSTALLED: its plugin is not tested (`just install-agents`)")
    agent = OpenCode(tmp_path, provider.url, env={"PATH": f"{QUIRE.parent}:{os.environ['PATH']}"})
    # Named in the settings: for a folder of plugins, opencode first installs a package from npm.
    path = agent.work / "opencode.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "plugin": [PLUGIN.as_uri()]}))
    provider.script = lambda request: ScriptedReply("The tide turns at four.")
    await agent.import_session("run", "When does the tide turn?")
    database = agent.home / ".local" / "share" / "quire" / "quire.db"
    texts: list[str] = []
    async with asyncio.timeout(60):
        while not any("at four" in text for text in texts):
            await asyncio.sleep(0.2)
            if database.exists():
                async with SqlStore.open(f"sqlite:///{database}") as store:
                    records = [each.id for each in await store.list_conversations()]
                    texts = [entry.raw for each in records for entry in await store.read_range(each)]
    assert "When does the tide turn?" in texts[0]


@pytest.mark.skipif(shutil.which("node") is None, reason="NODE IS NOT INSTALLED: the plugin's settings are not tested")
def test_the_plugin_adds_to_the_settings_and_leaves_what_the_user_has_set():
    script = f"""
        import {{ Quire }} from {json.dumps(PLUGIN.as_uri())}
        const {{ config }} = await Quire()
        const settings = [{{}}, {{ mcp: {{ quire: "own", other: "other" }}, command: {{ mine: "mine" }} }}]
        for (const each of settings) await config(each)
        console.log(JSON.stringify(settings))
    """
    process = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    empty, own = json.loads(process.stdout)
    assert empty["mcp"]["quire"]["command"] == ["quire", "mcp", "--write"]
    assert "$ARGUMENTS" in empty["command"]["quire-search"]["template"]
    assert own["mcp"] == {"quire": "own", "other": "other"}
    assert sorted(own["command"]) == ["mine", "quire-search"]
