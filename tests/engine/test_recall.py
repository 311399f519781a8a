"""Recall: archived messages that are relevant to a question are included with it, numbered, within their slot."""

import json

import pytest
from engine_fixtures import set_index_format

from quire.engine import Conversation, Engine, EngineConfig, runtime
from quire.engine.message_index import index_messages
from quire.engine.recall import RecallIndexCache
from quire.engine.search import search_messages
from quire.llm.embeddings import load_local_embedder
from quire.model import Compaction, Entry, Manifest, Message, Span, ToolCallPart
from quire.search.index import RecallIndex
from quire.search.postings import FORMAT_VERSION
from quire.settings import Settings
from quire.store import SqlStore

FACTS = {
    40: "The spare key of the boathouse lies under the third flowerpot.",
    300: "My sister Ottilie keeps bees on the roof in Zurich.",
    777: "The wifi password of the cabin is granite-lantern-77.",
}


def make_engine(store: SqlStore, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4", "context_limit": 8_000, "recall_tokens": 600, **changes})
    return Engine(store, EngineConfig.create(settings))


async def make_archived_conversation(engine: Engine, *, messages: int = 60, conversation: str = "c") -> Conversation:
    """A conversation of small talk with a few facts, all archived without a summary."""
    created = await engine.conversation(conversation)
    talk = []
    for number in range(1, messages + 1):
        text = FACTS.get(number, f"Nothing much happened on day {number}, we had soup and went to bed.")
        talk.append(Message.user(text) if number % 2 == 0 else Message.assistant(text))
    await created.append(*talk)
    compaction = Compaction(number=1, covers=Span(first=1, last=messages))
    await engine.store.append(conversation, compaction)
    return created


def recalled_scores(manifest: Manifest) -> dict[int, float]:
    rows = [row for row in manifest.included if row.slot == "recall" and row.span is not None]
    return {row.span.first: row.score or 0.0 for row in rows if row.span is not None}


async def test_a_message_comes_back_with_the_question_that_it_answers(store: SqlStore):
    conversation = await make_archived_conversation(make_engine(store))
    request = await conversation.prepare("Where is the spare key of the boathouse?")
    scores = recalled_scores(request.manifest)
    assert max(scores, key=lambda seq: scores[seq]) == 40
    text = request.to_chat()["messages"][-2]["content"]
    assert "#40 user: The spare key of the boathouse lies under the third flowerpot." in text
    [slot] = [slot for slot in request.manifest.slots if slot.slot == "recall"]
    assert 0 < slot.used <= 600 < slot.budget
    reply = await conversation.record("Under the third flowerpot.", request=request)
    assert (await conversation.why(40, reply_seq=reply.seq)).reason == "recalled"
    assert (await conversation.replay(reply.seq)).matches


async def test_every_archived_message_has_one_decision(store: SqlStore):
    conversation = await make_archived_conversation(make_engine(store))
    manifest = (await conversation.prepare("Who keeps bees?")).manifest
    rows = [row.span for row in manifest.decisions if row.kind == "message" and row.span is not None]
    seqs = [seq for span in rows for seq in range(span.first, span.last + 1)]
    assert sorted(seqs) == list(range(1, 61))


@pytest.mark.parametrize("changes", [{"recall_tokens": 0}, {"strategy": "summarize"}, {"strategy": "discard"}], ids=str)
async def test_recall_can_be_off(store: SqlStore, changes: dict[str, object]):
    conversation = await make_archived_conversation(make_engine(store, **changes))
    assert recalled_scores((await conversation.prepare("Where is the spare key?")).manifest) == {}
    assert await store.message_index.list_segments("c") == []


async def test_what_the_request_has_anyway_is_not_recalled(store: SqlStore):
    engine = make_engine(store)
    conversation = await make_archived_conversation(engine)
    await conversation.append("The spare key of the boathouse is with Ottilie now.")
    await conversation.pin(40)
    scores = recalled_scores((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)
    assert not scores.keys() & {40, 61, 62}


async def test_the_same_question_brings_the_same_in_every_step_of_a_tool_loop(store: SqlStore):
    conversation = await make_archived_conversation(make_engine(store))
    first = await conversation.prepare("Where is the spare key of the boathouse?")
    call = ToolCallPart(id="1", name="history_read", arguments='{"first": 40}')
    await conversation.record(Message(role="assistant", parts=(call,)), request=first)
    await conversation.append((await conversation.run_tool(call, request=first)).message)
    second = await conversation.prepare()
    assert recalled_scores(second.manifest) == recalled_scores(first.manifest)
    before, after = first.to_chat()["messages"], second.to_chat()["messages"]
    assert after[: len(before)] == before


async def test_recalled_messages_stay_below_the_trigger(store: SqlStore):
    engine = make_engine(store, context_limit=4_000)
    conversation = await make_archived_conversation(engine)
    question, trigger = "What happened on the days with soup?", engine.policy.trigger_tokens
    totals: list[int] = []
    while (manifest := (await conversation.prepare(question)).manifest).full_history_tokens < trigger - 100:
        assert recalled_scores(manifest) or manifest.full_history_tokens > trigger - 200
        totals.append(manifest.total_tokens)
        await conversation.append("The boat was painted, and dried in the sun for a while. " * 4)
    assert len(totals) > 10
    assert max(totals) <= trigger


async def test_several_segments_are_ranked_as_one(store: SqlStore):
    conversation = await make_archived_conversation(make_engine(store), messages=1_200)
    for question, number in (
        ("Where does my sister Ottilie keep bees?", 300),
        ("What is the wifi password of the cabin?", 777),
    ):
        scores = recalled_scores((await conversation.prepare(question)).manifest)
        assert max(scores, key=lambda seq: scores[seq]) == number
    assert [each.last_seq for each in await store.message_index.list_segments("c")] == [512, 1_024, 1_201]


async def test_a_fork_recalls_what_it_shares_and_not_what_came_after(store: SqlStore):
    engine = make_engine(store)
    await make_archived_conversation(engine, messages=60)
    conversation = await engine.conversation("c")
    await conversation.prepare("Where is the spare key?")
    early = await conversation.fork(30)
    await early.append("The spare key of the boathouse hangs behind the door.", Message.assistant("Good."))
    await engine.store.append("c", Compaction(number=1, covers=Span(first=1, last=32)), branch=early.branch)
    scores = recalled_scores((await early.prepare("Where is the spare key of the boathouse?")).manifest)
    assert max(scores, key=lambda seq: scores[seq]) == 31
    assert max(scores) <= 32


@pytest.mark.every_database
async def test_a_purged_message_is_never_recalled_again(store: SqlStore):
    engine = make_engine(store)
    conversation = await make_archived_conversation(engine)
    assert 40 in recalled_scores((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)
    await store.purge("c", [40])
    request = await conversation.prepare("Where is the spare key of the boathouse?")
    assert 40 not in recalled_scores(request.manifest)
    assert "flowerpot" not in str(request.to_chat())
    assert (await search_messages(engine, "flowerpot")).messages == []


async def test_a_recalled_message_is_not_read_again_until_its_segment_changes(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine(store)
    conversation = await make_archived_conversation(engine)
    question, reads, get_entries = "Where is the spare key of the boathouse?", list[list[int]](), store.get_entries

    async def record(id: str, seqs: list[int], *, branch: int) -> list[Entry]:
        reads.append(seqs)
        return await get_entries(id, seqs, branch=branch)

    monkeypatch.setattr(store, "get_entries", record)
    requests = [await conversation.prepare(question) for _ in range(2)]
    assert requests[0].to_chat() == requests[1].to_chat()
    assert [40 in seqs for seqs in reads] == [True]
    await store.purge("c", [12])
    assert recalled_scores((await conversation.prepare(question)).manifest).keys() >= {40}
    assert [40 in seqs for seqs in reads] == [True, True]


@pytest.mark.every_database
async def test_segments_of_another_version_are_rebuilt(store: SqlStore, admin_url: str):
    engine = make_engine(store)
    await make_archived_conversation(engine)
    await index_messages(engine)
    set_index_format(admin_url, FORMAT_VERSION - 1)
    conversation = await make_engine(store).conversation("c")
    assert 40 in recalled_scores((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)


async def test_a_long_message_comes_back_in_the_pieces_that_matter(store: SqlStore):
    engine = make_engine(store, recall_tokens=300)
    conversation = await engine.conversation("c")
    filler = "The weather was grey and the train was late again. " * 60
    await conversation.append(f"{filler}The vault code is 4711-X. {filler}", Message.assistant("I see."))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2)))
    request = await conversation.prepare("What is the vault code?")
    [row] = [row for row in request.manifest.included if row.excerpt_spans is not None]
    text = request.to_chat()["messages"][-2]["content"]
    assert "The vault code is 4711-X." in text
    assert "characters left out; read #1]" in text
    assert row.span == Span(first=1, last=1)
    reply = await conversation.record("4711-X.", request=request)
    assert (await conversation.replay(reply.seq)).matches


async def test_by_meaning_other_words_are_found(store: SqlStore):
    engine = Engine(
        store,
        EngineConfig.create(
            Settings(model="gpt-4", context_limit=8_000, recall_tokens=400), embedder=load_local_embedder()
        ),
    )
    conversation = await make_archived_conversation(engine)
    scores = recalled_scores((await conversation.prepare("How can I unlock the building at the lake?")).manifest)
    assert 40 in scores


async def test_the_model_searches_the_history_itself(store: SqlStore):
    conversation = await make_archived_conversation(make_engine(store))
    call = ToolCallPart(id="1", name="history_search", arguments=json.dumps({"query": "boathouse key", "limit": 3}))
    request = await conversation.prepare("Where is the spare key of the boathouse?")
    [result] = (await conversation.run_tool(call, request=request)).message.tool_results
    assert "#40 user: The spare key of the boathouse" in result.content[0].text
    assert result.content[0].text.count("\n#") <= 3


async def test_the_index_cache_evicts_the_least_recently_used_branch_and_holds_one_that_exceeds_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtime, "MAX_RECALL_INDEX_BYTES", 2.5)
    # Counts an index of 60 messages as 1.
    monkeypatch.setattr(runtime.CachedIndex, "nbytes", property(lambda cached: len(cached.merged) / 60))
    engine = make_engine(store)
    cache = RecallIndexCache(engine)
    for name, messages in (("a", 60), ("b", 60), ("c", 60), ("large", 200)):
        await make_archived_conversation(engine, messages=messages, conversation=name)
    branches = {name: await store.get_branch(name) for name in ("a", "b", "c", "large")}

    async def load(name: str) -> RecallIndex:
        index, _ = await cache.load(branches[name], upto=branches[name].head_seq)
        return index

    first, second = await load("a"), await load("b")
    assert await load("a") is first
    await load("c")
    assert await load("a") is first
    assert await load("b") is not second
    large = await load("large")
    assert len(large) == 200
    assert await load("large") is large
    assert await load("a") is not first
