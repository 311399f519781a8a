"""The engine and the table of models: which window, tokenizer and price a request has, and what an overflow teaches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.agent.turn import run_turn
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.reported_windows import (
    MIN_REPORTED_WINDOW_TOKENS,
    REPORTED_WINDOW_CACHE_SIZE,
    REPORTED_WINDOW_SECONDS,
    ModelEndpoint,
    ReportedWindows,
    is_credible,
)
from quire.errors import ModelContextOverflow
from quire.model import Message, Policy, Usage
from quire.model.events import RequestPrepared, TurnEnded, TurnFailed
from quire.rows.manifests import UNKNOWN_WINDOW
from quire.settings import Settings
from quire.settings.schema import ModelEntry
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.view.strategies import get_strategy
from quire.wire.tokens import warn_once

TEXT = "Road dry, weather held, and we met no one until noon. "


def make_config(**settings: Any) -> EngineConfig:
    return EngineConfig.create(Settings.model_validate(settings))


def make_engine(store: SqlStore, **settings: Any) -> Engine:
    return Engine(store, make_config(**settings))


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({"model": "gpt-4"}, 8_192),
        ({"model": "gpt-4", "context_limit": 2_000}, 2_000),
        ({"model": "gpt-4", "context_limit": 128_000}, 8_192),
        ({"model": "gpt-4", "models": {"gpt-4": {"window": 32_768}}}, 32_768),
        ({"model": "gpt-4", "models": {"gpt-*": {"window": 32_768}}, "context_limit": 9_000}, 9_000),
        ({"model": "my-own"}, UNKNOWN_WINDOW),
        ({"model": "my-own", "context_limit": 32_000}, 32_000),
        ({"model": "my-own", "context_limit": 32_000, "models": {"my-*": {"window": 16_000}}}, 16_000),
    ],
)
def test_a_models_own_window_always_bounds_and_context_limit_is_an_upper_limit(settings: dict[str, Any], window: int):
    assert make_config(**settings).policy.window == window


def test_another_model_has_its_own_window_tokenizer_and_price():
    entry = {"tokenizer": "qwen3", "input_price": 100.0, "output_price": 100.0}
    config = make_config(model="gpt-4o", context_limit=100_000, models={"gpt-4o": entry})
    usage = Usage(input_tokens=1_000_000)
    assert (config.model_spec.tokenizer, config.compute_cost(usage, "gpt-4o").usd) == ("qwen3", 100.0)
    other = config.with_changes(model="gpt-4")
    assert (other.policy.window, other.model_spec.tokenizer) == (8_192, "cl100k_base")
    assert other.compute_cost(usage, "gpt-4").usd == 30.0
    back = other.with_changes(model="gpt-4o")
    assert (back.policy.window, back.model_spec.tokenizer) == (100_000, "qwen3")
    assert back.compute_cost(usage, "gpt-4o").usd == 100.0


def test_tools_that_a_client_has_chosen_may_take_the_whole_budget():
    assert make_config(strategy="hybrid").client_shares == {**get_strategy("hybrid").shares, "tools": 1.0}
    assert make_config(shares={"system": 0.5, "tools": 0.1}).client_shares == {"system": 0.5, "tools": 1.0}


def test_costs_and_limits_come_from_the_table():
    models = {"my-*": {"output_limit": 200, "input_price": 2.0, "cached_input_price": 0.5, "output_price": 4.0}}
    config = make_config(model="my-own", models=models)
    assert config.policy.reserved_response_tokens == 200
    usage = Usage(input_tokens=3_000_000, cache_read_tokens=1_000_000, output_tokens=1_000_000)
    assert config.compute_cost(usage, "my-own").usd == 2 * 2.0 + 0.5 + 4.0


def test_a_summarizer_has_the_limits_of_its_own_entry():
    models = {"small": {"window": 3_000, "output_limit": 300, "tokenizer": "llama3"}}
    settings = Settings.model_validate({"model": "gpt-4o", "models": models})
    config = EngineConfig.create(settings, summarizer=ScriptedModel("", name="small"))
    assert config.summarizer is not None
    assert (config.summarizer.window, config.summarizer.max_output_tokens) == (3_000, 300)
    assert config.summarizer.token_counter.name == "llama3"


async def test_the_savings_of_a_compaction_use_the_price_of_the_table(store: SqlStore):
    models = {"my-own": {"window": 2_000, "tokenizer": "o200k_base", "input_price": 1_000_000.0, "output_price": 0.0}}
    conversation = await make_engine(store, model="my-own", models=models).conversation("c")
    await conversation.append(*[f"{number} " + TEXT * 10 for number in range(12)])
    entry = await conversation.compact()
    assert entry is not None
    assert entry.body.savings_per_request == entry.body.tokens_before - entry.body.tokens_after  # pyright: ignore


async def test_an_unknown_tokenizer_and_an_unknown_model_give_an_estimate_that_says_so(
    store: SqlStore, caplog: pytest.LogCaptureFixture
):
    warn_once.cache_clear()
    engine = make_engine(store, model="never-heard-of", models={"*": {"tokenizer": "no-such-vocabulary"}})
    request = await (await engine.conversation("c")).prepare("Hello")
    assert not request.manifest.exact
    assert not (await Conversation(engine, "c").usage()).exact
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("'no-such-vocabulary'" in text and "estimated" in text for text in warnings)
    assert any("'never-heard-of'" in text and "not known" in text and "[models." in text for text in warnings)


def test_a_known_model_needs_no_warning():
    assert make_config(model="gpt-4o").model_problem is None
    assert make_config(model="my-own", context_limit=4_000).model_problem is None
    assert make_config(model="my-own", models={"my-*": {"window": 4_000}}).model_problem is None


async def test_a_model_without_a_known_window_is_sent_its_whole_history(store: SqlStore):
    engine = make_engine(store, model="my-own", models={"my-own": {"tokenizer": "o200k_base"}})
    conversation = await engine.conversation("c")
    await conversation.append(*[f"{number} {TEXT * 40}" for number in range(60)])
    request = await conversation.prepare("go")
    assert request.tokens > 25_000
    assert (request.compactions, len(request.to_chat()["messages"])) == ((), 61)
    assert not engine.config.policy.has_known_window
    [row] = [each for each in engine.config.model_problem.split(". ") if "Set" in each]  # pyright: ignore
    assert row == 'Set `window` and `tokenizer` under `[models."my-own"]` in the settings.'


@pytest.mark.parametrize("names_window", [True, False])
async def test_a_refusal_teaches_a_window_that_was_not_known(store: SqlStore, names_window: bool):
    engine = make_engine(store, model="my-own", models={"my-own": {"tokenizer": "o200k_base"}}, summarizer="extract")
    conversation = await engine.conversation("c")
    await conversation.append(*[f"{number} {TEXT * 40}" for number in range(60)])
    refusal = ModelContextOverflow("too long", status=400, window=16_000 if names_window else None)
    model = ScriptedModel(refusal, "ok", name="my-own", repeat=True)
    [tokens] = await run_questions(conversation, model, 1)
    assert len(tokens) == 2
    window = 16_000 if names_window else tokens[0]
    assert engine.policy.window == window
    assert tokens[1] < window < UNKNOWN_WINDOW
    assert engine.policy.has_known_window


async def test_a_document_takes_few_tokens_of_a_window_that_is_not_known(store: SqlStore, tmp_path: Path):
    (tmp_path / "Log.md").write_text("# Log\n\n" + TEXT * 4_000)
    config = EngineConfig.create(
        Settings(model="my-own", models={"my-own": ModelEntry(tokenizer="o200k_base")}), vault=tmp_path
    )
    request = await (await Engine(store, config).conversation("c")).prepare("What is in [[Log]]?")
    assert request.tokens < 10_000


# Reported windows


async def run_questions(conversation: Conversation, model: ScriptedModel, count: int) -> list[list[int]]:
    """Asks `count` questions; returns the tokens of the requests of each one, which must be answered."""
    requests: list[list[int]] = []
    for number in range(count):
        events = [event async for event in run_turn(conversation, f"go {number}", model=model)]
        assert isinstance(events[-1], TurnEnded), events[-1]
        requests.append([event.tokens for event in events if isinstance(event, RequestPrepared)])
    return requests


async def fill(conversation: Conversation, count: int = 60) -> None:
    for number in range(count):
        await conversation.append(f"m{number} {TEXT * 8}", Message.assistant("ok"))


@pytest.mark.parametrize(("configured", "real"), [(8_000, 1_000), (16_000, 2_000), (4_096, 512), (8_000, 4_000)])
async def test_a_turn_continues_after_one_correction_of_the_window(store: SqlStore, configured: int, real: int):
    engine = make_engine(store, model="gpt-4o", context_limit=configured)
    conversation = await engine.conversation("c")
    await fill(conversation)
    model = ScriptedModel("ok", window=real, name="gpt-4o", repeat=True)
    requests = await run_questions(conversation, model, 3)
    assert [len(each) for each in requests] == [2, 1, 1]
    assert requests[0][0] > real
    assert max(tokens for each in requests for tokens in each[-1:]) <= real
    assert engine.policy.window == real


async def test_a_corrected_window_holds_for_the_tenant_that_saw_the_error(store: SqlStore):
    engine = make_engine(store, model="gpt-4o", context_limit=8_000)
    other = Engine(store.for_tenant("other"), engine.config)
    conversation = await engine.conversation("c")
    await fill(conversation)
    await run_questions(conversation, ScriptedModel("ok", window=1_000, repeat=True), 1)
    assert (engine.policy.window, other.policy.window) == (1_000, 8_000)
    assert engine.with_changes(model="gpt-4").policy.window == 8_000
    assert engine.with_changes(base_url="http://elsewhere/v1").policy.window == 8_000


LIES: dict[str, Callable[[int], ModelContextOverflow]] = {
    "a count far above ours": lambda tokens: ModelContextOverflow(tokens=3 * tokens, window=600),
    "a count far below ours": lambda tokens: ModelContextOverflow(tokens=tokens // 3, window=600),
    "a request that fits": lambda tokens: ModelContextOverflow(tokens=tokens, window=7_000),
    "no count, far from the window": lambda tokens: ModelContextOverflow("prompt is too long"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_error_changes_nothing(store: SqlStore, lie: str):
    engine = make_engine(store, model="gpt-4o", context_limit=8_000)
    conversation = await engine.conversation("c")
    await fill(conversation, 20)
    error = LIES[lie]((await conversation.prepare("go")).tokens)
    model = ScriptedModel(error, "fine")
    events = [event async for event in run_turn(conversation, "go", model=model)]
    assert isinstance(events[-1], TurnFailed)
    assert events[-1].error is error
    assert engine.policy.window == 8_000
    assert (await engine.runtime.load_calibration(engine.store, "gpt-4o")).samples == 0
    assert (await store.get_branch("c")).state.compaction_count == 0
    await run_questions(conversation, model, 1)


async def test_the_summarizer_stays_within_a_reported_window(store: SqlStore):
    model = ScriptedModel("ok", window=1_000, name="gpt-4o", repeat=True)
    settings = Settings(model="gpt-4o", context_limit=8_000)
    engine = Engine(store, EngineConfig.create(settings, summarizer=model))
    engine.runtime.reported_windows.add(1_000, engine.config.endpoint)
    assert engine.summarizer is not None
    assert engine.summarizer.window == 1_000


HERE = ModelEndpoint("http://here/v1", "m")


def test_a_report_belongs_to_an_upstream_and_a_model():
    windows = ReportedWindows()
    windows.add(600, HERE)
    assert windows.find(HERE) == 600
    assert windows.find(HERE._replace(base_url="http://elsewhere/v1")) is None
    assert windows.find(HERE._replace(model="other")) is None


def test_a_report_expires():
    time = 0.0
    windows = ReportedWindows(clock=lambda: time)
    windows.add(600, HERE)
    time = REPORTED_WINDOW_SECONDS - 1
    assert windows.find(HERE) == 600
    time = REPORTED_WINDOW_SECONDS + 1
    assert windows.find(HERE) is None


def test_the_number_of_reports_is_bounded():
    windows = ReportedWindows()
    for number in range(REPORTED_WINDOW_CACHE_SIZE + 10):
        windows.add(600, HERE._replace(model=f"m{number}"))
    assert windows.find(HERE._replace(model="m0")) is None
    assert windows.find(HERE._replace(model=f"m{REPORTED_WINDOW_CACHE_SIZE}")) == 600


@pytest.mark.parametrize("window", [-1, 0, 4, MIN_REPORTED_WINDOW_TOKENS - 1])
def test_a_window_below_the_minimum_is_not_learned(window: int):
    windows = ReportedWindows()
    windows.add(window, HERE)
    assert windows.find(HERE) is None


POLICY = Policy(model="m", wire_format="chat", window=4_512, reserved_response_tokens=512)


def test_a_reported_window_only_ever_shrinks_the_window_and_shrinks_the_reserve_with_it():
    windows = ReportedWindows()
    assert windows.limit_policy(POLICY, HERE) is POLICY
    windows.add(9_000, HERE)
    assert windows.limit_policy(POLICY, HERE) is POLICY
    windows.add(600, HERE)
    limited = windows.limit_policy(POLICY, HERE)
    assert (limited.window, limited.reserved_response_tokens, limited.max_input_tokens) == (600, 300, 300)


@pytest.mark.parametrize(
    ("error", "credible"),
    [
        (ModelContextOverflow(tokens=1_000, window=900), True),
        (ModelContextOverflow(tokens=1_900, window=900), True),
        (ModelContextOverflow(tokens=2_100, window=900), False),
        (ModelContextOverflow(tokens=400, window=300), False),
        (ModelContextOverflow(tokens=1_000, window=1_400), True),
        (ModelContextOverflow(tokens=1_000, window=1_600), False),
        (ModelContextOverflow(tokens=5_000, window=900, is_structured=True), True),
        (ModelContextOverflow(), False),
    ],
)
def test_a_count_in_a_message_must_agree_with_ours(error: ModelContextOverflow, credible: bool):
    assert is_credible(error, counted_tokens=1_000, policy=POLICY) is credible


def test_an_error_without_counts_is_credible_near_the_window():
    assert is_credible(ModelContextOverflow(), counted_tokens=2_500, policy=POLICY)
