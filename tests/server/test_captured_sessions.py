"""Captured sessions of Claude Code and Codex: the gateway recognises each as one conversation."""

import json
import re

import pytest
from gateway_fixtures import run_gateway

from infra.agent_captures import DATA_FOLDER, SESSIONS, load_capture, replay_script
from infra.scripted_provider import run_scripted_provider
from quire.store import SqlStore

FOREIGN_TEXT = re.compile(r"/tmp/(?!claude/)|/work/|/root/|test-key|Bearer|OS Version: Linux 6\.(?!1\b)")


async def replay(store: SqlStore, name: str, speaks: str) -> None:
    """Sends the requests of a captured session in their order, to an upstream that gives the captured replies."""
    captured = load_capture(name)
    with run_scripted_provider(replay_script(captured)) as provider:
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
            for request in captured:
                answer = await harness.http.post(request.path, content=request.raw, headers=request.headers)
                assert answer.status_code == 200, answer.text
        assert [request.raw for request in provider.requests] == [request.raw for request in captured]


@pytest.mark.parametrize("name", SESSIONS)
def test_a_capture_holds_nothing_of_the_recording_machine(name: str):
    text = (DATA_FOLDER / f"{name}.jsonl").read_text()
    assert FOREIGN_TEXT.findall(text) == []
    assert load_capture(name)


def test_the_session_of_claude_code_has_both_forms_and_moving_markers():
    captured = load_capture("claude_code_session")
    forms = [type(request.body["messages"][1]["content"]) for request in captured[:2]]
    assert forms == [list, str]
    marked = [
        [index for index, message in enumerate(request.body["messages"]) if "cache_control" in json.dumps(message)]
        for request in captured
    ]
    assert marked[:4] == [[1], [3], [5], [7]]


async def test_a_session_of_claude_code_is_one_conversation(store: SqlStore):
    await replay(store, "claude_code_session", "messages")
    [conversation] = await store.list_conversations()
    assert conversation.origin is not None
    origin = conversation.origin
    assert (origin.client, origin.project, origin.purpose) == ("claude-code", "/home/dev/project", None)
    main, compaction = await store.list_branches(conversation.id)
    entries = await store.read_range(conversation.id, branch=main.number, kinds=["message"])
    assert [entry.message.role for entry in entries] == [
        "user", "system", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant",
        "user", "system", "assistant", "tool", "assistant",
    ]  # fmt: skip
    summary = (await store.read_range(conversation.id, branch=compaction.number, kinds=["message"]))[-1]
    assert "<summary>" in summary.message.text
    manifests = await store.list_manifests(conversation.id)
    unrecorded = [manifest.forwarded.unrecorded_messages for _, manifest in manifests if manifest.forwarded]
    assert unrecorded[:4] == [None] * 4
    assert all(unrecorded[4:])


async def test_old_records_of_claude_code_take_less(store: SqlStore):
    """Prints bytes of a record before and after it was thinned (`-s`)."""
    await replay(store, "claude_code_session", "messages")
    [conversation] = await store.list_conversations()
    whole = await store.list_manifests(conversation.id)
    assert await store.thin_manifests(conversation.id, before=2**62) == 5
    thinned = await store.list_manifests(conversation.id)
    sizes = [
        (len(before.canonical_json()), len(after.canonical_json()))
        for (_, before), (_, after) in zip(whole, thinned, strict=True)
    ]
    print(
        f"\n{sizes[0][0]:,} -> {sizes[0][1]:,} bytes, and {len({row.blob for row in whole[0][1].included})} texts less"
    )
    assert all(after < 0.8 * before for before, after in sizes[:-1])
    assert sizes[-1][0] == sizes[-1][1]
    assert await store.verify_conversation(conversation.id) == []


async def test_a_sub_agent_has_its_own_conversation(store: SqlStore):
    await replay(store, "claude_code_sub_agent", "messages")
    conversations = await store.list_conversations()
    purposes = sorted(each.origin.purpose or "main" for each in conversations if each.origin)
    assert purposes == ["main", "subagent"]
    assert len({each.origin.session for each in conversations if each.origin}) == 1
    assert [len(await store.list_branches(each.id)) for each in conversations] == [1, 1]


async def test_a_session_of_codex_is_one_conversation(store: SqlStore):
    await replay(store, "codex_session", "responses")
    [conversation] = await store.list_conversations()
    assert conversation.origin is not None
    assert (conversation.origin.client, conversation.origin.project) == ("codex", "/home/dev/project")
    assert len(await store.list_branches(conversation.id)) == 1
    entries = await store.read_range(conversation.id, kinds=["message"])
    assert [entry.message.role for entry in entries] == [
        "user", "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip


async def test_a_compaction_of_codex_is_an_entry(store: SqlStore):
    await replay(store, "codex_compaction", "responses")
    [conversation] = await store.list_conversations()
    [main] = await store.list_branches(conversation.id)
    entries = await store.read_range(conversation.id, branch=main.number)
    assert [entry.kind for entry in entries] == [*["message"] * 5, "compaction", *["message"] * 2]
    assert entries[3].message.text.startswith("You are performing a CONTEXT CHECKPOINT COMPACTION")
    assert [entry.message.text for entry in entries[-2:]] == ["Two.", "Two it is."]
