"""A turn of any length through the gateway: the client sends its whole list at each step, far beyond the window.

`LONG_TURN_STEPS=1000` runs the full size; the default is a size for every run of the tests.
"""

import json
import os
from itertools import pairwise
from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway, system_message, user_message

from fake_upstream import UpstreamRequest, make_completion, run_fake_upstream
from infra.long_turn import QUESTION, READ_TOOL, make_steps, measure_shared
from quire.log import SqlStore
from quire.model import Message
from quire.view.tokens import counter_for
from quire.view.wire_formats import OpenAIChatFormat

STEPS = int(os.environ.get("LONG_TURN_STEPS", "30"))
FORMAT = OpenAIChatFormat(MODEL)
TOOLS = [FORMAT.render_tool(READ_TOOL)]
MIN_MEAN_SHARES = {6_000: 0.50, 32_000: 0.85, 200_000: 0.95}
"""By window: mean part of each request that the next one repeats."""


def to_wire(message: Message) -> dict[str, Any]:
    [wire_message] = FORMAT.render_message(message)
    return wire_message


@pytest.mark.parametrize("window", MIN_MEAN_SHARES)
async def test_every_forwarded_request_of_a_long_turn_fits_and_extends_the_one_before(store: SqlStore, window: int):
    counter = counter_for(MODEL)
    replies = [(to_wire(step.reply), [to_wire(each) for each in step.results]) for step in make_steps(STEPS)]
    sizes: list[int] = []

    async def respond(request: UpstreamRequest) -> None:
        body = request.body
        assert FORMAT.check(body) == []
        assert any(message.get("content") == QUESTION for message in body["messages"])
        tokens = FORMAT.count_messages(body["messages"], counter) + FORMAT.count_tools(body["tools"], counter)
        sizes.append(tokens)
        usage = {"prompt_tokens": tokens, "completion_tokens": 9, "total_tokens": tokens + 9}
        reply = replies[len(sizes) - 1][0]
        await request.respond(make_completion(reply, "tool_calls", usage=usage))

    messages = [system_message("You audit ledgers."), user_message(QUESTION)]
    async with run_fake_upstream(respond) as up, run_gateway(store, up.url, context_limit=window) as harness:
        for reply, results in replies:
            response = await harness.ask(*messages, tools=TOOLS)
            assert response.status_code == 200, response.text
            messages += [reply, *results]
        sent = [json.dumps(body["messages"]).removesuffix("]").encode() for body in up.bodies]
        conversation = response.headers["x-quire-conversation"]
        compactions = await store.read_range(conversation, kinds=["compaction"])
    assert max(sizes) <= window
    shares = [measure_shared(before, after) for before, after in pairwise(sent)]
    assert sum(share < 1 for share in shares) <= len(compactions)
    assert sum(shares) / len(shares) >= MIN_MEAN_SHARES[window]
