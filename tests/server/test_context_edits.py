"""What the user drops reaches an agent that keeps its own list, through the gateway; nothing else changes."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    play,
    run_scripted_provider,
)
from proxy.client_lists import Item, make_answer, make_calls, make_question, make_results
from quire.cli.run_host import describe_losses
from quire.model import Compaction, ContextEpoch, Entry
from quire.proxy.edited_requests import ListEditor
from quire.rows.boilerplate import SUMMARY_PROMPTS
from quire.store import SqlStore

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
FORMATS = list(PATHS)


@asynccontextmanager
async def run_agent_gateway(store: SqlStore, wire: str) -> AsyncIterator[tuple[GatewayHarness, ScriptedProvider]]:
    with run_scripted_provider(play(ScriptedReply("Noted."))) as provider:
        settings: Any = {"upstreams": {"*": {"base_url": provider.openai_url, "speaks": [wire]}}}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            yield harness, provider


async def send(harness: GatewayHarness, wire: str, items: list[Item]) -> bytes:
    """Sends an agent's list; returns its bytes."""
    name = "input" if wire == "responses" else "messages"
    limit = {"max_tokens": 500} if wire == "messages" else {}
    raw = json.dumps({"model": "claude-sonnet-5-5", **limit, name: items}, ensure_ascii=False).encode()
    answer = await harness.http.post(PATHS[wire], content=raw)
    assert answer.status_code == 200, answer.text
    return raw


def begin_session(wire: str) -> list[Item]:
    """A question, a tool call with a long result, and an answer."""
    return [
        *make_question(wire, "Read the log."),
        *make_calls(wire, ["call_1"], ""),
        *make_results(wire, ["call_1"], 4_000),
        *make_answer(wire, "Noted.", ""),
    ]


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_dropped_result_is_a_stub_for_the_model_and_whole_in_the_log(store: SqlStore, wire: str):
    async with run_agent_gateway(store, wire) as (harness, provider):
        items = begin_session(wire)
        await send(harness, wire, items[:-1])
        [conversation] = await store.list_conversations()
        entries = await store.read_range(conversation.id, kinds=["message"])
        result = next(entry for entry in entries if entry.role == "tool")
        base = f"/api/conversations/{conversation.id}"
        answer = await harness.http.post(f"{base}/drops", json={"seq": result.seq, "reason": "noise", "now": True})
        assert answer.status_code == 201, answer.text
        assert answer.json()["drops"] == [{"message": result.seq, "reason": "noise", "now": True}]
        items += make_question(wire, "And now?")
        await send(harness, wire, items)
        sent = json.dumps(provider.requests[-1].items, ensure_ascii=False)
        assert f"characters; read #{result.seq}]" in sent
        assert "é" * 100 not in sent

        # The next list extends the one before, and the log has what the client sent.
        items += [*make_answer(wire, "Noted.", ""), *make_question(wire, "Go on.")]
        await send(harness, wire, items)
        before, after = provider.requests[-2].items, provider.requests[-1].items
        assert after[: len(before)] == before
        [conversation] = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        entries = await store.read_range(conversation.id)
        assert [entry.kind for entry in entries].count("epoch") == 1
        assert "é" * 4_000 in next(entry for entry in entries if entry.role == "tool").raw
        reply = entries[-1]
        manifest = await store.get_manifest(conversation.id, reply.seq)
        assert manifest.forwarded is not None
        assert manifest.forwarded.form == "edited"
        [row] = [row for row in manifest.decisions if row.reason == "dropped"]
        assert row.span is not None
        assert (row.span.first, row.included) == (result.seq, False)

        # Taken back, the list is the client's, byte for byte.
        answer = await harness.http.delete(f"{base}/drops/{result.seq}", params={"now": True})
        assert answer.json()["drops"] == []
        assert answer.json()["waiting"]["restores"] == [result.seq]
        items += [*make_answer(wire, "Noted.", ""), *make_question(wire, "Once more.")]
        raw = await send(harness, wire, items)
        assert provider.requests[-1].raw == raw


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_drop_waits_until_the_prompt_cache_is_cold(store: SqlStore, wire: str, monkeypatch: pytest.MonkeyPatch):
    async with run_agent_gateway(store, wire) as (harness, provider):
        provider.script = play(ScriptedReply("Noted.", usage=ScriptedUsage(input_tokens=5_000, cached_tokens=4_000)))
        items = begin_session(wire)
        await send(harness, wire, items[:-1])
        [conversation] = await store.list_conversations()
        await harness.http.post(f"/api/conversations/{conversation.id}/drops", json={"seq": 3})
        items += make_question(wire, "And now?")
        raw = await send(harness, wire, items)
        assert provider.requests[-1].raw == raw
        monkeypatch.setattr("quire.proxy.edited_requests.COLD_CACHE_FACTOR", 0)
        items += [*make_answer(wire, "Noted.", ""), *make_question(wire, "Go on.")]
        await send(harness, wire, items)
        assert "read #3]" in provider.requests[-1].raw.decode()


@pytest.mark.parametrize("wire", FORMATS)
async def test_without_edits_the_bytes_are_the_clients(store: SqlStore, wire: str):
    async with run_agent_gateway(store, wire) as (harness, provider):
        items = begin_session(wire)
        await send(harness, wire, items[:-1])
        items += make_question(wire, "And now?")
        raw = await send(harness, wire, items)
        assert provider.requests[-1].raw == raw
        [conversation] = await store.list_conversations()
        bodies = [entry.body for entry in await store.read_range(conversation.id)]
        assert not any(isinstance(body, ContextEpoch) for body in bodies)


@pytest.mark.parametrize("wire", ["messages", "responses"])
async def test_a_token_count_is_of_the_edited_list_and_begins_no_epoch(store: SqlStore, wire: str):
    path = {"messages": "/v1/messages/count_tokens", "responses": "/v1/responses/input_tokens"}[wire]
    async with run_agent_gateway(store, wire) as (harness, provider):
        items = begin_session(wire)
        raw = await send(harness, wire, items[:-1])
        [conversation] = await store.list_conversations()
        before = await store.read_range(conversation.id)
        await harness.http.post(f"/api/conversations/{conversation.id}/drops", json={"seq": 3, "now": True})
        items += make_question(wire, "And now?")
        counted = raw.replace(raw[raw.index(b"[") :], json.dumps(items).encode() + b"}")
        answer = await harness.http.post(path, content=counted)
        assert answer.status_code == 200, answer.text
        assert "read #3]" in provider.received[-1].raw.decode()
        assert provider.received[-1].is_count
        entries = await store.read_range(conversation.id)
        assert [entry.kind for entry in entries[len(before) :]] == ["drop"]

        # The request that follows is the one that was counted. A list of another conversation is counted as it is.
        await send(harness, wire, items)
        assert provider.requests[-1].items == provider.received[-2].items
        other = counted.replace(b"Read the log.", b"Read no log.")
        await harness.http.post(path, content=other)
        assert provider.received[-1].raw == other


async def test_a_long_list_is_edited_like_a_short_one(store: SqlStore):
    """The known start of a long list is parsed and edited once; the bytes must be the same."""
    async with run_agent_gateway(store, "messages") as (harness, provider):
        items: list[Item] = []
        for number in range(12):
            call = [f"call_{number}"]
            items += [*make_question("messages", f"Read part {number}."), *make_calls("messages", call, f"a{number}")]
            items += make_results("messages", call, 3_000)
            await send(harness, "messages", items)
            items += make_answer("messages", "Noted.", f"b{number}")
        [conversation] = await store.list_conversations()
        results = [each for each in await store.read_range(conversation.id, kinds=["message"]) if each.role == "tool"]
        for entry in results[1:4]:
            body = {"seq": entry.seq, "now": True}
            await harness.http.post(f"/api/conversations/{conversation.id}/drops", json=body)
        for number in range(12, 16):
            items += make_question("messages", f"Go on {number}.")
            await send(harness, "messages", items)
            expected = [strip_old(item, results[1:4], "b11") for item in items]
            sent = provider.requests[-1].items
            assert [drop_stub(item) for item in sent] == expected
            assert json.dumps(sent).count("[dropped by the user: Bash") == 3
            items += make_answer("messages", "Noted.", f"c{number}")


def strip_old(item: Item, dropped: Sequence[Entry], newest_stale: str) -> Item:
    """An independent account of what a list with these drops is sent as: without reasoning up to the drop."""
    calls = {part.call_id for entry in dropped for part in entry.message.tool_results}
    stale = [f"{kind}{number}" for kind in "ab" for number in range(int(newest_stale[1:]) + 1)]
    blocks = [block for block in item["content"] if block.get("thinking") not in stale]
    return {
        **item,
        "content": [block | {"content": "STUB"} if block.get("tool_use_id") in calls else block for block in blocks],
    }


def drop_stub(item: Item) -> Item:
    stub = "[dropped by the user: "
    blocks = [
        block | {"content": "STUB"} if str(block.get("content", "")).startswith(stub) else block
        for block in item["content"]
    ]
    return {**item, "content": blocks}


SUMMARY = "The user read three long parts of the log, one after the other, and asked to go on."
SESSION = {"x-claude-code-session-id": "compacted"}
TOOL: Item = {"name": "Bash", "description": "Run.", "input_schema": {"type": "object"}}


async def send_as_agent(harness: GatewayHarness, items: list[Item]) -> None:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 500, "tools": [TOOL], "messages": items}
    answer = await harness.http.post(PATHS["messages"], json=body, headers=SESSION)
    assert answer.status_code == 200, answer.text


async def compact_session(harness: GatewayHarness, provider: ScriptedProvider) -> tuple[str, list[Item]]:
    """A session of which the agent has a summary made, and leaves nothing behind it; its conversation and new list."""
    items: list[Item] = []
    for number in range(3):
        items += make_question("messages", f"Part {number}: " + "é" * 3_000)
        await send_as_agent(harness, items)
        items += make_answer("messages", "Noted.", "")
    [conversation] = await harness.store.list_conversations()
    await harness.http.post(f"/api/conversations/{conversation.id}/pins", json={"seq": 1})
    provider.script = play(ScriptedReply(SUMMARY), ScriptedReply("Noted."))
    await send_as_agent(harness, [*items, *make_question("messages", "Summarize this.")])
    opening = "This session is being continued from a previous conversation that ran out of context."
    return conversation.id, make_question("messages", f"{opening}\nSummary:\n{SUMMARY}")


async def test_a_compaction_frees_the_tokens_of_messages_alone(store: SqlStore):
    """Instructions and tools are in the requests before it and after it."""
    async with run_agent_gateway(store, "messages") as (harness, provider):
        conversation, items = await compact_session(harness, provider)
        await send_as_agent(harness, items)
        messages = [entry for entry in await store.read_range(conversation, kinds=["message"]) if entry.tokens]
        [compaction] = await store.read_range(conversation, kinds=["compaction"])
        assert isinstance(compaction.body, Compaction)
        covered = sum(entry.tokens or 0 for entry in messages if "Part" in entry.raw or "Noted" in entry.raw)
        assert covered <= compaction.body.tokens_before <= covered + 20
        summary = next(entry for entry in messages if SUMMARY in entry.raw)
        assert compaction.body.tokens_after == summary.tokens


async def test_a_pinned_message_comes_back_in_the_first_request_after_a_compaction(store: SqlStore):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        _, items = await compact_session(harness, provider)
        await send_as_agent(harness, items)
        assert "Part 0: " in provider.requests[-1].raw.decode()
        assert "Part 1: " not in provider.requests[-1].raw.decode()


async def test_a_pinned_message_stays_in_the_list_on_another_server(store: SqlStore):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        conversation, items = await compact_session(harness, provider)
        await send_as_agent(harness, items)
        items += [*make_answer("messages", "Noted.", ""), *make_question("messages", "Go on.")]
        settings: Any = {"upstreams": {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}}
        async with run_gateway(store, provider.openai_url, **settings) as other:
            await other.http.post(f"/api/conversations/{conversation}/pins", json={"seq": 3})
            await send_as_agent(other, items)
        sent = provider.requests[-1].raw.decode()
        assert [f"Part {number}: " in sent for number in range(3)] == [True, True, False]


async def test_a_pinned_call_is_quoted_with_its_arguments(store: SqlStore):
    """What an agent wrote into a file is in the arguments of a call."""
    async with run_agent_gateway(store, "messages") as (harness, provider):
        items = begin_session("messages")
        await send_as_agent(harness, items[:-1])
        [conversation] = await store.list_conversations()
        call = next(each for each in await store.read_range(conversation.id) if each.role == "assistant")
        await harness.http.post(f"/api/conversations/{conversation.id}/pins", json={"seq": call.seq})
        provider.script = play(ScriptedReply(SUMMARY), ScriptedReply("Noted."))
        await send_as_agent(harness, [*items, *make_question("messages", "Summarize this.")])
        opening = "This session is being continued from a previous conversation that ran out of context."
        await send_as_agent(harness, make_question("messages", f"{opening}\nSummary:\n{SUMMARY}"))
        sent = str(provider.requests[-1].items)
        assert "<quire:pinned" in sent
        assert 'Bash {"command":"cat call_1"}' in sent


async def test_a_reminder_behind_the_request_for_a_summary_does_not_hide_the_compaction(store: SqlStore):
    """Claude Code ends a list with a message of the system's if the user has not heard from it for a while."""
    async with run_agent_gateway(store, "messages") as (harness, provider):
        items = begin_session("messages")
        await send_as_agent(harness, items[:-1])
        summarize: Item = {"type": "text", "text": "Summarize this."}
        request = [*items[:-2], {**items[-2], "content": [*items[-2]["content"], summarize]}]
        reminder: Item = {"role": "system", "content": [{"type": "text", "text": "Keep the user updated."}]}
        provider.script = play(ScriptedReply(SUMMARY), ScriptedReply("Noted."))
        await send_as_agent(harness, [*request, reminder])
        opening = "This session is being continued from a previous conversation that ran out of context."
        compacted = make_question("messages", f"{opening}\nSummary:\n{SUMMARY}")
        await send_as_agent(harness, [*compacted, items[-1], *make_question("messages", "Go on.")])
        [conversation] = await store.list_conversations()
        answer = await harness.http.delete(f"/api/conversations/{conversation.id}/compaction")
        assert answer.status_code == 200, answer.text


async def test_the_end_of_a_run_does_not_list_facts_that_an_undo_brought_back(store: SqlStore):
    fact = "The relay listens on port 7421, because 7420 is taken by the old gateway."
    async with run_agent_gateway(store, "messages") as (harness, provider):
        items: list[Item] = []
        for text in (fact, *(f"Part {number}: " + "tide " * 300 for number in range(4))):
            items += make_question("messages", text)
            await send_as_agent(harness, items)
            items += make_answer("messages", "Noted.", "")
        provider.script = play(ScriptedReply(SUMMARY), ScriptedReply("Noted."))
        await send_as_agent(harness, [*items, *make_question("messages", f"{SUMMARY_PROMPTS[0]} Be brief.")])
        opening = "This session is being continued from a previous conversation that ran out of context."
        compacted = make_question("messages", f"{opening}\nSummary:\n{SUMMARY}")
        compacted += make_question("messages", "<command-name>/compact</command-name> Go on.")
        await send_as_agent(harness, compacted)
        [conversation] = await store.list_conversations()
        [note] = await describe_losses(store, conversation, since=0)
        assert "  #1 The relay listens on port 7421" in note
        answer = await harness.http.delete(f"/api/conversations/{conversation.id}/compaction")
        assert answer.status_code == 200, answer.text
        compacted += [*make_answer("messages", "Noted.", ""), *make_question("messages", "Which port?")]
        await send_as_agent(harness, compacted)
        assert fact in provider.requests[-1].raw.decode()
        assert await describe_losses(store, conversation, since=0) == []


@pytest.mark.parametrize("manual", [True, False])
@pytest.mark.parametrize("form", ["unchanged", "with a reminder", "in the message of the summary", "without a reply"])
async def test_a_message_that_the_agent_kept_is_not_restored_again(store: SqlStore, form: str, *, manual: bool):
    """What an agent keeps of its list may begin with the user's message, also in another form than it was sent."""
    async with run_agent_gateway(store, "messages") as (harness, provider):
        items: list[Item] = []
        for number in range(6):
            items += make_question("messages", f"Part {number}: " + "tide " * 300)
            await send_as_agent(harness, items)
            items += make_answer("messages", "Noted.", "")
        provider.script = play(ScriptedReply(SUMMARY), ScriptedReply("Noted."))
        await send_as_agent(harness, [*items[:-2], *make_question("messages", "Summarize this.")])
        opening = "This session is being continued from a previous conversation that ran out of context."
        [summary] = make_question("messages", f"{opening}\nSummary:\n{SUMMARY}")
        question, reply = items[-2:]
        reminder: Item = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
        command = "<command-name>/compact</command-name> " if manual else ""
        follow_up = make_question("messages", f"{command}Go on.")
        compacted = {
            "unchanged": [summary, question, reply, *follow_up],
            "with a reminder": [summary, {**question, "content": [reminder, *question["content"]]}, reply, *follow_up],
            "in the message of the summary": [
                {**summary, "content": [*summary["content"], *question["content"]]}, reply, *follow_up,
            ],
            "without a reply": [summary, question, *follow_up],
        }[form]  # fmt: skip
        await send_as_agent(harness, compacted)
        [conversation] = await store.list_conversations()
        answer = await harness.http.delete(f"/api/conversations/{conversation.id}/compaction")
        assert answer.status_code == 200, answer.text
        compacted += [*make_answer("messages", "Noted.", ""), *make_question("messages", "And on.")]
        await send_as_agent(harness, compacted)
        sent = provider.requests[-1].raw.decode()
        assert "Part 4: " in sent
        assert sent.count("Part 5: ") == 1


async def test_a_compaction_is_recognized_behind_a_reminder_of_the_agent(store: SqlStore):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        conversation, [item] = await compact_session(harness, provider)
        reminder = "<system-reminder>\nEnd git commit messages with a name.\n</system-reminder>\n"
        texts = (reminder, str(item["content"]) if isinstance(item["content"], str) else item["content"][0]["text"])
        await send_as_agent(
            harness, [{"role": "user", "content": [{"type": "text", "text": text} for text in (*texts, "Go on.")]}]
        )
        entries = await store.read_range(conversation, kinds=["compaction"])
        assert [entry.body.trigger for entry in entries if isinstance(entry.body, Compaction)] == ["client"]


async def continue_restored(harness: GatewayHarness, provider: ScriptedProvider) -> tuple[str, list[Item]]:
    """A session that goes on after its compaction, which is then undone."""
    conversation, items = await compact_session(harness, provider)
    # A list is cached from its second reply on, if it is long.
    items += make_answer("messages", "Noted. " * 3_000, "")
    for number in range(3):
        items += make_question("messages", f"<command-name>/compact</command-name> Go on {number}.")
        await send_as_agent(harness, items)
        items += make_answer("messages", "Noted.", "")
    assert (await harness.http.delete(f"/api/conversations/{conversation}/compaction")).status_code == 200
    return conversation, items


async def test_a_purged_message_is_in_no_later_request(store: SqlStore):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        conversation, items = await continue_restored(harness, provider)
        for number in range(3):
            items += make_question("messages", f"And on {number}.")
            await send_as_agent(harness, items)
            assert "Part 2: " in provider.requests[-1].raw.decode()
            items += make_answer("messages", "Noted.", "")
        entries = await store.read_range(conversation)
        part = next(entry for entry in entries if "Part 2: " in entry.raw)
        await store.purge(conversation, [part.seq])
        items += make_question("messages", "And now.")
        await send_as_agent(harness, items)
        assert "Part 1: " in provider.requests[-1].raw.decode()
        assert "Part 2: " not in provider.requests[-1].raw.decode()


async def test_a_restore_stays_below_the_tokens_that_made_the_agent_compact(store: SqlStore):
    """They are the provider's, and may be far fewer than Quire counts."""

    def count(request: ProviderRequest) -> int:
        return len(request.raw.decode()) // 4

    async with run_agent_gateway(store, "messages") as (harness, provider):
        provider.count_tokens = count
        conversation, items = await compact_session(harness, provider)
        limit = count(provider.requests[-1])
        await send_as_agent(harness, items)
        items += [*make_answer("messages", "Noted.", ""), *make_question("messages", "why " * (limit * 4 // 5))]
        await send_as_agent(harness, items)
        for path in ("pins/1", "compaction"):
            assert (await harness.http.delete(f"/api/conversations/{conversation}/{path}")).status_code == 200
        items += [*make_answer("messages", "Noted.", ""), *make_question("messages", "Go on.")]
        await send_as_agent(harness, items)
        assert count(provider.requests[-1]) <= limit


async def test_a_redone_compaction_gives_the_agent_its_own_list_again(store: SqlStore):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        conversation, items = await continue_restored(harness, provider)
        compaction = f"/api/conversations/{conversation}/compaction"
        await harness.http.delete(f"/api/conversations/{conversation}/pins/1")
        for undone in (True, False, True, False):
            items += make_question("messages", "And on.")
            await send_as_agent(harness, items)
            assert ("Part 2: " in provider.requests[-1].raw.decode()) == undone
            assert (provider.requests[-1].items == items) == (not undone)
            items += make_answer("messages", "Noted.", "")
            change = await (harness.http.post(f"{compaction}/redo") if undone else harness.http.delete(compaction))
            assert change.status_code == 200, change.text


async def test_a_restored_range_is_read_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    async with run_agent_gateway(store, "messages") as (harness, provider):
        _, items = await continue_restored(harness, provider)
        reads = 0
        render = ListEditor.render_restored

        async def count(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await render(*arguments)

        monkeypatch.setattr(ListEditor, "render_restored", count)
        for number in range(5):
            items += make_question("messages", f"And on {number}.")
            await send_as_agent(harness, items)
            assert "Part 2: " in provider.requests[-1].raw.decode()
            items += make_answer("messages", "Noted.", "")
        assert reads <= 2
