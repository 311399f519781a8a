"""Clients that retry through faults and remember every turn that was acknowledged to them.

A gateway client holds its own list of messages, as OpenAI clients do; a send client names the last entry it knows
(`after`). A turn is acknowledged when its complete reply has arrived.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

Turns = list[tuple[str, str]]
"""Role and text of messages, oldest first."""

CONVERSATION_TURNS = 30
"""Turns after which a client begins another conversation."""
REQUEST_TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = 0.1

_EXPECTED_STATUSES = {409, 429, 500, 502, 503, 504}
_FILLER = "How does the mill run today, what of the weir, and who minds the race while the miller is away? " * 3


@dataclass
class FaultClient(ABC):
    """One user with one turn at a time. A question without a reply is sent again, to the next node."""

    ports: Sequence[int]
    """Ports of the nodes."""
    key: str
    name: str
    acknowledged: dict[str, Turns] = field(default_factory=dict[str, Turns])
    """By conversation."""
    acknowledged_at: list[float] = field(default_factory=list[float])
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Outcomes of attempts."""
    unexpected: list[str] = field(default_factory=list[str])
    longest_seconds: float = 0.0
    """Of one attempt."""
    _attempts: int = 0

    @property
    def turn_count(self) -> int:
        return len(self.acknowledged_at)

    async def run(self, ending: asyncio.Event, *, turns_after: int, pause_seconds: float = 0.0) -> None:
        """Runs turns until `ending` is set, and then some more: the service has to resume."""
        async with httpx2.AsyncClient(timeout=REQUEST_TIMEOUT_SECONDS) as http:
            while turns_after > 0:
                turns_after -= ending.is_set()
                await self._run_turn(http)
                await asyncio.sleep(pause_seconds)

    async def _run_turn(self, http: httpx2.AsyncClient) -> None:
        conversation = f"talk-{self.name}-{self.turn_count // CONVERSATION_TURNS}"
        turns = self.acknowledged.setdefault(conversation, [])
        question = f"{conversation}, turn {len(turns) // 2}. {_FILLER}"
        while True:
            started = time.monotonic()
            try:
                reply = await self._ask(http, conversation, turns, question)
            except httpx2.HTTPError as error:
                self.statuses[type(error).__name__] += 1
                reply = None
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
            self._attempts += 1
            if reply is not None:
                break
            await asyncio.sleep(RETRY_SECONDS)
        turns += [("user", question), ("assistant", reply)]
        self.acknowledged_at.append(time.monotonic())

    @property
    def _base_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[self._attempts % len(self.ports)]}"

    @abstractmethod
    async def _ask(self, http: httpx2.AsyncClient, conversation: str, turns: Turns, question: str) -> str | None:
        """Returns the reply; None if it did not arrive completely."""

    async def _is_refused(self, response: httpx2.Response) -> bool:
        """Counts a response by its status; whether it is an error."""
        if response.status_code < 400:
            self.statuses[str(response.status_code)] += 1
            return False
        body = (await response.aread()).decode(errors="replace")
        code = _parse_code(body)
        self.statuses[f"{response.status_code} {code}".strip()] += 1
        if response.status_code not in _EXPECTED_STATUSES or code == "unexpected":
            self.unexpected.append(f"{response.status_code}: {body[:500]}")
        return True


class GatewayClient(FaultClient):
    """Every other request is streamed."""

    async def _ask(self, http: httpx2.AsyncClient, conversation: str, turns: Turns, question: str) -> str | None:
        is_streamed = self.turn_count % 2 == 1
        messages = [{"role": role, "content": text} for role, text in (*turns, ("user", question))]
        body = {"model": "echo", "messages": messages, "stream": is_streamed}
        headers = {"Authorization": f"Bearer {self.key}", "X-Quire-Conversation": conversation}
        url = f"{self._base_url}/v1/chat/completions"
        async with http.stream("POST", url, json=body, headers=headers) as response:
            if await self._is_refused(response):
                return None
            data = await response.aread()
        if response.headers.get("x-quire-recorded") == "no":
            self.unexpected.append("a reply was delivered and not recorded")
        return _parse_chunks(data) if is_streamed else json.loads(data)["choices"][0]["message"]["content"]


class SendClient(FaultClient):
    """Joins its turn where another node still runs it."""

    _last_seq: int = 0
    _conversation: str = ""

    async def _ask(self, http: httpx2.AsyncClient, conversation: str, turns: Turns, question: str) -> str | None:
        base = f"{self._base_url}/api/conversations"
        headers = {"Authorization": f"Bearer {self.key}"}
        if conversation != self._conversation:
            created = await http.post(base, json={"id": conversation}, headers=headers)
            if created.status_code != 409 and await self._is_refused(created):
                return None
            self._conversation, self._last_seq = conversation, 0
        body = {"message": question, "after": self._last_seq}
        async with http.stream("POST", f"{base}/{conversation}/send", json=body, headers=headers) as response:
            if await self._is_refused(response):
                return None
            events = _parse_events(await response.aread())
        if not events or events[-1]["event"] != "turn_ended":
            self.statuses[f"turn: {events[-1]['event'] if events else 'no event'}"] += 1
            return None
        [entry] = [event["entry"] for event in events if event["event"] == "reply_recorded"]
        self._last_seq = entry["seq"]
        return "".join(part.get("text", "") for part in entry["body"]["parts"])


def _parse_code(body: str) -> str:
    """The machine-readable name of a problem, in Quire's own form or that of OpenAI."""
    try:
        document = json.loads(body)
        return document.get("code") or document["error"].get("code") or ""
    except (ValueError, KeyError, AttributeError):
        return ""


def _parse_events(data: bytes) -> list[dict[str, Any]]:
    """The complete events of a stream; the last line may be cut."""
    blocks = data.decode(errors="replace").split("\n\n")[:-1]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def _parse_chunks(data: bytes) -> str | None:
    """The text of a complete stream, else None."""
    if not data.rstrip().endswith(b"data: [DONE]"):
        return None
    choices = [choice for chunk in _parse_events(data) for choice in chunk.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
