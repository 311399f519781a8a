"""What the real Codex sends, against the scripted provider: the facts that the gateway relies on."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from infra.real_agents import HARBOUR_SERVER, Codex
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    call_tool,
    play,
)

pytestmark = pytest.mark.nightly

ECHO = ScriptedCall("exec_command", {"cmd": "echo ahoy"})
TIDE = ScriptedCall("measure_tide", {"quay": "north"}, namespace="mcp__harbour")
MakeCodex = Callable[..., Codex]


def read_metadata(request: ProviderRequest) -> dict[str, Any]:
    return json.loads(request.headers["x-codex-turn-metadata"])


async def test_a_tool_call_runs_and_its_result_is_sent(provider: ScriptedProvider, make_codex: MakeCodex):
    provider.script = call_tool(ECHO, text="It said ahoy.")
    run = await make_codex(provider.url, key="quire_test").run("Greet.")
    assert (run.exit_code, run.answer) == (0, "It said ahoy."), run.stderr
    first, second = provider.requests
    assert second.newest_results[0].endswith("Output:\nahoy\n")
    assert first.path == "/v1/responses"
    assert first.headers["authorization"] == "Bearer quire_test"
    assert {first.headers[name] for name in ("session-id", "thread-id", "x-client-request-id")} == {run.session_id}
    assert first.body["prompt_cache_key"] == run.session_id
    assert (first.body["store"], "instructions" in first.body) == (False, False)


async def test_a_second_turn_repeats_every_item_of_the_first(provider: ScriptedProvider, make_codex: MakeCodex):
    codex = make_codex(provider.url)
    reply = ScriptedReply("I will.", calls=(ECHO,), thinking="They want a greeting.")
    provider.script = play(reply, ScriptedReply("Done."))
    first = await codex.run("Greet.")
    second = await codex.run("And again.", resume=first.session_id)
    assert second.session_id == first.session_id
    requests = [request.items for request in provider.requests]
    assert len(requests) == 3
    for before, after in pairwise(requests):
        assert after[: len(before)] == before
    assert [each["type"] for each in requests[1][-4:]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]


async def test_a_tool_of_an_mcp_server_is_called_through_its_namespace(
    provider: ScriptedProvider, make_codex: MakeCodex
):
    provider.script = call_tool(TIDE, text="Low.")
    run = await make_codex(provider.url, mcp_servers=[HARBOUR_SERVER]).run("Tide?")
    assert (run.exit_code, run.answer) == (0, "Low."), run.stderr
    first, second = provider.requests
    assert "mcp__harbour__measure_tide" in first.tool_names
    assert second.items[-2]["namespace"] == "mcp__harbour"
    assert "The tide at north is 2.4 m." in second.newest_results[0]


async def test_a_sub_agent_is_a_thread_of_its_own_in_the_session(provider: ScriptedProvider, make_codex: MakeCodex):
    spawn = ScriptedCall("spawn_agent", {"message": "Greet them."}, namespace="multi_agent_v1")
    main = play(ScriptedReply(calls=(spawn,)), ScriptedReply(calls=(ECHO,)), ScriptedReply("Delegated."))
    provider.script = lambda request: (
        ScriptedReply("Greeted.") if "x-openai-subagent" in request.headers else main(request)
    )
    run = await make_codex(provider.url).run("Delegate.")
    assert run.exit_code == 0, run.stderr
    (sub,) = [request for request in provider.requests if "x-openai-subagent" in request.headers]
    assert sub.headers["x-openai-subagent"] == "collab_spawn"
    assert sub.headers["session-id"] == sub.headers["x-codex-parent-thread-id"] == run.session_id
    assert sub.headers["thread-id"] != run.session_id
    assert sub.body["prompt_cache_key"] == run.session_id


async def test_its_own_compaction_is_marked_only_in_the_metadata(provider: ScriptedProvider, make_codex: MakeCodex):
    provider.script = play(ScriptedReply("Fine.", usage=ScriptedUsage(5_000)))
    codex = make_codex(provider.url, config=["model_auto_compact_token_limit=3000"])
    first = await codex.run("One.")
    await codex.run("Two.", resume=first.session_id)
    _, compaction, resumed = provider.requests
    assert read_metadata(compaction)["request_kind"] == "compaction"
    assert "x-openai-subagent" not in compaction.headers
    assert compaction.body["tools"] == []
    assert [read_metadata(each)["window_number"] for each in (compaction, resumed)] == [0, 1]
    texts = [item["content"][0]["text"] for item in resumed.items if item["role"] == "user"]
    assert texts[1] == "One."
    assert texts[2].startswith("Another language model started to solve this problem")
    assert texts[2].endswith("Fine.")
    assert texts[3] == "Two."


async def test_a_cut_stream_is_retried_with_the_same_request(provider: ScriptedProvider, make_codex: MakeCodex):
    provider.script = play(ScriptedReply("One two three.", cut_after_events=6), ScriptedReply("One two three."))
    run = await make_codex(provider.url).run("Count.")
    assert (run.exit_code, run.answer) == (0, "One two three."), run.stderr
    first, second = provider.requests
    assert first.body == second.body
