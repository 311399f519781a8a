"""An upstream that misbehaves on demand, and meters what it delivered: the bill to compare spending with.

Every reply is unique, so that a reply in the log can be traced to one call.
"""

import asyncio
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from fake_upstream import SSE_DONE, UpstreamRequest, make_chunk_event, make_completion
from infra.fault_schedule import FaultKind

INPUT_PRICE, OUTPUT_PRICE = 1.0, 2.0
"""US dollars per million tokens."""
CONVERSATION_PATTERN = re.compile(r"\btalk-[0-9a-z-]+")
"""Names of conversations, which are in every question."""
DELAY_SECONDS = 4.0

_HALF_REPLIES = (FaultKind.CUT_REPLY, FaultKind.END_REPLY_EARLY)
_FILLER = "The wheel turns, the race is clear, and the stones need dressing before the week ends. " * 3 + "Done."


class MeteredCall(NamedTuple):
    conversation: str
    cost_usd: float
    """Cost of the whole reply."""


@dataclass
class MeteredUpstream:
    """`respond` is a responder of `fake_upstream`."""

    calls: dict[int, MeteredCall] = field(default_factory=dict[int, MeteredCall])
    """Calls of which at least a part was delivered, by their number."""
    refused: list[MeteredCall] = field(default_factory=list[MeteredCall])
    """Calls that ended without a reply. They cost nothing, but a caller that was interrupted cannot know that."""
    pending_faults: list[FaultKind] = field(default_factory=list[FaultKind])
    """Each applies to one call."""
    _started: int = 0

    async def respond(self, request: UpstreamRequest) -> None:
        self._started += 1
        number = self._started
        fault = self.pending_faults.pop(0) if self.pending_faults else None
        match fault:
            case FaultKind.REFUSE_CALL:
                self.refused.append(_meter(request, ""))
                return await request.respond({"error": {"message": "overloaded"}}, status=500)
            case FaultKind.RESET_CALL:
                self.refused.append(_meter(request, ""))
                return request.abort_connection()
            case FaultKind.DELAY_REPLY:
                await asyncio.sleep(DELAY_SECONDS)
            case _:
                pass
        return await self._reply(request, number, fault)

    async def _reply(self, request: UpstreamRequest, number: int, fault: FaultKind | None) -> None:
        text = f"Reply {number}. {_FILLER}"
        usage = _count_tokens(request, text)
        self.calls[number] = _meter(request, text)
        if request.body.get("stream") and fault is not FaultKind.GARBLE_REPLY:
            await self._stream(request, text, usage, fault)
        elif fault is FaultKind.GARBLE_REPLY:
            await request.respond(b'{"choices": [{"ind')
        elif fault in _HALF_REPLIES:
            # The announced length never arrives.
            await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
            request.abort_connection()
        else:
            await request.respond(make_completion(text, usage=usage))

    async def _stream(
        self, request: UpstreamRequest, text: str, usage: dict[str, int], fault: FaultKind | None
    ) -> None:
        await request.start_sse()
        await request.send_sse(make_chunk_event({"role": "assistant", "content": ""}))
        pieces = re.findall(r".{1,40}", text)
        for piece in pieces[: len(pieces) // 2] if fault in _HALF_REPLIES else pieces:
            await request.send_sse(make_chunk_event(piece))
            await asyncio.sleep(0.002)
        if fault is FaultKind.CUT_REPLY:
            return request.abort_connection()
        if fault not in _HALF_REPLIES:
            await request.send_sse(make_chunk_event({}, "stop", usage=usage), SSE_DONE)
        return await request.end_sse()


def _count_tokens(request: UpstreamRequest, reply: str) -> dict[str, int]:
    prompt, completion = len(request.raw) // 3, len(reply) // 3
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _meter(request: UpstreamRequest, reply: str) -> MeteredCall:
    usage, found = _count_tokens(request, reply), CONVERSATION_PATTERN.search(request.raw.decode())
    cost_usd = (usage["prompt_tokens"] * INPUT_PRICE + usage["completion_tokens"] * OUTPUT_PRICE) / 1e6
    return MeteredCall(found.group() if found else "", cost_usd)


def parse_call_number(reply: str) -> int | None:
    """The number of the call that a text is the complete reply of."""
    found = re.fullmatch(r"Reply (\d+)\. " + re.escape(_FILLER), reply)
    return int(found.group(1)) if found else None
