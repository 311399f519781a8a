"""The public API of a conversation: questions, replies, the budget, and the record of each request."""

import asyncio
import random
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from stable_prefix import encode_stable_prefix

import quire
from infra.sizes import IS_FULL_SIZE
from quire import Document, Message, ToolDefinition
from quire.concurrency.worker_threads import MAX_EVENT_LOOP_BYTES
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import ContextOverflow, EntryNotFound, InvalidRequest
from quire.ledger import replay
from quire.model import Draft, Span, TokenCount
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.layout import RENDERER_VERSION

STABLE_TURNS = 300 if IS_FULL_SIZE else 100
REPLAYED_TURNS = 1_000 if IS_FULL_SIZE else 60
TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {}})


def make_engine(store: SqlStore, **settings: object) -> Engine:
    merged = Settings.model_validate({"model": "gpt-4o", "context_limit": 2_000} | settings)
    return Engine(store, EngineConfig.create(merged, instructions="Be brief.", tools=[TOOL]))


def make_completion(text: str, **usage: int) -> dict:
    """A chat completion as OpenAI returns it."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": usage} if usage else {"choices": [choice]}


async def record_turns(conversation: Conversation, turns: int, *, words: int = 30) -> list[int]:
    """Records turns, and returns the numbers of the replies."""
    replies = []
    for turn in range(turns):
        request = await conversation.prepare(f"question {turn}: " + "why " * words)
        replies.append(
            (await conversation.record(make_completion(f"answer {turn}: " + "so " * words), request=request)).seq
        )
    return replies


@pytest.mark.every_database
async def test_a_reply_is_recorded_under_its_response_id(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    request = replace(await conversation.prepare("hello"), response_id="resp_1")
    reply = await conversation.record(make_completion("hi"), request=request)
    assert (await store.find_response("resp_1")).seq == reply.seq


async def test_long_stored_messages_are_decoded_off_the_event_loop(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    conversation = await make_engine(store).conversation("c")
    for text in ("first " * 20_000, "second " * 20_000):
        await store.append("c", Message.user(text))
        await store.append("c", Message.assistant("yes"))
    threads: list[threading.Thread] = []
    parse = Message.parse

    def observe(text: str) -> Message:
        if len(text) > MAX_EVENT_LOOP_BYTES:
            threads.append(threading.current_thread())
        return parse(text)

    monkeypatch.setattr(Message, "parse", observe)
    await conversation.plan_compaction()
    await conversation.prepare("third?")
    assert threads
    assert threading.main_thread() not in threads


async def test_a_turn_is_sent_answered_and_recorded(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    request = await conversation.prepare("hello")
    assert request.to_chat()["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert await conversation.messages() == []
    reply = await conversation.record(make_completion("hi", prompt_tokens=20, completion_tokens=1), request=request)
    assert [entry.message.text for entry in await conversation.messages()] == ["hello", "hi"]
    assert reply.metadata.usage is not None
    assert reply.metadata.usage.input_tokens == 20
    manifest = await conversation.manifest(reply.seq)
    assert manifest.total_tokens == request.tokens
    assert [(row.kind, row.reason) for row in manifest.included] == [
        ("instructions", "instructions"),
        ("tool", "always"),
        ("message", "newest"),
    ]
    assert (await conversation.why(1, reply_seq=2)).reason == "newest"
    assert (await conversation.why("look", reply_seq=2)).slot == "tools"


async def test_a_tool_loop_continues_from_the_log(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    request = await conversation.prepare("look it up")
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    await conversation.record({"choices": [{"message": message, "finish_reason": "tool_calls"}]}, request=request)
    await conversation.append(Message.tool("1", "it is 42"))
    request = await conversation.prepare()
    roles = [each["role"] for each in request.to_chat()["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    reply = await conversation.record("42", request=request)
    assert (await conversation.replay(reply.seq)).matches
    with pytest.raises(InvalidRequest, match="nothing to answer"):
        await conversation.prepare()


@pytest.mark.parametrize("strategy", ["discard", "summarize", "hybrid"])
async def test_a_long_conversation_stays_within_its_window(store: SqlStore, strategy: str):
    conversation = await make_engine(store, strategy=strategy).conversation("c")
    compactions = set()
    for turn in range(60):
        request = await conversation.prepare(f"question {turn} " * 12)
        assert request.tokens <= 2_000 - 512
        summary = [row.span for row in request.manifest.included if row.kind == "summary"]
        compactions.update(str(span) for span in summary)
        await conversation.record(make_completion(f"answer {turn} " * 12), request=request)
    assert 2 <= len(compactions) <= 15
    assert len(await conversation.messages()) == 120
    assert await store.verify_conversation("c") == []


async def test_the_meter_shows_the_number_that_triggers(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    for turn in range(40):
        usage = await conversation.usage()
        question = f"question {turn}"
        cost = engine.message_counter.count(Message.user(question)) - engine.message_counter.count(Message.user(""))
        before = (await store.get_branch("c")).state.compaction_count
        request = await conversation.prepare(question)
        compacted = (await store.get_branch("c")).state.compaction_count > before
        assert compacted == (usage.total_tokens + cost > usage.trigger_tokens)
        await conversation.record(make_completion("because " * 60), request=request)
    usage = await conversation.usage()
    assert usage.trigger_tokens == 1_488
    assert usage.available == 2_000 - 512 - usage.total_tokens
    assert {use.slot for use in usage.slots if use.used} >= {"system", "tools", "summary", "messages"}


async def test_the_meter_has_the_whole_of_a_history_that_is_not_read_whole(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    short = await conversation.usage()
    messages = [Draft(body=Message.user(f"note {number} " * 9)) for number in range(1_500)]
    counts = [engine.message_counter.count(each.body) for each in messages]
    # Half of them have no count, as messages that another program appended may have none.
    counted = [
        replace(draft, tokens=TokenCount(count, "c")) if index % 2 else draft
        for index, (draft, count) in enumerate(zip(messages, counts, strict=True))
    ]
    await store.append("c", *counted)
    usage = await conversation.usage()
    assert usage.status == "over"
    assert not usage.exact
    assert usage.total_tokens - short.total_tokens == pytest.approx(sum(counts), rel=0.3)


async def test_off_means_off(store: SqlStore):
    conversation = await make_engine(store, context_management_enabled=False).conversation("c")
    with pytest.raises(ContextOverflow, match="message #"):
        await record_turns(conversation, 60)
    assert (await store.get_branch("c")).state.compaction_count == 0


async def test_pins_stay_word_for_word_with_their_whole_batch(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append("the code is 0451")
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    request = await conversation.prepare()
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    await conversation.record({"choices": [{"message": message, "finish_reason": "tool_calls"}]}, request=request)
    [result] = await conversation.append(Message.tool("x", "found it"))
    await conversation.pin(1)
    await conversation.pin(result.seq)
    await record_turns(conversation, 30)
    request = await conversation.prepare("what was the code?")
    texts = [each.get("content") for each in request.to_chat()["messages"]]
    assert "the code is 0451" in texts
    assert "found it" in texts
    assert {row.span.first for row in request.manifest.included if row.reason == "pinned"} == {1, 2}
    reply = await conversation.record("0451", request=request)
    assert (await conversation.replay(reply.seq)).matches
    await conversation.unpin(1)
    texts = [each.get("content") for each in (await conversation.prepare("and now?")).to_chat()["messages"]]
    assert "the code is 0451" not in texts


@pytest.mark.every_database
async def test_someone_else_speaks_in_between_and_nothing_is_lost(store: SqlStore):
    engine = make_engine(store)
    mine, theirs = await engine.conversation("c"), await engine.conversation("c")
    request = await mine.prepare("mine")
    await theirs.append("theirs")
    reply = await mine.record("answer", request=request)
    assert [entry.message.text for entry in await mine.messages()] == ["theirs", "mine", "answer"]
    assert (await mine.replay(reply.seq)).matches


async def test_a_replay_says_that_another_renderer_recorded_the_request(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    request = await conversation.prepare("hello")
    reply = await conversation.record("hi", request=request)
    manifest = await conversation.manifest(reply.seq)
    assert (await replay(store, manifest)).mismatch is None
    other = manifest.model_copy(update={"renderer": RENDERER_VERSION + 1})
    assert (await replay(store, other)).matches
    replayed = await replay(store, other.model_copy(update={"digest": "0" * 64}))
    assert replayed.mismatch == (
        f"recorded by version {RENDERER_VERSION + 1} of the renderer; this is version {RENDERER_VERSION}"
    )
    assert replayed.rendered is not None
    changed = await replay(store, manifest.model_copy(update={"digest": "0" * 64}))
    assert changed.mismatch == "the log differs from what was sent"


async def test_a_question_recorded_early_has_its_number_in_the_manifest(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await record_turns(conversation, 1)
    entries, request = await conversation.record_question(await conversation.prepare("and now?"))
    assert [row.span for row in request.manifest.included if row.pending] == [Span(first=3, last=3)]
    assert [entry.seq for entry in entries] == [3]
    reply = await conversation.record("this", request=request)
    assert await conversation.manifest(reply.seq) == request.manifest


@pytest.mark.every_database
async def test_recording_twice_is_one_turn(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    request = await conversation.prepare("hello")
    first = await conversation.record("hi", request=request)
    assert await conversation.record("hi", request=request) == first


@pytest.mark.every_database
async def test_two_requests_at_once_each_record_their_own_question_and_manifest(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    first, second = await asyncio.gather(conversation.prepare("one?"), conversation.prepare("two?"))
    for answer, request in (("2", second), ("1", first)):
        reply = await conversation.record(answer, request=request)
        assert (await conversation.manifest(reply.seq)).digest == request.manifest.digest
    assert [entry.message.text for entry in await conversation.messages()] == ["two?", "2", "one?", "1"]


@pytest.mark.no_cover  # Coverage would double its time.
@pytest.mark.parametrize(
    ("strategy", "provider"),
    list(product(["discard", "summarize", "hybrid"], ["chat", "messages", "responses"]))[:: 1 if IS_FULL_SIZE else 4],
)
async def test_the_stable_part_is_a_prefix_of_the_next_requests(store: SqlStore, strategy: str, provider: str):
    """Over many turns with recalled documents, except at a compaction (prefix stability)."""
    chance = random.Random(7)
    engine = make_engine(store, strategy=strategy, wire_format=provider, context_limit=4_000)
    conversation = await engine.conversation("c")
    before, previous_summary, breaks = b"", None, 0
    for turn in range(STABLE_TURNS):
        documents = [Document(name="note", text="remember " * chance.randrange(20), recalled=True)]
        request = await conversation.prepare(
            f"question {turn} " * chance.randrange(1, 30), documents=documents if chance.random() < 0.5 else []
        )
        stable = encode_stable_prefix(request)
        summary = next((row.span for row in request.manifest.included if row.kind == "summary"), None)
        if summary == previous_summary:
            assert stable.startswith(before), f"turn {turn}"
        else:
            breaks += 1
        before, previous_summary = stable, summary
        await conversation.record(make_completion(f"answer {turn} " * chance.randrange(1, 30)), request=request)
    assert STABLE_TURNS // 100 <= breaks <= 40


@pytest.mark.no_cover  # Coverage would double its time.
async def test_requests_replay_after_their_files_are_gone(tmp_path: Path):
    chance = random.Random(3)
    async with quire.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o", context_limit=3_000) as engine:
        conversation = await engine.conversation("c")
        replies, files = [], [tmp_path / f"note {number}.md" for number in range(5)]
        for turn in range(REPLAYED_TURNS):
            chance.choice(files).write_text(f"version {turn} " * chance.randrange(1, 40))
            quoted = [file for file in files if file.exists() and chance.random() < 0.4]
            documents = [
                Document(name=file.name, text=file.read_text(), recalled=chance.random() < 0.5) for file in quoted
            ]
            agent = engine.agent.model_copy(update={"instructions": f"Be brief, version {turn // 100}."})
            conversation = Conversation(engine.with_changes(agent=agent), "c")
            max_repeats = 2_000 if turn % 100 == 50 else 200
            request = await conversation.prepare(
                f"question {turn} " * chance.randrange(max_repeats // 2, max_repeats), documents=documents
            )
            replies.append(
                (await conversation.record(make_completion("answer " * chance.randrange(1, 60)), request=request)).seq
            )
        for file in files:
            file.unlink(missing_ok=True)
        assert all([(await conversation.replay(reply)).matches for reply in replies])
        manifests = dict(await engine.store.list_manifests("c"))
        assert len(manifests) == REPLAYED_TURNS
        assert any(row.reason == "excerpted" for each in manifests.values() for row in each.included)


async def test_a_purge_shows_in_the_replay(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    first, second = await record_turns(conversation, 2)
    await store.purge("c", [first])
    replayed = await conversation.replay(second)
    assert not replayed.matches
    assert replayed.missing == (f"#{first}",)


async def test_why_answers_for_every_message(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    replies = await record_turns(conversation, 40)
    last = replies[-1]
    reasons = {}
    for entry in await conversation.messages():
        if entry.seq < last:
            reasons[entry.seq] = (await conversation.why(entry.seq, reply_seq=last)).reason
    # Archived messages that are relevant to the question are recall candidates.
    expected = {"archived", "recent", "newest"}
    assert expected <= set(reasons.values()) <= expected | {"recalled", "over_budget"}
    assert reasons[1] in ("archived", "recalled", "over_budget")
    assert reasons[last - 1] == "newest"
    with pytest.raises(EntryNotFound, match="after the request"):
        await conversation.why(last + 5, reply_seq=last)
    with pytest.raises(EntryNotFound, match="not a candidate"):
        await conversation.why("nothing", reply_seq=last)


async def test_diff_names_exactly_what_changed(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    request = await conversation.prepare(
        "one", documents=[Document(name="a.md", text="first"), Document(name="b.md", text="same")]
    )
    first = (await conversation.record("1", request=request)).seq
    agent = engine.agent.model_copy(update={"instructions": "Be long."})
    conversation = Conversation(engine.with_changes(agent=agent), "c")
    request = await conversation.prepare(
        "two", documents=[Document(name="a.md", text="second"), Document(name="b.md", text="same")]
    )
    second = (await conversation.record("2", request=request)).seq
    changes = await conversation.diff(first, second)
    assert [(each.name, each.span and (each.span.first, each.span.last)) for each in changes] == [
        ("instructions", None),
        ("a.md", None),
        (None, (1, 1)),
        (None, (2, 2)),
        (None, (3, 3)),
    ]
    question, answer, new = changes[2:]
    assert (question.before.reason, question.after.reason) == ("newest", "recent")
    assert (answer.before, answer.after.reason) == (None, "recent")
    assert (new.before, new.after.reason) == (None, "newest")
    assert await conversation.diff(second, second) == []


async def test_another_model_recounts_the_window_and_refits(store: SqlStore):
    engine = make_engine(store, context_limit=8_000)
    conversation = await engine.conversation("c")
    await record_turns(conversation, 30)
    conversation = Conversation(engine.with_changes(model="claude-sonnet-4-5", context_limit=1_500), "c")
    request = await conversation.prepare("and you?")
    assert request.tokens <= 1_500 - 512
    assert request.manifest.counter == "messages:estimate"
    assert not request.manifest.exact
    assert request.to_messages()["system"] == "Be brief."
    responses, (_, *chat_messages) = request.to_responses(stream=True), request.to_chat()["messages"]
    assert (responses["instructions"], responses["store"], responses["stream"]) == ("Be brief.", False, True)
    assert responses["input"] == [{"type": "message", **message} for message in chat_messages]
    assert (
        await conversation.record({"content": [{"type": "text", "text": "me"}], "role": "assistant"}, request=request)
    ).seq


async def test_reported_usage_corrects_the_next_budget(store: SqlStore):
    engine = make_engine(store, model="claude-sonnet-4-5", context_limit=4_000)
    conversation = await engine.conversation("c")
    for _ in range(12):
        request = await conversation.prepare("why " * 50)
        await conversation.record(
            make_completion("so", prompt_tokens=int(request.tokens * 1.5), completion_tokens=1), request=request
        )
    assert 1.2 < request.manifest.ratio <= 1.5
    assert request.manifest.max_input_tokens < 4_000 - 512
    again = await make_engine(store, model="claude-sonnet-4-5").runtime.load_calibration(store, "claude-sonnet-4-5")
    assert again.ratio == (await engine.runtime.load_calibration(store, "claude-sonnet-4-5")).ratio > 1.2


async def test_an_overhead_of_short_messages_does_not_shrink_the_window_of_a_long_one(store: SqlStore):
    """A provider reports one token more for each message than Quire counts."""
    engine = make_engine(store, context_limit=64_000)
    conversation = await engine.conversation("short")
    for _ in range(40):
        request = await conversation.prepare("Go on.")
        messages = len(request.to_chat()["messages"])
        await conversation.record(
            make_completion("Yes.", prompt_tokens=request.tokens + messages, completion_tokens=1), request=request
        )
    assert request.manifest.ratio == pytest.approx((request.tokens + messages) / request.tokens, abs=0.02)
    long = await (await engine.conversation("long")).prepare("why " * 30_000)
    assert long.manifest.ratio == pytest.approx(1.0, abs=0.02)
    assert long.manifest.max_input_tokens >= 0.995 * long.manifest.policy.max_input_tokens


async def test_a_branch_goes_its_own_way(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await record_turns(conversation, 3)
    other = await conversation.fork(4, name="what if")
    request = await other.prepare("instead?")
    assert [each["content"][:10] for each in request.to_chat()["messages"][1:]] == [
        "question 0", "answer 0: ", "question 1", "answer 1: ", "instead?",
    ]  # fmt: skip
    reply = await other.record("yes", request=request)
    assert (await other.replay(reply.seq)).matches
    assert len(await conversation.messages()) == 6


async def test_a_conversation_imported_under_another_id_replays(tmp_path: Path):
    async with quire.open(f"sqlite:///{tmp_path}/from.db", model="gpt-4o") as engine:
        await record_turns(await engine.conversation("original"), 2)
        lines = [line async for line in engine.store.export_conversation("original")]
    async with quire.open(f"sqlite:///{tmp_path}/to.db", model="gpt-4o") as engine:
        await engine.store.import_conversation(lines, as_id="copy")
        copy = await engine.conversation("copy")
        for reply in (2, 4):
            assert (await copy.manifest(reply)).conversation == "copy"
            assert (await copy.replay(reply)).mismatch is None
        exported = [line async for line in engine.store.export_conversation("copy")]
        await engine.store.import_conversation(exported, as_id="original")
        assert [line async for line in engine.store.export_conversation("original")] == lines
