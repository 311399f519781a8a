"""Token count of a finished payload, recounted as a whole: the oracle for counts that are sums over messages."""

from collections.abc import Mapping
from typing import Any

from quire.wire import WireFormat
from quire.wire.messages.render import OPENER_TEXT
from quire.wire.tokens import TokenCounter


def count_payload(wire_format: WireFormat, payload: Mapping[str, Any], counter: TokenCounter) -> int:
    messages = payload["messages"] if "messages" in payload else payload["input"]
    if messages and messages[0].get("content") == OPENER_TEXT:
        # Part of the request's overhead.
        messages = messages[1:]
    tokens = wire_format.request_overhead + wire_format.count_messages(messages, counter)
    tokens += wire_format.count_tools(payload.get("tools") or (), counter)
    return tokens + wire_format.count_system(payload.get("system") or payload.get("instructions"), counter)
