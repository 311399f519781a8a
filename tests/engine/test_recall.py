"""Recall: archived messages that bear on a question come back with it, numbered, within their slot, on record."""

import json

import pytest

from quire.engine import Conversation, Engine
from quire.llm.embeddings import local_embedder
from quire.log import SqlStore
from quire.log.found import Shelf
from quire.model import Compaction, Manifest, Message, Span, ToolCallPart
from quire.settings import Settings

FACTS = {
    40: "The spare key of the boathouse lies under the third flowerpot.",
    300: "My sister Ottilie keeps bees on the roof in Zurich.",
    777: "The wifi password of the cabin is granite-lantern-77.",
}


def engine_on(store: SqlStore, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4", "context_limit": 8_000, "recall_tokens": 600, **changes})
    return Engine(store, settings=settings)


async def archived(engine: Engine, *, messages: int = 60, conversation: str = "c") -> Conversation:
    """A conversation of small talk with a few facts in it, all of it archived without a summary."""
    opened = await engine.conversation(conversation)
    talk = []
    for number in range(1, messages + 1):
        text = FACTS.get(number, f"Nothing much happened on day {number}, we had soup and went to bed.")
        talk.append(Message.user(text) if number % 2 == 0 else Message.assistant(text))
    await opened.append(*talk)
    covering = Compaction(number=1, covers=Span(first=1, last=messages))
    await engine.store.append(conversation, covering)
    return opened


def recalled(manifest: Manifest) -> dict[int, float]:
    rows = [row for row in manifest.included if row.slot == "recall" and row.span is not None]
    return {row.span.first: row.score or 0.0 for row in rows if row.span is not None}


async def test_a_message_comes_back_with_the_question_that_it_answers(store: SqlStore):
    conversation = await archived(engine_on(store))
    request = await conversation.prepare("Where is the spare key of the boathouse?")
    shown = recalled(request.manifest)
    assert max(shown, key=lambda seq: shown[seq]) == 40
    text = request.to_openai()["messages"][-2]["content"]
    assert "#40 user: The spare key of the boathouse lies under the third flowerpot." in text
    [slot] = [slot for slot in request.manifest.slots if slot.slot == "recall"]
    assert 0 < slot.used <= 600 < slot.budget
    reply = await conversation.record("Under the third flowerpot.")
    assert (await conversation.why(40, reply=reply.seq)).reason == "recalled"
    assert (await conversation.replay(reply.seq)).matches


async def test_every_archived_message_has_one_decision(store: SqlStore):
    conversation = await archived(engine_on(store))
    manifest = (await conversation.prepare("Who keeps bees?")).manifest
    rows = [row.span for row in manifest.decisions if row.what == "message" and row.span is not None]
    decided = [seq for span in rows for seq in range(span.first, span.last + 1)]
    assert sorted(decided) == list(range(1, 61))


@pytest.mark.parametrize("changes", [{"recall_tokens": 0}, {"strategy": "summarize"}, {"strategy": "discard"}], ids=str)
async def test_recall_can_be_off(store: SqlStore, changes: dict[str, object]):
    conversation = await archived(engine_on(store, **changes))
    assert recalled((await conversation.prepare("Where is the spare key?")).manifest) == {}
    assert await store.shelves("c") == []


async def test_what_can_be_seen_anyway_is_not_recalled(store: SqlStore):
    engine = engine_on(store)
    conversation = await archived(engine)
    await conversation.append("The spare key of the boathouse is with Ottilie now.")
    await conversation.pin(40)
    shown = recalled((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)
    assert not shown.keys() & {40, 61, 62}


async def test_the_same_question_brings_the_same_in_every_step_of_a_tool_loop(store: SqlStore):
    conversation = await archived(engine_on(store))
    first = await conversation.prepare("Where is the spare key of the boathouse?")
    call = ToolCallPart(id="1", name="history_read", arguments='{"first": 40}')
    await conversation.record(Message(role="assistant", parts=(call,)))
    await conversation.append(await conversation.run_tool(call))
    second = await conversation.prepare()
    assert recalled(second.manifest) == recalled(first.manifest)
    before, after = first.to_openai()["messages"], second.to_openai()["messages"]
    assert after[: len(before)] == before


async def test_several_shelves_are_ranked_as_one(store: SqlStore):
    conversation = await archived(engine_on(store), messages=1_200)
    for question, number in (
        ("Where does my sister Ottilie keep bees?", 300),
        ("What is the wifi password of the cabin?", 777),
    ):
        shown = recalled((await conversation.prepare(question)).manifest)
        assert max(shown, key=lambda seq: shown[seq]) == number
    assert [mark.upto for mark in await store.shelves("c")] == [512, 1_024, 1_200]


async def test_a_fork_recalls_what_it_shares_and_not_what_came_after(store: SqlStore):
    engine = engine_on(store)
    await archived(engine, messages=60)
    conversation = await engine.conversation("c")
    await conversation.prepare("Where is the spare key?")
    early = await conversation.fork(30)
    await early.append("The spare key of the boathouse hangs behind the door.", Message.assistant("Good."))
    await engine.store.append("c", Compaction(number=1, covers=Span(first=1, last=32)), branch=early.branch)
    shown = recalled((await early.prepare("Where is the spare key of the boathouse?")).manifest)
    assert max(shown, key=lambda seq: shown[seq]) == 31
    assert max(shown) <= 32


async def test_a_purged_message_is_never_recalled_again(store: SqlStore):
    engine = engine_on(store)
    conversation = await archived(engine)
    assert 40 in recalled((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)
    await store.purge("c", [40])
    request = await conversation.prepare("Where is the spare key of the boathouse?")
    assert 40 not in recalled(request.manifest)
    assert "flowerpot" not in str(request.to_openai())
    assert await store.search("flowerpot", scopes=["conversation:c"]) == []


async def test_shelves_of_another_version_are_made_anew(store: SqlStore):
    await archived(engine_on(store))
    await store.put_shelf("c", Shelf(branch=0, number=0, upto=61, data=b"of another version"))
    conversation = await engine_on(store).conversation("c")
    assert 40 in recalled((await conversation.prepare("Where is the spare key of the boathouse?")).manifest)


async def test_a_long_message_comes_back_in_the_pieces_that_matter(store: SqlStore):
    engine = engine_on(store, recall_tokens=300)
    conversation = await engine.conversation("c")
    filler = "The weather was grey and the train was late again. " * 60
    await conversation.append(f"{filler}The vault code is 4711-X. {filler}", Message.assistant("I see."))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2)))
    request = await conversation.prepare("What is the vault code?")
    [row] = [row for row in request.manifest.included if row.pieces is not None]
    text = request.to_openai()["messages"][-2]["content"]
    assert "The vault code is 4711-X." in text
    assert "characters left out; read #1]" in text
    assert row.span == Span(first=1, last=1)
    reply = await conversation.record("4711-X.")
    assert (await conversation.replay(reply.seq)).matches


async def test_by_meaning_other_words_are_found(store: SqlStore):
    engine = Engine(
        store,
        settings=Settings(model="gpt-4", context_limit=8_000, recall_tokens=400),
        embedder=local_embedder(),
    )
    conversation = await archived(engine)
    shown = recalled((await conversation.prepare("How can I unlock the building at the lake?")).manifest)
    assert 40 in shown


async def test_the_model_searches_the_history_itself(store: SqlStore):
    conversation = await archived(engine_on(store))
    call = ToolCallPart(id="1", name="history_search", arguments=json.dumps({"query": "boathouse key", "limit": 3}))
    [result] = (await conversation.run_tool(call)).tool_results
    assert "#40 user: The spare key of the boathouse" in result.content[0].text
    assert result.content[0].text.count("\n#") <= 3
