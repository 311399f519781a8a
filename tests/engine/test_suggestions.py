"""Suggestions after a turn: what a question names and the request lacks, and what no answer uses. Each is made once."""

from pathlib import Path

import pytest

from quire.context.vault import Vault
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.suggestions import UNUSED_TURNS
from quire.events import ContextSuggestion
from quire.model.agents import Agent, Reference, Rule
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

AGENT = Agent(
    name="pilot",
    rules=(Rule(name="night-rules", text="Name lights by colour.", include="manual"),),
    references=(
        Reference(name="tides", text="High water at Vigo is at 06:12, and the lock opens before.", include="manual"),
        Reference(name="ports", text="Baiona has eighty berths and a crane.", include="manual"),
    ),
)


def make_engine(store: SqlStore, folder: Path | None = None, agent: Agent = AGENT) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 16_000})
    vault = Vault(folder) if folder is not None else None
    return Engine(store, EngineConfig.create(settings, agent=agent, vault=vault, runs_turns=True))


async def ask(conversation: Conversation, question: str, answer: str = "I do not know.") -> ContextSuggestion | None:
    return (await conversation.send(question, model=ScriptedModel(answer))).suggestion


async def test_an_item_that_the_question_names_is_suggested_once(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    assert await ask(conversation, "What lies ahead?") is None
    suggestion = await ask(conversation, "What do the Tides and the night-rules say?")
    assert suggestion == ContextSuggestion(action="add", kind="rule", name="night-rules")
    assert suggestion is not None
    assert suggestion.text == "The question names 'night-rules', which is not in the context."
    assert await ask(conversation, "And the night-rules and the tides, again?") is None
    await conversation.add_item("ports")
    assert await ask(conversation, "And the ports, or the outports?") is None


@pytest.mark.parametrize(
    ("question", "path"),
    [
        ("What does harbour.md say?", "plans/harbour.md"),
        ("Compare plans/harbour.md with the rest.", "plans/harbour.md"),
        ("What does @plans/harbour.md say?", None),
        ("What does [[harbour]] say? I mean harbour.md.", None),
        ("What does missing.md say, e.g. in 3.5?", None),
    ],
)
async def test_a_file_that_the_question_names_without_a_reference(
    store: SqlStore, tmp_path: Path, question: str, path: str | None
):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "harbour.md").write_text("The new pier.", "utf-8")
    conversation = await make_engine(store, tmp_path).conversation("c")
    expected = None if path is None else ContextSuggestion(action="refer", kind="document", name=path)
    assert await ask(conversation, question) == expected
    assert await ask(conversation, question) is None


async def test_an_item_that_no_answer_uses_is_suggested_once_to_be_removed(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.add_item("tides")
    await conversation.add_item("ports")
    made = [
        await ask(conversation, f"Question {turn}?", "Baiona has eighty berths." if turn % 3 == 0 else "No.")
        for turn in range(2 * UNUSED_TURNS)
    ]
    removal = ContextSuggestion(action="remove", kind="reference", name="tides", turns=UNUSED_TURNS)
    assert made == [*[None] * (UNUSED_TURNS - 1), removal, *[None] * UNUSED_TURNS]
    assert removal.text == "No answer of the last 5 turns used the reference 'tides'."
    assert await ask(conversation, "And now?", "High water at Vigo is at 06:12.") is None


async def test_without_items_and_vault_nothing_is_read(store: SqlStore):
    conversation = await make_engine(store, agent=Agent(name="plain")).conversation("c")
    assert await ask(conversation, "What does harbour.md say?") is None
    assert await conversation.suggest() is None
