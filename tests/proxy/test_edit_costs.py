"""What edits cost in a long session, with a provider that caches by its published rules."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pytest

from infra.simulated_cache import ClaudeSession, CodexSession, GrowingSession, SimulatedCache
from infra.sizes import IS_FULL_SIZE
from proxy.client_lists import EDITORS
from quire.model import Usage
from quire.model.entry_bodies import ContextEpoch
from quire.proxy.context_edits import DropTarget, LogTexts, RequestedEdits, edit_list, plan_epoch
from quire.view.model_specs import model_spec_for

STEPS, EDITS = (200, 30) if IS_FULL_SIZE else (60, 9)
PAUSE_EVERY, PAUSE_SECONDS, STEP_SECONDS = 20, 4_000, 30
"""The user pauses now and then for longer than any cache lives."""
MODELS = {"messages": "claude-sonnet-4-5", "responses": "gpt-5", "chat": "gpt-5"}

Choose = Callable[[GrowingSession, int, list[Any]], RequestedEdits]


class Request(NamedTuple):
    usage: Usage
    is_cold: bool

    @property
    def uncached_tokens(self) -> int:
        return self.usage.input_tokens - self.usage.cache_read_tokens


def run_session(make: type[GrowingSession], choose: Choose, quotes: dict[int, str] | None = None) -> list[Request]:
    """Runs a session whose edits wait until the cache is cold, as they do by default."""
    session = make(seed=4)
    session.body["model"] = MODELS[session.format]
    editor, cache = EDITORS[session.format], SimulatedCache(session.format)
    epoch: ContextEpoch | None = None
    requests: list[Request] = []
    now = 0.0
    for number in range(1, STEPS + 1):
        session.step()
        is_cold = number % PAUSE_EVERY == 0
        now += PAUSE_SECONDS if is_cold else STEP_SECONDS
        body = session.send()
        field = "input" if session.format == "responses" else "messages"
        requested = choose(session, number, body[field])
        epoch = plan_epoch(body[field], epoch, requested, editor, may_break=is_cold) or epoch
        if epoch is not None:
            body[field] = edit_list(body[field], epoch, LogTexts(quotes=quotes or {}), editor).apply(body[field])
        requests.append(Request(cache.serve(body, now), is_cold))
    return requests


def sum_dollars(requests: Collection[Request]) -> float:
    costs = [model_spec_for(each.usage.model or "").compute_cost(each.usage) for each in requests]
    assert all(cost.is_complete for cost in costs)
    return sum(cost.usd for cost in costs)


def leave(_: GrowingSession, _number: int, _items: list[Any]) -> RequestedEdits:
    return RequestedEdits()


def drop_results(session: GrowingSession, number: int, _: list[Any]) -> RequestedEdits:
    """One more result every six steps."""
    prefix = "toolu" if session.format == "messages" else "call"
    dropped = range(1, min(EDITS, number // 6) + 1)
    return RequestedEdits(drops=[DropTarget(each, [(f"{prefix}_{each * 5}", 700)], 200) for each in dropped])


@pytest.mark.parametrize("make", [ClaudeSession, CodexSession, GrowingSession])
def test_drops_cost_no_more_than_the_session_without_them(make: type[GrowingSession]):
    unedited, edited = (run_session(make, choose) for choose in (leave, drop_results))
    print(make.format, f"without ${sum_dollars(unedited):.3f}, with {EDITS} drops ${sum_dollars(edited):.3f}")
    assert edited[-1].usage.input_tokens < unedited[-1].usage.input_tokens - EDITS * 100
    assert sum_dollars(edited) <= sum_dollars(unedited)


@pytest.mark.parametrize("make", [ClaudeSession, CodexSession, GrowingSession])
def test_appended_pins_cost_their_own_tokens(make: type[GrowingSession]):
    quotes = {number: f"<quire:pinned>{number}: " + "a pinned decision " * 20 for number in range(1, EDITS + 1)}

    def quote(_: GrowingSession, number: int, _items: list[Any]) -> RequestedEdits:
        return RequestedEdits(quotes=range(1, min(EDITS, number // 6) + 1))

    unedited, edited = run_session(make, leave), run_session(make, quote, quotes)
    own = edited[-1].usage.input_tokens - unedited[-1].usage.input_tokens
    print(
        make.format, f"without ${sum_dollars(unedited):.3f}, with {EDITS} pins ${sum_dollars(edited):.3f}, {own} tokens"
    )
    assert own >= EDITS * 90
    before = 0
    for plain, pinned in zip(unedited, edited, strict=True):
        added = pinned.usage.input_tokens - plain.usage.input_tokens
        written = added if plain.is_cold else added - before
        # A provider that caches in blocks of 128 tokens may read one block less.
        assert pinned.uncached_tokens <= plain.uncached_tokens + written + 128
        before = added
