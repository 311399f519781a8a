"""What the real Claude Code sends, against the scripted provider: the facts that the gateway relies on."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from infra.real_agents import SMALL_PROMPT_FLAGS, Claude
from infra.scripted_provider import (
    ProviderRequest,
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    call_tool,
    play,
)

pytestmark = pytest.mark.nightly

ECHO = ScriptedCall("Bash", {"command": "echo ahoy", "description": "Greet"})
SUMMARY = "<analysis>Short.</analysis><summary>The user greeted; echo printed ahoy.</summary>"
MakeClaude = Callable[..., Claude]


def is_compaction(request: ProviderRequest) -> bool:
    return "Respond with TEXT ONLY" in json.dumps(request.items[-1])


def answer_compaction(script: Script) -> Script:
    """Answers a request for a summary with one, and all others by the script."""
    return lambda request: ScriptedReply(SUMMARY) if is_compaction(request) else script(request)


def list_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def strip_markers(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages in one form: a string as a text block, without cache markers and output settings."""
    return [(each["role"], [{**block, "cache_control": None} for block in list_blocks(each)]) for each in messages]


async def test_a_tool_call_runs_and_its_result_is_sent(provider: ScriptedProvider, make_claude: MakeClaude):
    provider.script = call_tool(ECHO, text="It said ahoy.")
    run = await make_claude(provider.url, key="quire_test").run("Greet.")
    assert (run.exit_code, run.answer) == (0, "It said ahoy."), run.stderr
    first, second = provider.requests
    assert second.newest_results == ["ahoy"]
    assert first.path == "/v1/messages?beta=true"
    assert first.headers["x-claude-code-session-id"] == run.session_id
    assert first.headers["x-api-key"] == "quire_test"
    assert json.loads(first.body["metadata"]["user_id"])["session_id"] == run.session_id


async def test_one_session_changes_only_forms_and_markers(provider: ScriptedProvider, make_claude: MakeClaude):
    claude = make_claude(provider.url)
    provider.script = call_tool(ECHO)
    first = await claude.run("Greet.")
    second = await claude.run("And again.", "--continue")
    assert second.session_id == first.session_id
    requests = [request.items for request in provider.requests]
    assert len(requests) == 3
    for before, after in pairwise(requests):
        assert after[: len(before)] != before
        assert strip_markers(after)[: len(before)] == strip_markers(before)
    assert {type(each[1]["content"]) for each in requests} == {list, str}


async def test_a_compaction_asks_without_the_last_reply_and_then_starts_with_its_summary(
    provider: ScriptedProvider, make_claude: MakeClaude
):
    claude = make_claude(provider.url)
    provider.script = answer_compaction(call_tool(ECHO, text="First reply."))
    session = (await claude.run("Greet.")).session_id
    assert (await claude.run("/compact", "--continue")).exit_code == 0
    after = await claude.run("And again.", "--continue")
    assert after.session_id == session
    *_, request, resumed = provider.requests
    assert is_compaction(request)
    assert "First reply." not in json.dumps(request.items)
    assert [block["type"] for block in list_blocks(request.items[-1])] == ["tool_result", "text"]
    assert "The user greeted; echo printed ahoy." in resumed.items[0]["content"]
    assert [each["content"] for each in resumed.items if each["role"] == "assistant"] == [
        [{"type": "text", "text": "First reply."}]
    ]


async def test_a_session_is_resumed_by_its_id(provider: ScriptedProvider, make_claude: MakeClaude):
    claude = make_claude(provider.url)
    first = await claude.run("One.")
    await claude.run("Two.")
    resumed = await claude.run("Three.", "--resume", str(first.session_id))
    assert resumed.session_id == first.session_id
    texts = json.dumps(provider.requests[-1].items)
    assert "One." in texts
    assert "Two." not in texts


async def test_a_sub_agent_has_an_id_of_its_own_in_the_session(provider: ScriptedProvider, make_claude: MakeClaude):
    delegate = ScriptedCall("Agent", {"description": "Greet", "prompt": "Greet them.", "subagent_type": "claude"})
    main = play(ScriptedReply(calls=(delegate,)), ScriptedReply("Delegated."))
    provider.script = lambda request: (
        ScriptedReply("Greeted.") if "x-claude-code-agent-id" in request.headers else main(request)
    )
    run = await make_claude(provider.url).run("Delegate.")
    assert run.exit_code == 0, run.stderr
    sub = [request for request in provider.requests if "x-claude-code-agent-id" in request.headers]
    assert sub
    assert {request.headers["x-claude-code-session-id"] for request in provider.requests} == {run.session_id}
    assert all("cc_is_subagent=true" in request.body["system"][0]["text"] for request in sub)
    assert "Delegate." not in json.dumps(sub[0].items)


async def test_an_overflow_makes_it_compact_at_once(provider: ScriptedProvider, make_claude: MakeClaude):
    claude = make_claude(provider.url)
    await claude.run("One.")
    await claude.run("Two.", "--continue")
    was_refused: list[ProviderRequest] = []

    def count(request: ProviderRequest) -> int:
        is_first = not was_refused and not request.is_count
        was_refused.extend([request] if is_first else [])
        return 300_000 if is_first else 1_000

    provider.window_tokens, provider.count_tokens = 200_000, count
    provider.script = answer_compaction(play(ScriptedReply("Fine.")))
    run = await claude.run("Three.", "--continue")
    assert (run.exit_code, run.answer) == (0, "Fine."), run.stdout
    assert [is_compaction(request) for request in provider.requests[2:]] == [False, True, False]


async def test_a_cut_stream_is_retried(provider: ScriptedProvider, make_claude: MakeClaude):
    provider.script = play(ScriptedReply("One two three.", cut_after_events=5), ScriptedReply("One two three."))
    run = await make_claude(provider.url).run("Count.")
    assert (run.exit_code, run.answer) == (0, "One two three."), run.stdout
    assert len(provider.requests) >= 2


async def test_the_small_prompt_is_small(provider: ScriptedProvider, make_claude: MakeClaude):
    provider.script = call_tool(ECHO)
    run = await make_claude(provider.url).run("Greet.", *SMALL_PROMPT_FLAGS)
    assert (run.exit_code, run.answer) == (0, "Done."), run.stderr
    assert provider.requests[0].tool_names == ["Bash"]
    assert max(len(request.raw) for request in provider.requests) < 6_000
