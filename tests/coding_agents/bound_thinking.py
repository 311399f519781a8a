"""A scripted upstream that checks signed reasoning: a block is bound to the list that it was made for."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Lock
from typing import Any

from infra.scripted_provider import ProviderRequest, Script, ScriptedError, ScriptedReply

THINKING = ("thinking", "redacted_thinking")


@dataclass
class BoundThinking:
    """Wraps a script: each reply thinks, and a request whose reasoning follows another list is refused."""

    script: Script
    refused: list[str] = field(default_factory=list[str])
    bound: dict[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])
    lock: Lock = field(default_factory=Lock)

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        if request.format != "messages" or not request.tool_names:
            return self.script(request)
        with self.lock:
            # Extended block by block: a list of hundreds of blocks is checked in milliseconds.
            prefix = sha256(json.dumps([bool(request.body.get("system")), sorted(request.tool_names)]).encode())
            before: str | None = None
            for role, block in iter_blocks(request.items):
                if block.get("type") not in THINKING:
                    prefix.update(json.dumps([role, block]).encode())
                    continue
                known = self.bound.get(block["thinking"])
                if known is None or known[0] != prefix.hexdigest():
                    return self.refuse(f"{block['thinking']} is bound to a different conversation")
                if before is not None and known[1] != before:
                    return self.refuse(f"{block['thinking']} does not follow {known[1]}")
                before = block["thinking"]
            reply = self.script(request)
            thinking = f"thought {len(self.bound)}"
            self.bound[thinking] = prefix.hexdigest(), before
            return replace(reply, thinking=thinking)

    def refuse(self, detail: str) -> ScriptedReply:
        self.refused.append(detail)
        error = f"messages: Invalid `signature` in `thinking` block. {detail}"
        return ScriptedReply(error=ScriptedError(400, "invalid_request_error", error))


def iter_blocks(items: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Role and block, without cache markers."""
    for item in items:
        content = item["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield item["role"], {name: value for name, value in block.items() if name != "cache_control"}
