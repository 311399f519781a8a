"""What the gateway charges, caps and reports is the sum of the provider's calls, for each tenant, in every format."""

from collections import Counter
from random import Random
from typing import Any

import httpx2
import pytest
from format_clients import FORMATS, Json
from gateway_fixtures import run_gateway
from server_helpers import create_key_for

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedReply,
    ScriptedUsage,
    WireFormatName,
    run_scripted_provider,
)
from infra.sizes import IS_FULL_SIZE
from quire.store import SqlStore

MODELS: dict[WireFormatName, str] = {
    "chat": "gpt-4o", "messages": "claude-sonnet-4-5", "responses": "gpt-5", "gemini": "gemini-2.5-pro",
}  # fmt: skip
INPUT_AND_OUTPUT_PRICES = {
    "gpt-4o": (2.5, 10), "claude-sonnet-4-5": (3, 15), "gpt-5": (1.25, 10), "gemini-2.5-pro": (1.25, 10),
}  # fmt: skip
"""US dollars for a million tokens."""
TENANTS = ("ada", "bob")
STEPS = 200 if IS_FULL_SIZE else 24


class Provider:
    """Answers with random counts of tokens, and adds up what it bills each tenant."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.billed, self.calls = Counter[str](), Counter[str]()

    def reply(self, request: ProviderRequest) -> ScriptedReply:
        tenant = next(each for each in TENANTS if f"I am {each}." in request.raw.decode())
        sent, received = self._random.randint(1_000, 9_000), self._random.randint(1, 900)
        of_input, of_output = INPUT_AND_OUTPUT_PRICES[request.model]
        self.billed[tenant] += sent * of_input + received * of_output  # pyright: ignore[reportArgumentType]
        self.calls[tenant] += 1
        return ScriptedReply(f"Answer {sum(self.calls.values())}.", usage=ScriptedUsage(sent, output_tokens=received))


class Client:
    """One tenant, with one growing list in each format."""

    def __init__(self, tenant: str, key: str, http: httpx2.AsyncClient, random: Random) -> None:
        self._tenant, self._http, self._random = tenant, http, random
        self.headers = {"authorization": f"Bearer {key}"}
        self._histories: dict[WireFormatName, list[tuple[str, str]]] = {each: [] for each in FORMATS}

    async def step(self) -> None:
        """Asks a question: at the end of a list or an earlier place, or in another conversation."""
        wire_format = self._random.choice(FORMATS)
        history = self._histories[wire_format]
        if self._random.random() < 0.2:
            del history[self._random.randint(0, len(history)) // 2 * 2 :]
        self.headers.pop("x-quire-conversation", None)
        if self._random.random() < 0.2:
            self.headers["x-quire-conversation"] = f"copy-{self._tenant}-{self._random.random()}"
        history.append(("user", f"I am {self._tenant}. Question {self._random.random()}"))
        answer = await self._ask(wire_format, history)
        history.append(("assistant", answer))

    async def _ask(self, wire_format: WireFormatName, history: list[tuple[str, str]]) -> str:
        model = MODELS[wire_format]
        items: list[Json] = [{"role": role, "content": text} for role, text in history]
        match wire_format:
            case "chat":
                body = await self._post("/v1/chat/completions", {"model": model, "messages": items})
                return body["choices"][0]["message"]["content"]
            case "messages":
                body = await self._post("/v1/messages", {"model": model, "messages": items, "max_tokens": 900})
                return body["content"][0]["text"]
            case "responses":
                body = await self._post("/v1/responses", {"model": model, "input": items})
                return body["output"][0]["content"][0]["text"]
            case "gemini":
                roles = {"user": "user", "assistant": "model"}
                contents = [{"role": roles[role], "parts": [{"text": text}]} for role, text in history]
                body = await self._post(f"/v1beta/models/{model}:generateContent", {"contents": contents})
                return body["candidates"][0]["content"]["parts"][0]["text"]

    async def _post(self, path: str, body: Json) -> Any:
        response = await self._http.post(path, json=body, headers=self.headers, timeout=120)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.mark.parametrize("max_spend", [None, 1_000.0], ids=["no-cap", "cap"])
async def test_stats_caps_and_conversations_are_the_sum_of_the_calls(store: SqlStore, max_spend: float | None):
    random = Random(33)
    scripted = Provider(random)
    with run_scripted_provider(scripted.reply) as provider:
        upstreams: Json = {
            MODELS[each]: {
                "base_url": provider.url if each == "gemini" else provider.openai_url,
                "speaks": [each],
                "api_key_env": "UP_KEY",
            }
            for each in FORMATS
        }
        async with run_gateway(
            store, provider.openai_url, timeout_seconds=120, upstreams=upstreams, max_spend=max_spend
        ) as harness:
            clients = {
                tenant: Client(tenant, await create_key_for(store, tenant), harness.http, Random(number))
                for number, tenant in enumerate(TENANTS)
            }
            for _ in range(STEPS):
                await clients[random.choice(TENANTS)].step()
            await harness.server_state.wait_for_background()
            stats = {
                tenant: (await harness.http.get("/api/stats", headers=client.headers)).json()
                for tenant, client in clients.items()
            }
    for tenant in TENANTS:
        billed = scripted.billed[tenant] / 1e6
        own = store.for_tenant(tenant)
        while await own.usage.count():
            pass
        totals = (await own.usage.read_report()).totals
        assert (totals.requests, totals.unpriced_requests) == (scripted.calls[tenant], 0)
        assert totals.cost_nanos / 1e9 == pytest.approx(billed, abs=1e-7)
        assert sum((await own.spending.sum_by_key()).values()) == pytest.approx(billed, abs=1e-9)
        costs = [await own.get_conversation_cost(each.id) for each in await own.list_conversations(limit=1_000)]
        assert sum(costs) == pytest.approx(billed, abs=1e-9)
        assert stats[tenant]["totals"]["cost_usd"] == pytest.approx(billed, abs=1e-7)
