"""The real Codex through the gateway, in front of an upstream that speaks only chat completions."""

import asyncio
from collections.abc import Callable

import pytest
from gateway_fixtures import run_gateway
from gateway_records import assert_all_recorded, get_address, load_sessions

from infra.real_agents import HARBOUR_SERVER, Codex
from infra.recording_relay import run_recording_relay
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    WireFormatName,
    call_tool,
    count_tokens_of_texts,
    play,
    run_scripted_provider,
)
from quire.store import SqlStore

pytestmark = pytest.mark.slow

MakeCodex = Callable[..., Codex]

TURNS = 200
WINDOW_TOKENS = 16_384
PROMPT_WORDS = 1_800
"""Words of each prompt: eight turns exceed the window together with Codex's own prompt."""

TIDE_IN_CHAT = ScriptedCall("mcp__harbour__measure_tide", {"quay": "north"})


def make_upstreams(provider: ScriptedProvider, speaks: WireFormatName) -> dict[str, object]:
    return {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}


async def test_a_tool_of_an_mcp_server_is_called_through_a_chat_only_upstream(
    store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex
):
    provider.script = call_tool(TIDE_IN_CHAT, text="Low.")
    upstreams = make_upstreams(provider, "chat")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=65_536) as harness:
        run = await make_codex(**get_address(harness), mcp_servers=[HARBOUR_SERVER]).run("Tide?")
        sessions = await load_sessions(store)
    assert (run.exit_code, run.answer) == (0, "Low."), run.stderr
    first, second = provider.requests
    assert TIDE_IN_CHAT.name in first.tool_names
    assert "The tide at north is 2.4 m." in second.newest_results[0]
    (session,) = sessions
    assert_all_recorded(sessions, provider)
    assert session.fork_points == set()
    assert session.conversation.origin is not None
    assert (session.conversation.origin.client, session.conversation.origin.session) == ("codex", run.session_id)
    assert all("web_search" in str(each.dropped) for each in session.forwarded)


@pytest.mark.nightly
async def test_many_turns_run_past_the_window(store: SqlStore, make_codex: MakeCodex):
    def answer(request: ProviderRequest) -> ScriptedReply:
        return ScriptedReply(f"Reply {len(provider.requests)}.")

    with run_scripted_provider(answer, window_tokens=WINDOW_TOKENS, count_tokens=count_tokens_of_texts) as provider:
        upstreams = make_upstreams(provider, "chat")
        # Summaries without a model: every request at the provider is one of Codex's.
        settings = {"upstreams": upstreams, "context_limit": WINDOW_TOKENS, "summarizer": "extract"}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            # Codex itself must not compact: it believes in a larger window.
            codex = make_codex(**get_address(harness), context_window_tokens=2_000_000)
            session_id = None
            for number in range(TURNS):
                run = await codex.run(f"Turn {number}. " + "tide " * PROMPT_WORDS, resume=session_id)
                assert (run.exit_code, run.answer) == (0, f"Reply {number + 1}."), run.stderr
                session_id = run.session_id
            sessions = await load_sessions(store)
    (session,) = sessions
    assert provider.refused == []
    assert_all_recorded(sessions, provider)
    assert session.fork_points == set()
    assert session.forwarded[-1].form == "translated_fitted"


@pytest.mark.nightly
@pytest.mark.parametrize("speaks", ["chat", "responses"])
async def test_a_stream_that_is_cut_is_retried_and_kept_once(
    store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex, speaks: WireFormatName
):
    provider.script = play(ScriptedReply("One two three.", cut_after_events=4), ScriptedReply("One two three."))
    upstreams = make_upstreams(provider, speaks)
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=65_536) as harness:
        run = await make_codex(**get_address(harness)).run("Count.")
        (session,) = await load_sessions(store)
        messages = await harness.load_messages(session.conversation.id)
    assert (run.exit_code, run.answer) == (0, "One two three."), run.stderr
    assert len(provider.requests) == 2
    assert messages[-1] == ("assistant", "One two three.")
    assert [text for _, text in messages].count("One two three.") == 1
    assert sum("Count." in text for role, text in messages if role == "user") == 1


async def test_a_native_session_reaches_the_upstream_byte_for_byte(
    store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex
):
    provider.script = call_tool(ScriptedCall("exec_command", {"cmd": "echo ahoy"}))
    upstreams = make_upstreams(provider, "responses")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        async with run_recording_relay(address["base_url"]) as relay:
            codex = make_codex(relay.url, key=address["key"])
            first = await codex.run("Greet.")
            second = await codex.run("And again.", resume=first.session_id)
        sessions = await load_sessions(store)
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    (session,) = sessions
    assert all(relay.has_received(request.raw) for request in provider.requests)
    assert {each.form for each in session.forwarded} == {"unchanged"}
    assert_all_recorded(sessions, provider)
    assert session.fork_points == set()


@pytest.mark.nightly
async def test_a_title_is_a_side_call(store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex):
    """Only Codex in a terminal asks for one, in a thread and a session of its own."""
    provider.script = lambda _: ScriptedReply("It said ahoy.")
    upstreams = make_upstreams(provider, "responses")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        codex = make_codex(**get_address(harness))
        (codex.work / "AGENTS.md").write_text("Be brief.\n")
        (codex.home / "AGENTS.md").write_text("Be kind.\n")
        async with codex.open_terminal("Greet the harbour master, please."), asyncio.timeout(60):
            while len(records := await store.list_conversations()) < 2:  # noqa: ASYNC110 (the agent is a process)
                await asyncio.sleep(0.2)
    purposes = {each.origin.purpose for each in records if each.origin is not None}
    assert purposes == {None, "side"}
    [listed] = await store.list_conversations(main_only=True)
    assert listed.is_main
