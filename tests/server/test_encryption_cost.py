"""What encryption costs: CPU time of a gateway turn of an encrypted tenant, divided by that of a plain one."""

import base64
import json
import statistics
from contextlib import AsyncExitStack
from time import process_time
from typing import Any

import pytest
from gateway_fixtures import run_gateway

from infra.scripted_provider import ScriptedReply, play, run_scripted_provider
from proxy.client_lists import Item, make_answer, make_calls, make_question, make_results
from quire.db.tenant_keys import TenantKeys
from quire.store import SqlStore
from quire.team.key_wrappers import LocalKeys

pytestmark = [pytest.mark.nightly, pytest.mark.every_database]

KEY = base64.b64encode(bytes(32)).decode()
REQUESTS = 120
TURNS = 10
"""Turns of a conversation. In long ones, most of the time goes into the client's list."""
RESULT_CHARS = 2_500
MAX_COST = 1.15


def encode(items: list[Item], system: str) -> bytes:
    body: Any = {"model": "m", "max_tokens": 500, "system": system, "messages": items}
    return json.dumps(body, ensure_ascii=False).encode()


async def test_a_turn_of_an_encrypted_tenant_costs_little_more(database_url: str):
    keys = TenantKeys(LocalKeys(lambda: KEY, source="The test"), lambda tenant: tenant == "encrypted")
    costs: dict[str, list[float]] = {"plain": [], "encrypted": [], "provider": []}
    async with AsyncExitStack() as stack:
        provider = stack.enter_context(run_scripted_provider(play(ScriptedReply("Noted. " * 100))))
        upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
        clients: dict[str, Any] = {}
        lists: dict[str, list[Item]] = {"plain": [], "encrypted": []}
        for name in lists:
            # A process without encryption, and one with it.
            store = await stack.enter_async_context(
                SqlStore.open(database_url, tenant=name, keys=keys if name == "encrypted" else None)
            )
            gateway = run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000)
            clients[name] = (await stack.enter_async_context(gateway)).http
        for number in range(REQUESTS):
            for name, items in lists.items():
                if number % TURNS == 0:
                    items.clear()
                call = [f"call_{number}"]
                items += [*make_question("messages", f"{name} {number}"), *make_calls("messages", call, "")]
                items += make_results("messages", call, RESULT_CHARS)
                raw = encode(items, name)
                urls = {name: "/v1/messages"} | (
                    {"provider": f"{provider.openai_url}/messages"} if name == "plain" else {}
                )
                for target, url in urls.items():
                    started = process_time()
                    answer = await clients[name].post(url, content=raw)
                    assert answer.status_code == 200, answer.text
                    costs[target].append(process_time() - started)
                items += make_answer("messages", "Noted. " * 100, "")
    # The client and the provider of this test run in the same process. The first requests fill caches.
    medians = {name: statistics.median(each[10:]) for name, each in costs.items()}
    ratio = (medians["encrypted"] - medians["provider"]) / (medians["plain"] - medians["provider"])
    assert ratio <= MAX_COST, (ratio, medians)
