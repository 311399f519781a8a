"""Why the prompt cache broke: planted causes are found with their place and tokens, and growth is no break."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from infra.agent_captures import load_capture
from infra.simulated_cache import ClaudeSession, CodexSession, GrowingSession, SimulatedCache
from infra.sizes import IS_FULL_SIZE
from quire.ledger.cache_breaks import CacheBreak, CachedRequest, find_cache_break
from quire.model import Usage
from quire.model.manifest import ProviderEdit
from quire.view.call_prices import UNKNOWN_COST, Cost
from quire.view.model_specs import model_spec_for
from quire.wire.codecs import CODECS
from quire.wire.prompt_prefix import find_prefix_change

Json = dict[str, Any]
Plant = Callable[[Json], Json | None]
"""Changes a body, and may return fields of the request that Quire knows from elsewhere."""

SESSIONS: dict[str, type[GrowingSession]] = {"claude": ClaudeSession, "codex": CodexSession, "chat": GrowingSession}
MINUTES = 60


def compute_cost(usage: Usage, model: str, at: datetime) -> Cost:
    return model_spec_for(model).compute_cost(usage, at=at) if model else UNKNOWN_COST


class Run:
    """A session at a provider, as the log has it."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.session = SESSIONS[name](seed)
        self.cache = SimulatedCache(self.session.format)
        self.seconds = 1_700_000_000.0
        self.replies = 0

    def send(self, body: Json | None = None, **known: Any) -> CachedRequest:
        body = body if body is not None else self.session.send()
        codec = CODECS[self.session.format]  # type: ignore[index]
        self.replies += 2
        raw = json.dumps(body, separators=(",", ":")).encode()
        request = CachedRequest(
            reply=self.replies,
            created_at=int(self.seconds * 1_000_000),
            model=body["model"],
            codec=codec,
            fields=json.loads(raw),
            cache_seconds=codec.get_cache_seconds(raw),
            usage=self.cache.serve(body, self.seconds),
            total_tokens=len(raw) // 4,
        )
        self.seconds += 20
        return replace(request, **known)

    def grow(self, steps: int) -> CachedRequest:
        request = self.send()
        for _ in range(steps):
            self.session.step()
            request = self.send()
        return request


def without_usage(request: CachedRequest) -> CachedRequest:
    return replace(request, usage=None)


# The planted causes: each changes the body of one request.


def set_value(body: Json, *path: Any, value: Any) -> None:
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


def change_text(body: Json, *path: Any, pattern: str, text: str) -> None:
    holder = body
    for key in path[:-1]:
        holder = holder[key]
    changed = re.sub(pattern, text, holder[path[-1]], count=1)
    assert changed != holder[path[-1]]
    holder[path[-1]] = changed


def add_block(body: Json, *path: Any, text: str) -> None:
    content = body
    for key in path:
        content = content[key]
    content.append({"type": "text", "text": text})  # type: ignore[attr-defined]


def reverse_tools(body: Json) -> None:
    body["tools"].reverse()


def remove_tool(body: Json, index: int) -> None:
    del body["tools"][index]


def add_tool(body: Json) -> None:
    body["tools"].append({"name": "mcp__new", "description": "New.", "input_schema": {"type": "object"}})


def unmark(body: Json) -> None:
    for block in body["messages"][-1]["content"]:
        block.pop("cache_control", None)


def append_blocks(body: Json) -> None:
    marked = body["messages"][-1]["content"][-1]
    marker = marked.pop("cache_control")
    extra = [{"type": "text", "text": f"Part {number}"} for number in range(25)]
    body["messages"].append({"role": "user", "content": [*extra, {**marked, "cache_control": marker}]})


def compact_claude(body: Json) -> Json:
    newest = body["messages"][-1]
    body["messages"] = [{"role": "user", "content": "This session is being continued. " + "Summary. " * 400}, newest]
    body["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.325.5be; cc_entrypoint=cli;"
    return {"summary": (None, 1, 40)}


def compact_codex(body: Json) -> None:
    body["input"][4:-1] = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "g" * 4_000}]


def compact_chat(body: Json) -> Json:
    body["messages"][1:-2] = [{"role": "user", "content": "What did we do so far? " * 100}]
    return {"summary": (None, 1, None)}


def stub_result(body: Json, *path: Any) -> Json:
    set_value(body, *path, value="[dropped by the user: ls, 900 characters; read #7]")
    return {"edits": (12, False)}


def strip_thinking(body: Json) -> None:
    for item in body["messages"]:
        if item["role"] == "assistant" and isinstance(item["content"], list):
            item["content"] = [block for block in item["content"] if block["type"] != "thinking"]


def clear_on_provider(body: Json) -> Json:
    """The provider edits its own side: the body only grows, and what is read ends at the system prompt."""
    return {"provider_edits": (ProviderEdit(type="clear_tool_uses_20250919", cleared_tool_uses=4),)}


def plant(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Plant:
    return lambda body: function(body, *args, **kwargs)


HOOK_TEXT = "<system-reminder>\nUserPromptSubmit hook success: 3 open tasks\n</system-reminder>"
FIRST_TEXT = ("messages", 0, "content", 0, "text")

CAUSES: list[tuple[str, str, str | None, Plant]] = [
    ("claude", "model", "model", plant(set_value, "model", value="claude-opus-4-6")),
    ("codex", "model", "model", plant(set_value, "model", value="gpt-5.4-mini")),
    ("chat", "model", "model", plant(set_value, "model", value="gpt-5.4-mini")),
    ("claude", "tools", "tools[12]", add_tool),
    ("claude", "tools", "tools[0]", reverse_tools),
    ("claude", "tools", "tools[5]", plant(remove_tool, 5)),
    ("claude", "tools", "tools[2]", plant(set_value, "tools", 2, "description", value="Changed.")),
    ("codex", "tools", "tools[0]", plant(set_value, "tools", value=[])),
    ("codex", "tools", "tools[3]", plant(remove_tool, 3)),
    ("chat", "tools", "tools[1]", plant(remove_tool, 1)),
    ("claude", "system", "system[2]", plant(change_text, "system", 2, "text", pattern="agent", text="assistant")),
    ("claude", "system", "system[3]", plant(add_block, "system", text="New rule.")),
    ("codex", "system", "input[0]",
     plant(change_text, "input", 0, "content", 0, "text", pattern="precise", text="bold")),
    ("chat", "system", "messages[0]", plant(change_text, "messages", 0, "content", pattern="careful", text="bold")),
    ("claude", "timestamp", "messages[0]", plant(change_text, *FIRST_TEXT, pattern=r"09:15:02", text="10:47:33")),
    ("codex", "timestamp", "input[2]",
     plant(change_text, "input", 2, "content", 0, "text", pattern=r"2026-11-16", text="2026-11-17")),
    ("chat", "timestamp", "messages[0]",
     plant(change_text, "messages", 0, "content", pattern="Tuesday, 17 November", text="Friday, 4 December")),
    ("claude", "hook", "messages[0]", plant(change_text, *FIRST_TEXT, pattern="branch main", text="branch dev")),
    ("claude", "hook", "messages[5]", plant(add_block, "messages", 5, "content", text=HOOK_TEXT)),
    ("claude", "hook", "messages[0]", plant(change_text, *FIRST_TEXT, pattern="SessionStart hook.*", text="Hello.")),
    ("claude", "marker", "messages[30]", unmark),
    ("claude", "marker", "messages[30]", append_blocks),
    ("claude", "compaction", "messages[0]", compact_claude),
    ("codex", "compaction", "input[4]", compact_codex),
    ("chat", "compaction", "messages[1]", compact_chat),
    ("claude", "edit", "messages[5]", plant(stub_result, "messages", 5, "content", 0, "content")),
    ("codex", "edit", "input[6]", plant(stub_result, "input", 6, "output")),
    ("chat", "edit", "messages[3]", plant(stub_result, "messages", 3, "content")),
    ("claude", "reasoning", "messages[2]", strip_thinking),
    ("claude", "parameter", "output_config.effort", plant(set_value, "output_config", "effort", value="high")),
    ("codex", "parameter", "reasoning.effort", plant(set_value, "reasoning", "effort", value="high")),
    ("claude", "message", "messages[7]", plant(set_value, "messages", 7, "content", 0, "content", value="Other.")),
    ("chat", "message", "messages[5]", plant(set_value, "messages", 5, "content", value="Other.")),
]  # fmt: skip


def check_break(run: Run, before: CachedRequest, after: CachedRequest, cached: int) -> CacheBreak:
    """Finds the break, whose tokens are those that the provider had cached and did not read."""
    found = find_cache_break(before, after, compute_cost)
    assert found is not None
    assert after.usage is not None
    read = after.usage.cache_read_tokens
    assert (found.reply, found.previous) == (after.reply, before.reply)
    assert (found.tokens, found.read_tokens) == (min(cached, after.usage.input_tokens) - read, read)
    assert found.tokens
    assert not found.is_estimated
    return found


@pytest.mark.parametrize(
    ("name", "kind", "place", "change"), CAUSES, ids=[f"{each[0]}-{each[1]}-{each[2]}" for each in CAUSES]
)
def test_a_planted_cause_is_found_with_its_place_and_tokens(name: str, kind: str, place: str | None, change: Plant):
    run = Run(name)
    before = run.grow(12)
    cached = run.cache.cached_tokens
    run.session.step()
    body = run.session.send()
    known = change(body) or {}
    after = run.send(body, **known)
    found = check_break(run, before, after, cached)
    assert (found.kind, found.place) == (kind, place)
    # Without a usage, what changed is found all the same; parameters may leave the cache whole.
    unreported = find_cache_break(without_usage(before), without_usage(after), compute_cost)
    if kind == "parameter":
        assert unreported is None
    else:
        assert unreported is not None
        assert (unreported.kind, unreported.detail, unreported.place) == (found.kind, found.detail, found.place)
        assert unreported.is_estimated
        assert unreported.cost_usd is None


@pytest.mark.parametrize(("name", "minutes"), [("claude", 6), ("claude", 70), ("codex", 30), ("chat", 30)])
def test_an_expired_cache_is_found(name: str, minutes: int):
    run = Run(name)
    if minutes > 60:
        for block in run.session.body["system"][1:]:
            block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    before = run.grow(12)
    cached = run.cache.cached_tokens
    run.session.step()
    run.seconds += minutes * MINUTES
    found = check_break(run, before, run.send(), cached)
    assert found.kind == "expired"
    assert found.seconds == minutes * MINUTES + 20


def test_what_the_provider_cleared_or_evicted_is_found():
    for known, kind in ((clear_on_provider({}), "provider_edit"), ({}, "evicted")):
        run = Run("claude")
        before = run.grow(12)
        cached = run.cache.cached_tokens
        run.session.step()
        run.cache.entries.clear()
        assert check_break(run, before, run.send(**known), cached).kind == kind


def test_requests_that_only_grow_break_nothing():
    """A thousand requests at full size."""
    total, steps = 0, 50 if IS_FULL_SIZE else 25
    for seed, name in enumerate([*["claude"] * 8, *["codex"] * 6, *["chat"] * 6][:: 1 if IS_FULL_SIZE else 5]):
        run = Run(name, seed)
        run.session.words = 30
        before = run.send()
        for _ in range(steps):
            run.session.step()
            after = run.send()
            assert find_prefix_change(CODECS[run.session.format], before.fields, after.fields) is None  # type: ignore
            assert find_cache_break(before, after, compute_cost) is None
            assert find_cache_break(without_usage(before), without_usage(after), compute_cost) is None
            before, total = after, total + 1
    assert total == (1_000 if IS_FULL_SIZE else 100)


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("claude_code_session", {5: ("compaction", "messages[0]")}),
        ("codex_session", {}),
        ("codex_compaction", {1: ("tools", "tools[0]"), 2: ("compaction", "tools[0]")}),
    ],
)
def test_captured_sessions(name: str, pairs: dict[int, tuple[str, str]]):
    """The list grows, its last message too; the first request after a compaction has another list."""
    codec = CODECS["responses" if name.startswith("codex") else "messages"]
    bodies = [each.body for each in load_capture(name)]
    summaries = [(None, 1, None) if index >= max(pairs, default=len(bodies)) else None for index in range(len(bodies))]
    requests = [
        CachedRequest(
            reply=index,
            created_at=0,
            model=body["model"],
            codec=codec,
            fields=body,
            total_tokens=9_000,
            summary=summary,
        )
        for index, (body, summary) in enumerate(zip(bodies, summaries, strict=True))
    ]
    found = [find_cache_break(*pair, compute_cost) for pair in pairwise(requests)]
    assert {each.reply: (each.kind, each.place) for each in found if each is not None} == pairs


def test_the_cost_is_that_of_writing_instead_of_reading():
    run = Run("claude")
    run.session.body["model"] = "claude-sonnet-4-5"
    before = run.grow(8)
    run.session.step()
    body = run.session.send()
    change_text(body, *FIRST_TEXT, pattern="branch main", text="branch dev")
    found = find_cache_break(before, run.send(body), compute_cost)
    assert found is not None
    assert found.tokens is not None
    # Dollars for a million tokens: 3 for input, a quarter more to write, a tenth to read.
    assert found.cost_usd == pytest.approx(found.tokens * (3.75 - 0.3) / 1_000_000)


def test_without_bodies_the_model_the_time_and_the_tokens_are_compared():
    run = Run("claude")
    before = run.grow(8)
    run.session.step()
    run.cache.entries.clear()
    after = run.send()
    bare = partial(replace, codec=None, fields=None)
    unknown = find_cache_break(bare(before), bare(after), compute_cost)
    assert unknown is not None
    assert (unknown.kind, unknown.place) == ("unknown", None)
    other = find_cache_break(bare(before), bare(after, model="claude-opus-4-6"), compute_cost)
    assert other is not None
    assert other.kind == "model"
    late = bare(after, created_at=before.created_at + 400_000_000)
    expired = find_cache_break(bare(before), late, compute_cost)
    assert expired is not None
    assert expired.kind == "expired"


def test_a_provider_that_serves_a_changed_prompt_has_not_broken():
    """The usage decides: what Quire takes for a change may be none to the provider."""
    run = Run("claude")
    before = run.grow(8)
    run.session.step()
    after = run.send()
    fields = json.loads(json.dumps(after.fields))
    fields["messages"][3]["content"][0]["content"] = "Other."
    assert find_cache_break(before, replace(after, fields=fields), compute_cost) is None
    assert find_cache_break(without_usage(before), replace(after, fields=fields, usage=None), compute_cost) is not None
