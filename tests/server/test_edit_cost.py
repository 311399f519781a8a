"""What an edited list costs: CPU time of the gateway per request, divided by that of the same list without edits."""

import json
import statistics
from time import process_time
from typing import Any

import pytest
from gateway_fixtures import run_gateway

from infra.scripted_provider import ScriptedReply, play, run_scripted_provider
from proxy.client_lists import Item, make_answer, make_calls, make_question, make_results
from quire.store import SqlStore

pytestmark = pytest.mark.nightly

TURNS = 100
RESULT_CHARS = 2_500
"""100 results of 2,500 characters with two bytes each: a list of 500 kB."""
DROPS = 20
REQUESTS = 60
MAX_COST = 1.3


def encode(items: list[Item], system: str) -> bytes:
    body: Any = {"model": "m", "max_tokens": 500, "system": system, "messages": items}
    return json.dumps(body, ensure_ascii=False).encode()


async def test_an_edited_list_costs_little_more_than_an_unedited_one(store: SqlStore):
    with run_scripted_provider(play(ScriptedReply("Noted."))) as provider:
        upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:

            async def send(raw: bytes, url: str = "/v1/messages") -> float:
                started = process_time()
                answer = await harness.http.post(url, content=raw)
                assert answer.status_code == 200, answer.text
                return process_time() - started

            lists: dict[str, list[Item]] = {}
            for name in ("edited", "unedited"):
                items = lists[name] = []
                for number in range(TURNS):
                    call = [f"call_{name}_{number}"]
                    items += [*make_question("messages", f"{name} {number}"), *make_calls("messages", call, "")]
                    items += [*make_results("messages", call, RESULT_CHARS), *make_answer("messages", "Noted.", "")]
                await send(encode(items[:-1], name))
                [main, *_] = await store.list_conversations()
                if name == "edited":
                    entries = await store.read_range(main.id, kinds=["message"])
                    for entry in [each for each in entries if each.role == "tool"][: DROPS * 3 : 3]:
                        body = {"seq": entry.seq, "now": True}
                        answer = await harness.http.post(f"/api/conversations/{main.id}/drops", json=body)
                        assert answer.is_success, answer.text
            costs: dict[str, list[float]] = {"edited": [], "unedited": [], "provider": []}
            for number in range(REQUESTS):
                for name, items in lists.items():
                    items += make_question("messages", f"more {number}")
                    raw = encode(items, name)
                    costs[name].append(await send(raw))
                    assert (b"dropped by the user" in provider.requests[-1].raw) == (name == "edited")
                    if name == "unedited":
                        costs["provider"].append(await send(raw, f"{provider.openai_url}/messages"))
                    items += make_answer("messages", "Noted.", "")
            # The client and the provider of this test run in the same process.
            own = statistics.median(costs["provider"])
            edited, unedited = (statistics.median(costs[name]) - own for name in ("edited", "unedited"))
            print(f"{edited * 1e3:.1f} ms edited, {unedited * 1e3:.1f} ms unedited, ratio {edited / unedited:.2f}")
            assert edited / unedited <= MAX_COST
