"""Which model writes summaries, and its limits: from the settings, the table of models and its provider."""

import pytest

from quire.engine import Engine, EngineConfig
from quire.errors import MissingExtra, ModelRequestRejected
from quire.llm import Model, Prompt
from quire.llm.protocol import DeferredModel
from quire.model import Compaction, Message
from quire.settings import Settings
from quire.settings.schema import ModelEntry, Upstream
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.view.budget import Calibration


def build_named(name: str) -> Model:
    return ScriptedModel("## Task\nAll is well [#1].", name=name, repeat=True)


def make_config(**settings: object) -> EngineConfig:
    return EngineConfig.create(Settings.model_validate({"model": "gpt-4o", **settings}), summarizer=build_named)


def test_the_model_that_answers_writes_the_summaries_and_changes_with_it() -> None:
    config = make_config()
    assert config.summarizer is not None
    assert (config.summarizer.model.name, config.summarizer.window) == ("gpt-4o", 128_000)
    assert config.summarizer.max_output_tokens == 16_384
    changed = config.with_changes(model="gpt-4")
    assert changed.summarizer is not None
    assert (changed.summarizer.model.name, changed.summarizer.window) == ("gpt-4", 8_192)
    without = changed.with_changes(summarizer=None).with_changes(model="gpt-4o")
    assert without.summarizer is None


def test_a_named_summarizer_stays_with_its_own_limits() -> None:
    named = EngineConfig.create(Settings(model="gpt-4o"), summarizer=ScriptedModel(name="claude-3-haiku"))
    changed = named.with_changes(model="gpt-4")
    assert changed.summarizer is not None
    assert (changed.summarizer.model.name, changed.summarizer.max_output_tokens) == ("claude-3-haiku", 4_096)


def test_the_settings_describe_the_summarizer() -> None:
    config = make_config(
        model="house",
        models={"house": ModelEntry(window=6_000, output_limit=700)},
        upstreams={"house": Upstream(base_url="http://127.0.0.1:1/v1", model="gpt-4o")},
        summary_prompt="Short.",
    )
    summarizer = config.summarizer
    assert summarizer is not None
    assert (summarizer.window, summarizer.max_output_tokens) == (6_000, 700)
    assert summarizer.token_counter.name == "o200k_base", "the tokenizer is that of the upstream's model"
    assert (summarizer.temperature, summarizer.prompt, summarizer.timeout) == (0.3, "Short.", 60)


async def test_documents_are_summarized_only_by_a_named_model(store: SqlStore) -> None:
    assert Engine(store, make_config()).document_summarizer is None
    named = EngineConfig.create(Settings(), summarizer=build_named("gpt-4o-mini"))
    assert Engine(store, named).document_summarizer is not None


async def test_a_provider_that_counts_more_tokens_gets_shorter_prompts(store: SqlStore) -> None:
    model = ScriptedModel("## Task\nAll is well [#1].", name="gpt-4o", repeat=True)
    settings = Settings(model="gpt-4o", context_limit=3_000, context_background_threshold=None, strategy="summarize")
    lengths: list[int] = []
    for id_, ratio in (("plain", 1.0), ("counted", 1.5)):
        engine = Engine(store, EngineConfig.create(settings, summarizer=model))
        engine.runtime.calibrations["gpt-4o"] = Calibration(ratio=ratio, samples=9)
        conversation = await engine.conversation(id_)
        for number in range(40):
            await conversation.append(f"Question {number}: " + "why " * 60, Message.assistant("so " * 60))
        model.max_prompt_tokens = 0
        entry = await conversation.compact()
        assert entry is not None
        assert isinstance(entry.body, Compaction)
        assert entry.body.model == "gpt-4o"
        lengths.append(model.max_prompt_tokens)
    assert lengths[1] < lengths[0] / 1.3


async def test_a_deferred_model_is_built_at_its_first_call() -> None:
    built: list[str] = []

    def build() -> Model:
        built.append("built")
        return ScriptedModel("Hello.", "Hello.")

    model = DeferredModel("later", build)
    assert (model.name, built) == ("later", [])
    prompt = Prompt(system=None, messages=(Message.user("Hi"),))
    assert (await model.complete(prompt)).message.text == "Hello."
    assert [chunk async for chunk in model.stream(prompt)]
    assert built == ["built"]


async def test_a_model_that_cannot_be_built_fails_the_call() -> None:
    def build() -> Model:
        raise MissingExtra(extra="llm", feature="Calling the model x")

    with pytest.raises(ModelRequestRejected, match="needs an extra package"):
        await DeferredModel("x", build).complete(Prompt(system=None, messages=(Message.user("Hi"),)))
