"""A turn of any length through the gateway: the client sends its whole list at each step, far beyond the window."""

import json
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import pytest
from gateway_fixtures import run_gateway

from fake_upstream import UpstreamRequest, make_completion, run_fake_upstream
from infra.long_turn import QUESTION, READ_TOOL, make_steps, measure_shared
from infra.sizes import IS_FULL_SIZE
from quire.store import SqlStore
from quire.wire import WireFormat, WireMessage
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.messages.cache_markers import drop_cache_markers
from quire.wire.messages.render import AnthropicMessagesFormat
from quire.wire.tokens import counter_for

STEPS = 1_000 if IS_FULL_SIZE else 30
MIN_MEAN_SHARES = {6_000: 0.48, 32_000: 0.85, 200_000: 0.95}
"""By window: mean part of each request that the next one repeats. In the smallest one, two whole results of a step are
more than half of the window, so that every other step compacts."""


class WireShape(NamedTuple):
    """How a client of one format sends its list, and how the upstream replies."""

    model: str
    """Its own window is larger than all of those above."""
    wire_format: WireFormat
    path: str
    instructions: dict[str, Any]
    first_messages: list[WireMessage]
    respond: Callable[[WireMessage, int], dict[str, Any]]


def make_message(reply: WireMessage, tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 9}
    fields = {"id": "msg_1", "type": "message", "model": "m", "stop_reason": "tool_use", "stop_sequence": None}
    return {**fields, **reply, "usage": usage}


def make_chat_completion(reply: WireMessage, tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "completion_tokens": 9, "total_tokens": tokens + 9}
    return make_completion(reply, "tool_calls", usage=usage)


QUESTION_MESSAGE = {"role": "user", "content": QUESTION}
SHAPES = {
    "chat": WireShape(
        "gpt-4.1",
        OpenAIChatFormat("gpt-4.1"),
        "/v1/chat/completions",
        {},
        [{"role": "system", "content": "You audit ledgers."}, QUESTION_MESSAGE],
        make_chat_completion,
    ),
    "messages": WireShape(
        "claude-sonnet-4-5",
        AnthropicMessagesFormat("claude-sonnet-4-5"),
        "/v1/messages",
        {"system": "You audit ledgers.", "max_tokens": 1_000},
        [QUESTION_MESSAGE],
        make_message,
    ),
}


def strip_cache_markers(messages: list[WireMessage]) -> list[WireMessage]:
    """Cache markers move with every request, and are no content."""
    return [drop_cache_markers(message) if isinstance(message["content"], list) else message for message in messages]


@pytest.mark.parametrize("window", MIN_MEAN_SHARES)
@pytest.mark.parametrize("format_name", SHAPES)
async def test_every_forwarded_request_of_a_long_turn_fits_and_extends_the_one_before(
    store: SqlStore, format_name: str, window: int
):
    shape = SHAPES[format_name]
    wire_format, counter = shape.wire_format, counter_for(shape.model)
    render = wire_format.render_message
    steps = [
        (render(step.reply), [wire for each in step.results for wire in render(each)]) for step in make_steps(STEPS)
    ]
    tools = [wire_format.render_tool(READ_TOOL)]
    sizes: list[int] = []

    async def respond(request: UpstreamRequest) -> None:
        body = request.body
        assert wire_format.check(body) == []
        assert json.dumps(QUESTION) in json.dumps(body["messages"])
        tokens = wire_format.count_messages(body["messages"], counter) + wire_format.count_tools(body["tools"], counter)
        sizes.append(tokens)
        [reply] = steps[len(sizes) - 1][0]
        await request.respond(shape.respond(reply, tokens))

    messages, conversation = list(shape.first_messages), ""
    async with run_fake_upstream(respond) as up:
        upstreams = {"*": {"base_url": up.url, "speaks": [format_name], "overflow": "fit"}}
        async with run_gateway(store, up.url, upstreams=upstreams, context_limit=window) as harness:
            for reply, results in steps:
                body = {"model": shape.model, "messages": messages, "tools": tools, **shape.instructions}
                response = await harness.http.post(shape.path, json=body)
                assert response.status_code == 200, response.text
                messages += [*reply, *results]
                conversation = response.headers["x-quire-conversation"]
        sent = [json.dumps(strip_cache_markers(body["messages"])).removesuffix("]").encode() for body in up.bodies]
        compactions = await store.read_range(conversation, kinds=["compaction"])
    assert max(sizes) <= window
    shares = [measure_shared(before, after) for before, after in pairwise(sent)]
    assert sum(share < 1 for share in shares) <= len(compactions)
    assert sum(shares) / len(shares) >= MIN_MEAN_SHARES[window]


MIN_AGENT_SHARE = 0.85
"""Mean part of each request that the next one repeats."""
AGENT_CALLS, AGENT_WINDOW_TOKENS = (300, 200_000) if IS_FULL_SIZE else (40, 15_000)
"""Tool calls of an agent, which fill its own window. The upstream's is half as large."""
ENVIRONMENT = "# Environment\n - Primary working directory: /home/kay/harbour\n - Platform: linux"
REMINDER = {"role": "system", "content": "The task tools have not been used recently."}


async def test_requests_of_an_agent_do_not_flip_between_its_list_and_a_fitted_one(store: SqlStore):
    """The error of an estimate differs between the two, so that each report moves the boundary."""
    shape = SHAPES["messages"]
    wire_format, counter = shape.wire_format, counter_for(shape.model)
    mean_tokens = AGENT_WINDOW_TOKENS // AGENT_CALLS
    bounds = (mean_tokens // 3, mean_tokens)
    steps = list(make_steps(AGENT_CALLS, result_tokens=bounds, huge_result_tokens=mean_tokens, thinking=False))
    bodies: list[dict[str, Any]] = []

    async def respond(request: UpstreamRequest) -> None:
        body = request.body
        assert wire_format.check(body) == []
        tokens = wire_format.count_messages(body["messages"], counter) + wire_format.count_tools(body["tools"], counter)
        is_whole = body["messages"] == messages
        [reply] = wire_format.render_message(steps[len(bodies)].reply)
        bodies.append(body)
        await request.respond(shape.respond(reply, int(tokens * (1.6 if is_whole else 0.6))))

    messages: list[WireMessage] = [QUESTION_MESSAGE, {"role": "system", "content": ENVIRONMENT}]
    conversation = ""
    async with run_fake_upstream(respond) as up:
        upstreams = {"*": {"base_url": up.url, "speaks": ["messages"], "overflow": "fit"}}
        window = AGENT_WINDOW_TOKENS // 2
        async with run_gateway(store, up.url, upstreams=upstreams, context_limit=window) as harness:
            for number, step in enumerate(steps):
                body = {"model": shape.model, "messages": messages, **shape.instructions}
                response = await harness.http.post(
                    shape.path, json={**body, "tools": [wire_format.render_tool(READ_TOOL)]}
                )
                assert response.status_code == 200, response.text
                messages += wire_format.render_message(step.reply)
                messages += [wire for each in step.results for wire in wire_format.render_message(each)]
                messages += [REMINDER] if number % 7 == 6 else []
                conversation = response.headers["x-quire-conversation"]
        manifests = await store.list_manifests(conversation)
    forms = [
        manifest.forwarded.form for _, manifest in sorted(manifests, key=lambda each: each[0]) if manifest.forwarded
    ]
    assert len(forms) == AGENT_CALLS
    assert [form for form, _ in groupby(forms)] == ["unchanged", "fitted"]
    assert [number for number, body in enumerate(bodies) if "Primary working directory" not in json.dumps(body)] == []
    sent = [json.dumps(strip_cache_markers(body["messages"])).removesuffix("]").encode() for body in bodies]
    shares = [measure_shared(before, after) for before, after in pairwise(sent)]
    assert sum(shares) / len(shares) >= MIN_AGENT_SHARE
