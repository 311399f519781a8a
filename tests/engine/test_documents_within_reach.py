"""What a request omits stays within reach: reading tools, listed documents with a summary, trimmed documents."""

from pathlib import Path
from typing import Any

import pytest

from quire.agent.turn import run_turn
from quire.engine import Conversation, Document, Engine, EngineConfig, Request
from quire.jobs.runner import summarize_documents
from quire.model import Message, ToolCallPart
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

HISTORY_TOOLS = {"history_search", "history_read"}
DOCUMENT_TOOLS = {"read_document", "find_excerpts", "find_documents", "resolve_wikilink"}
SENTENCE = "The road was dry and the weather held until noon. "
FACT = "The miller keeps every sixteenth sack."


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "Small.md").write_text("# Small\n\nA note that is included whole.\n")
    (tmp_path / "List.md").write_text("# List\n\n" + "- item about wheels and stones and sacks\n" * 3_000 + FACT)
    return tmp_path


def make_engine(store: SqlStore, vault: Path | None = None, *, runs_turns: bool = True, **changes: Any) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 8_000, **changes})
    return Engine(store, EngineConfig.create(settings, vault=vault, runs_turns=runs_turns))


def offered_tools(request: Request) -> set[str]:
    return {tool["function"]["name"] for tool in request.to_chat().get("tools", [])}


def last_text(request: Request) -> str:
    return request.to_chat()["messages"][-1]["content"]


async def archive_messages(conversation: Conversation) -> None:
    for number in range(20):
        await conversation.append(f"m{number} {SENTENCE * 8}", Message.assistant("ok"))
    assert await conversation.compact() is not None


async def test_document_tools_are_offered_while_a_document_is_listed(store: SqlStore, vault: Path):
    conversation = await make_engine(store, vault, runs_turns=False).conversation("c")
    assert not offered_tools(await conversation.prepare("What of [[Small]]?"))
    request = await conversation.prepare("What of [[List]]?")
    assert offered_tools(request) == DOCUMENT_TOOLS
    reply = await conversation.record("Wheels.", request=request)
    assert (await conversation.replay(reply.seq)).mismatch is None
    later = await make_engine(store, vault, runs_turns=False).conversation("c")
    assert offered_tools(await later.prepare("And then?")) == DOCUMENT_TOOLS


async def test_history_tools_are_offered_once_messages_are_archived(store: SqlStore, vault: Path):
    conversation = await make_engine(store).conversation("c")
    assert not offered_tools(await conversation.prepare("Hello"))
    await archive_messages(conversation)
    assert offered_tools(await conversation.prepare("Hello")) == HISTORY_TOOLS
    with_vault = Conversation(make_engine(store, vault), "c")
    assert offered_tools(await with_vault.prepare("Hello")) == HISTORY_TOOLS | DOCUMENT_TOOLS
    await conversation.undo_compaction()
    assert not offered_tools(await conversation.prepare("Hello"))


async def test_history_tools_come_before_document_tools_in_a_small_window(store: SqlStore, vault: Path):
    conversation = await make_engine(store, vault, context_limit=2_000).conversation("c")
    listed = offered_tools(await conversation.prepare("What of [[List]]?"))
    await archive_messages(conversation)
    assert "read_document" in listed
    assert listed < DOCUMENT_TOOLS
    assert offered_tools(await conversation.prepare("Hello")) == HISTORY_TOOLS | listed


async def test_a_request_that_compacts_offers_the_tools_at_once(store: SqlStore):
    conversation = await make_engine(store, context_limit=3_000).conversation("c")
    for number in range(30):
        await conversation.append(f"m{number} {SENTENCE * 8}", Message.assistant("ok"))
    request = await conversation.prepare("Hello")
    assert request.compactions
    assert offered_tools(request) == HISTORY_TOOLS


async def test_what_a_compaction_frees_is_what_the_meter_shows(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    for number in range(20):
        await conversation.append(f"m{number} {SENTENCE * 8}", Message.assistant("ok"))
    before, plan = await conversation.usage(), await conversation.plan_compaction()
    assert plan is not None
    entry = await conversation.compact()
    assert entry is not None
    after = await conversation.usage()
    body: Any = entry.body
    assert (body.tokens_before - body.tokens_after) == before.total_tokens - after.total_tokens


@pytest.mark.parametrize("offered", [True, False])
async def test_the_setting_offers_all_tools_or_none(store: SqlStore, vault: Path, offered: bool):
    conversation = await make_engine(store, vault, runs_turns=not offered, context_tools=offered).conversation("c")
    assert offered_tools(await conversation.prepare("Hello")) == (HISTORY_TOOLS | DOCUMENT_TOOLS if offered else set())
    assert offered_tools(await conversation.prepare("[[List]]")) == (
        HISTORY_TOOLS | DOCUMENT_TOOLS if offered else set()
    )


async def test_requests_that_the_application_sends_have_no_history_tools(store: SqlStore):
    """A program that sends requests itself may not run tool calls; `context_tools=True` says that it does."""
    conversation = await make_engine(store, runs_turns=False).conversation("c")
    await archive_messages(conversation)
    assert not offered_tools(await conversation.prepare("Hello"))


async def test_send_offers_them_and_the_model_reads_the_document(store: SqlStore, vault: Path):
    call = ToolCallPart(id="1", name="read_document", arguments='{"path": "List.md", "start": 120000}')
    model = ScriptedModel(Message(role="assistant", parts=(call,)), "Every sixteenth.")
    conversation = await make_engine(store, vault, runs_turns=False).conversation("c")
    await archive_messages(conversation)
    await conversation.send("What does the miller keep? See [[List]].", model=model)
    assert {tool.name for tool in model.prompts[0].tools} == HISTORY_TOOLS | DOCUMENT_TOOLS
    assert FACT in model.prompts[1].messages[-1].tool_results[0].text


async def test_a_listed_document_says_how_to_read_it(store: SqlStore, vault: Path):
    conversation = await make_engine(store, vault).conversation("c")
    text = last_text(await conversation.prepare("What of [[List]]?"))
    assert "read_document" in text.partition("<quire:references")[0]
    assert "(List.md)" in text
    broken = last_text(await conversation.prepare("What of [[Nowhere]]?"))
    assert "read_document" not in broken


async def test_a_listed_document_shows_the_sentence_of_the_model(store: SqlStore, vault: Path):
    model = ScriptedModel("A MODEL SENTENCE about wheels, stones and sacks.", name="mini", repeat=True)
    engine = make_engine(store, vault)
    conversation = await engine.conversation("c")
    assert "A MODEL SENTENCE" not in last_text(await conversation.prepare("see [[List]]"))
    async for _ in engine.index_vault():
        pass
    assert engine.vault is not None
    assert await summarize_documents(engine, engine.vault, model) == 1
    request = await conversation.prepare("see [[List]]")
    assert "- [[List]] (List.md): A MODEL SENTENCE about wheels, stones and sacks." in last_text(request)
    await conversation.record("ok", request=request)
    [question, _] = await conversation.messages()
    assert question.metadata.references is not None
    assert (question.metadata.references[0].summary or "").startswith("A MODEL SENTENCE")
    (vault / "List.md").write_text("# List\n\n" + "- another list, of ships\n" * 3_000)
    assert "A MODEL SENTENCE" not in last_text(await conversation.prepare("see [[List]]"))


def find_decision_of(request: Request, name: str) -> Any:
    [decision] = [row for row in request.manifest.decisions if row.name == name]
    return decision


@pytest.mark.parametrize("recalled", [False, True])
async def test_documents_fill_what_the_rest_of_the_request_leaves_free(store: SqlStore, recalled: bool):
    conversation = await make_engine(store, context_limit=8_000).conversation("c")
    fitting = Document(name="Letter", text=SENTENCE * 150, recalled=recalled)
    request = await conversation.prepare("What was the weather?", documents=[fitting])
    decision = find_decision_of(request, "Letter")
    assert decision.excerpt_chars is None
    assert decision.tokens > {slot.slot: slot.budget for slot in request.manifest.slots}[decision.slot]
    document = Document(name="Diary", text=f"START {SENTENCE * 1_000} END", recalled=recalled)
    request = await conversation.prepare("What was the weather?", documents=[document])
    decision = find_decision_of(request, "Diary")
    assert decision.included
    assert 0 < decision.excerpt_chars < len(document.text)
    assert 0.85 * request.manifest.trigger_tokens < request.tokens <= request.manifest.trigger_tokens
    sent = str(request.to_chat()["messages"])
    assert "START" in sent
    assert "END" in sent
    assert not request.compactions
    reply = await conversation.record("Dry.", request=request)
    assert (await conversation.replay(reply.seq)).mismatch is None


async def test_a_share_that_is_set_stays_a_cap(store: SqlStore):
    conversation = await make_engine(store, context_limit=4_000, shares={"references": 0.2}).conversation("c")
    document = Document(name="Diary", text=SENTENCE * 1_000)
    request = await conversation.prepare("What was the weather?", documents=[document])
    decision = find_decision_of(request, "Diary")
    budget = {slot.slot: slot.budget for slot in request.manifest.slots}[decision.slot]
    assert 0.8 * budget < decision.tokens <= budget


async def test_a_trimmed_document_mostly_stays_the_same_between_turns(store: SqlStore):
    """It comes before the history, so a different excerpt would invalidate the prompt cache of the whole request."""
    conversation = await make_engine(store, context_limit=32_000).conversation("c")
    document = Document(name="Diary", text=SENTENCE * 5_000)
    sizes: list[int] = []
    for number in range(12):
        request = await conversation.prepare(f"Question {number}?", documents=[document])
        sizes.append(find_decision_of(request, "Diary").excerpt_chars)
        await conversation.record("A short answer.", request=request)
    assert len(set(sizes)) <= 2


async def test_a_linked_document_without_competition_is_included_whole(store: SqlStore, tmp_path: Path):
    for name in ("One", "Two", "Three"):
        (tmp_path / f"{name}.md").write_text(SENTENCE * 150)
    engine = make_engine(store, tmp_path, context_limit=8_000)
    alone = await (await engine.conversation("alone")).prepare("Read [[One]].")
    assert find_decision_of(alone, "One.md").included
    several = await (await engine.conversation("several")).prepare("Read [[One]], [[Two]] and [[Three]].")
    assert [find_decision_of(several, f"{name}.md").included for name in ("One", "Two", "Three")] == [False] * 3
    off = make_engine(store, tmp_path, context_limit=8_000, document_share=0)
    assert not find_decision_of(await (await off.conversation("off")).prepare("Read [[One]]."), "One.md").included


async def test_several_documents_share_what_is_free(store: SqlStore):
    conversation = await make_engine(store, context_limit=4_000).conversation("c")
    documents = [Document(name=f"Diary {number}", text=SENTENCE * 1_000) for number in range(3)]
    small = Document(name="Small", text="A short note.")
    request = await conversation.prepare("What was the weather?", documents=[*documents, small])
    assert find_decision_of(request, "Small").excerpt_chars is None
    chars = [find_decision_of(request, each.name).excerpt_chars for each in documents]
    assert min(chars) > 0.7 * max(chars)


async def test_trimmed_documents_fit_after_a_compaction(store: SqlStore):
    conversation = await make_engine(store, context_limit=4_000).conversation("c")
    for number in range(60):
        await conversation.append(f"m{number} {SENTENCE * 8}", Message.assistant("ok"))
    document = Document(name="Diary", text=SENTENCE * 1_000)
    request = await conversation.prepare("What was the weather?", documents=[document])
    assert request.compactions
    assert find_decision_of(request, "Diary").included
    assert request.tokens <= request.manifest.max_input_tokens


async def test_a_document_without_room_for_an_excerpt_is_left_out(store: SqlStore):
    conversation = await make_engine(store, context_limit=4_000, shares={"references": 0.0}).conversation("c")
    documents = [Document(name=f"Diary {number}", text=SENTENCE * 1_000) for number in range(50)]
    request = await conversation.prepare("What was the weather?", documents=documents)
    decision = find_decision_of(request, "Diary 49")
    assert (decision.included, decision.reason) == (False, "over_budget")


async def test_tools_stay_the_same_within_a_turn(store: SqlStore, vault: Path):
    """The list of tools is part of the prefix that a provider caches."""
    calls = [ToolCallPart(id=str(n), name="read_document", arguments='{"path": "Small.md"}') for n in range(3)]
    model = ScriptedModel(*(Message(role="assistant", parts=(call,)) for call in calls), "Done.")
    conversation = await make_engine(store, vault).conversation("c")
    async for _ in run_turn(conversation, "Read [[List]].", model=model):
        pass
    assert len({tuple(tool.name for tool in prompt.tools) for prompt in model.prompts}) == 1
