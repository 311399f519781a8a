"""An engine never changes: a variant has another configuration and shares the runtime state."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from pydantic import ValidationError

import quire
from quire.engine import Conversation, Engine, EngineConfig
from quire.model.agents import Agent
from quire.model.context_events import ContextEvent
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.view.budget import Calibration

SOURCE = Path(inspect.getfile(quire)).parent


def make_engine(store: SqlStore, **parts: object) -> Engine:
    settings = Settings(model="gpt-4o", context_limit=4_000)
    return Engine(store, EngineConfig.create(settings, instructions="Be brief.", **parts))  # type: ignore[arg-type]


async def test_a_variant_has_its_own_configuration_and_leaves_the_engine_as_it_was(store: SqlStore, tmp_path: Path):
    engine = make_engine(store, vault=tmp_path, summarizer=ScriptedModel("x"))
    agent = Agent(name="other")
    variant = engine.with_changes(agent=agent, vault=None, summarizer=None, clock=lambda: 7, model="claude-sonnet-4-5")
    assert variant.agent is agent
    assert (variant.vault, variant.summarizer, variant.config.clock()) == (None, None, 7)
    assert (variant.policy.wire_format, variant.message_counter.wire_format.name) == ("messages", "messages")
    assert (engine.policy.wire_format, engine.message_counter.wire_format.name) == ("chat", "chat")
    assert engine.vault is not None
    assert engine.summarizer is not None
    assert variant.settings.context_limit == engine.settings.context_limit == 4_000


async def test_a_setting_that_is_also_a_part_is_taken_for_the_part(store: SqlStore):
    variant = make_engine(store).with_changes(summarizer=ScriptedModel("x", name="gpt-4o-mini"))
    assert variant.summarizer is not None
    assert (variant.summarizer.model.name, variant.summarizer.window) == ("gpt-4o-mini", 128_000)
    assert variant.settings.summarizer is None


async def test_invalid_settings_make_no_variant(store: SqlStore):
    with pytest.raises(ValidationError, match="context_limit"):
        make_engine(store).with_changes(context_limit=-1)


async def test_variants_share_calibrations_caches_listeners_hooks_and_jobs(store: SqlStore):
    engine = make_engine(store)
    variant = engine.with_changes(agent=Agent(name="other"), context_limit=2_000)
    events: list[ContextEvent] = []
    engine.subscribe(events.append)
    await Conversation(variant, (await engine.conversation("c")).id).prepare("hello")
    assert [event.conversation for event in events] == ["c"]
    variant.runtime.calibrations["gpt-4o"] = Calibration(ratio=1.5, samples=9)
    assert (await engine.runtime.load_calibration(store, "gpt-4o")).ratio == 1.5
    assert variant.message_counter is engine.message_counter, "the model is the same, and so are the rendered messages"
    assert (variant.hooks, variant.runtime.jobs) == (engine.hooks, engine.runtime.jobs)


async def test_each_model_and_tokenizer_has_its_own_message_counter(store: SqlStore):
    engine = make_engine(store)
    variants = [
        engine.with_changes(model="gpt-4"),
        engine.with_changes(models={"*": {"tokenizer": "cl100k_base"}}),
        engine,
    ]
    assert len({id(each.message_counter) for each in variants}) == 3
    assert [each.message_counter.name for each in variants] == ["chat:cl100k_base"] * 2 + ["chat:o200k_base"]


async def test_nothing_of_an_engine_can_be_assigned(store: SqlStore):
    engine = make_engine(store)
    for name in ("store", "config", "runtime", "agent", "summarizer", "message_counter"):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(engine, name, None)


def test_no_module_assigns_attributes_of_an_engine():
    found = [
        f"{file.relative_to(SOURCE)}:{line}"
        for file in sorted(SOURCE.rglob("*.py"))
        if file.relative_to(SOURCE).parts[0] != "engine"
        for line in find_engine_assignments(ast.parse(file.read_text()))
    ]
    assert found == []


def test_an_assignment_to_an_engine_would_be_found():
    code = "engine.vault = None\nself.engine = engine\nself._engine.agent += tools\nruntime.engine.store.x = engine.x\n"
    assert list(find_engine_assignments(ast.parse(code))) == [1, 3, 4]


def find_engine_assignments(tree: ast.Module) -> Iterator[int]:
    """Lines that assign to an attribute of something called engine, or to an attribute of its parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and _is_engine(node.value):
            yield node.lineno


def _is_engine(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") == "engine" or (isinstance(node, ast.Attribute) and _is_engine(node.value))
