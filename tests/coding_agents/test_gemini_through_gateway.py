"""The real Gemini CLI through the gateway: recognized by its list alone, its side calls apart from the conversation."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from gateway_records import get_address, load_sessions
from test_quire_run import QUIRE, UserHome

from infra.real_agents import Gemini, find_gemini
from infra.scripted_provider import (
    ProviderRequest,
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    run_scripted_provider,
)
from infra.sizes import IS_FULL_SIZE
from quire.engine import Conversation
from quire.model import Compaction, Entry
from quire.store import SqlStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_gemini() is None, reason="GEMINI CLI IS NOT INSTALLED (`just install-agents`)"),
]

CALL_COUNT = 50 if IS_FULL_SIZE else 6
TOOL_NAME = "glob"
SNAPSHOT = "<state_snapshot><goal>Find the tide table of the harbour, and read it.</goal></state_snapshot>"


def call_tools(count: int) -> Script:
    """Calls a tool so many times in a session, each time with other arguments, then replies; side calls get JSON."""

    def choose(request: ProviderRequest) -> ScriptedReply:
        if TOOL_NAME not in request.tool_names:
            is_summary = b"<state_snapshot>" in request.raw
            return ScriptedReply(SNAPSHOT if is_summary else json.dumps({"complexity_score": 1}))
        made = request.raw.count(b'"functionCall"') + request.raw.count(b'"tool_calls"')
        if made < count and b"And now" not in request.raw:
            call = ScriptedCall(TOOL_NAME, {"pattern": f"*{made}.txt"})
            return ScriptedReply(f"Step {made}.", calls=(call,), thinking="Where is it?")
        return ScriptedReply("Done." if b"And now" not in request.raw else "Nothing new.")

    return choose


@asynccontextmanager
async def run_gemini_gateway(store: SqlStore, script: Script) -> AsyncIterator[tuple[GatewayHarness, ScriptedProvider]]:
    with run_scripted_provider(script) as provider:
        upstream = {"*": {"base_url": provider.openai_url, "speaks": ["gemini"]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstream, timeout_seconds=60) as harness:
            yield harness, provider


async def load_main(store: SqlStore) -> list[Entry]:
    """The messages of the only conversation that is listed, which has one branch."""
    (session,) = [each for each in await load_sessions(store) if each.conversation.is_main]
    assert len(session.branches) == 1
    return await store.read_range(session.conversation.id, kinds=["message"])


@pytest.mark.nightly
async def test_a_long_session_is_resumed(store: SqlStore, tmp_path: Path):
    async with run_gemini_gateway(store, call_tools(CALL_COUNT)) as (harness, provider):
        agent = Gemini(tmp_path, **get_address(harness))
        run = await agent.run("List the folder often.", "--yolo")
        assert run.exit_code == 0, run.stderr
        assert "Done." in run.stdout
        # The next start describes a folder with other files, at the start of the same list.
        (agent.work / "tides.txt").write_text("high at noon")
        run = await agent.run("And now?", "--yolo", "--resume", "latest")
        assert "Nothing new." in run.stdout, run.stderr
        entries = await load_main(store)
        roles = [entry.message.role for entry in entries]
        assert (roles.count("tool"), roles.count("assistant")) == (CALL_COUNT, CALL_COUNT + 2)
        (record,) = [each for each in await store.list_conversations() if each.is_main]
        assert record.origin is not None
        assert (record.origin.client, record.origin.project) == ("gemini", str(agent.work))
        main_requests = [each for each in provider.requests if each.tool_names]
        assert len(main_requests) == CALL_COUNT + 2
        engine = harness.server_state.engine_for("default")
        replies = [entry for entry in entries if entry.message.role == "assistant"]
        for entry in replies[:-1]:
            replay = await Conversation(engine, entry.conversation, entry.branch).replay(entry.seq)
            assert replay.matches, replay.mismatch


@pytest.mark.nightly
async def test_side_calls_are_apart(store: SqlStore, tmp_path: Path):
    async with run_gemini_gateway(store, call_tools(2)) as (harness, provider):
        agent = Gemini(tmp_path, **get_address(harness), model="auto")
        for prompt, flags in (("Look around.", ()), ("And now?", ("--resume", "latest"))):
            run = await agent.run(prompt, "--yolo", *flags)
            assert run.exit_code == 0, run.stderr
        side = [each for each in provider.requests if not each.tool_names]
        assert side, "Gemini CLI has a classifier choose the model"
        assert len(await load_main(store)) == 8
        others = [each.conversation for each in await load_sessions(store) if not each.conversation.is_main]
        assert [each.origin.purpose for each in others if each.origin is not None] == ["side"] * len(side)


@pytest.mark.nightly
async def test_a_compaction_continues_the_conversation(store: SqlStore, tmp_path: Path):
    async with run_gemini_gateway(store, call_tools(4)) as (harness, provider):
        agent = Gemini(tmp_path, **get_address(harness))
        settings = agent.home / ".gemini" / "settings.json"
        changed = json.loads(settings.read_text()) | {"model": {"compressionThreshold": 0.001}}
        settings.write_text(json.dumps(changed))
        for prompt, flags in (("The harbour is wide. " * 400, ()), ("And now?", ("--resume", "latest"))):
            run = await agent.run(prompt, "--yolo", *flags)
            assert run.exit_code == 0, run.stderr
        assert any(b"<state_snapshot>" in each.raw for each in provider.requests if not each.tool_names)
        (session,) = [each for each in await load_sessions(store) if each.conversation.is_main]
        entries = await store.read_range(session.conversation.id, kinds=["compaction"])
        compactions = [entry.body for entry in entries if isinstance(entry.body, Compaction)]
        assert [(each.trigger, each.summary) for each in compactions] == [("client", SNAPSHOT)]


def test_quire_run(tmp_path: Path):
    home = UserHome(tmp_path)
    program = find_gemini()
    assert program is not None
    with run_scripted_provider(call_tools(2)) as provider:
        upstream = f'[upstreams."*"]\nbase_url = "{provider.openai_url}"\nspeaks = ["gemini"]\napi_key_env = "UP_KEY"\n'
        path = home.folder / ".config/quire/quire.toml"
        path.parent.mkdir(parents=True)
        path.write_text(f'summarizer = "extract"\n{upstream}')
        variables = {
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "UP_KEY": "up-key-71",
            "PATH": f"{program.parent}:{home.make_environment()['PATH']}",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        output = home.run(QUIRE, "run", "gemini", "--yolo", "-m", "gemini-2.5-pro", "-p", "Look around.", **variables)
        assert "Done." in output, output
        assert "quire context show" in output
        assert {each.headers["x-goog-api-key"] for each in provider.requests} == {"up-key-71"}
        assert "quire_" not in json.dumps([each.headers for each in provider.requests])
