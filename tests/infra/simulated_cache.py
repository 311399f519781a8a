"""Sessions of three wire formats that only grow, and a provider that caches their prompts by its published rules."""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from pydantic_core import from_json, to_json

from infra.agent_captures import load_capture
from quire.model import Usage

Json = dict[str, Any]
ATTRIBUTION = "x-anthropic-billing-header:"
LOOKBACK_BLOCKS = 20
OPENAI_BLOCK_TOKENS, OPENAI_MIN_TOKENS = 128, 1_024
OPENAI_LIFETIME_SECONDS = 600


def copy_json(value: Json) -> Json:
    return from_json(to_json(value))


def _list(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or ())


@dataclass
class SimulatedCache:
    """The cache of one provider: what each prompt up to some block was last used, in seconds."""

    format: str
    entries: dict[str, float] = field(default_factory=dict[str, float])
    cached_tokens: int = 0
    """Tokens that the last request left in the cache."""

    def serve(self, body: Json, at: float) -> Usage:
        blocks = self._list_blocks(body)
        ends: list[tuple[str, int]] = []
        digest, total = sha256(body["model"].encode()), 0
        for block, _ in blocks:
            text = json.dumps(block, sort_keys=True).encode()
            digest.update(text)
            total += len(text) // 4 + 1
            ends.append((digest.hexdigest(), total))
        return (self._serve_marked if self.format == "messages" else self._serve_whole)(body, blocks, ends, at)

    def _serve_marked(self, body: Json, blocks: list[Any], ends: list[tuple[str, int]], at: float) -> Usage:
        markers = [index for index, (_, marker) in enumerate(blocks) if marker is not None]
        lifetimes = [3_600 if marker.get("ttl") == "1h" else 300 for _, marker in blocks if marker is not None]
        found = [
            ends[index][1]
            for marker in markers
            for index in range(max(0, marker - LOOKBACK_BLOCKS), marker + 1)
            if self.entries.get(ends[index][0], -1) >= at
        ]
        read, total = max(found, default=0), ends[-1][1]
        self.cached_tokens = ends[markers[-1]][1] if markers else 0
        for marker, lifetime in zip(markers, lifetimes, strict=True):
            self.entries[ends[marker][0]] = at + lifetime
        written = max(0, self.cached_tokens - read)
        name = "ephemeral_1h_input_tokens" if 3_600 in lifetimes else "ephemeral_5m_input_tokens"
        return Usage(
            model=body["model"],
            input_tokens=total,
            output_tokens=40,
            cache_read_tokens=read,
            cache_write_tokens=written,
            provider_fields={"cache_creation": {name: written}},
        )

    def _serve_whole(self, body: Json, blocks: list[Any], ends: list[tuple[str, int]], at: float) -> Usage:
        read = max((tokens for digest, tokens in ends if self.entries.get(digest, -1) >= at), default=0)
        read = read // OPENAI_BLOCK_TOKENS * OPENAI_BLOCK_TOKENS if read >= OPENAI_MIN_TOKENS else 0
        self.cached_tokens = ends[-1][1]
        self.entries.update((digest, at + OPENAI_LIFETIME_SECONDS) for digest, _ in ends)
        name = "input_tokens_details" if self.format == "responses" else "prompt_tokens_details"
        return Usage(
            model=body["model"],
            input_tokens=ends[-1][1],
            output_tokens=40,
            cache_read_tokens=read,
            provider_fields={name: {"cached_tokens": read}},
        )

    def _list_blocks(self, body: Json) -> list[tuple[Any, Json | None]]:
        """What is in the prompt, in its order, each with its marker."""
        heads = [*_list(body.get("tools")), *_list(body.get("system"))]
        blocks: list[Any] = [block for block in heads if not str(block.get("text", "")).startswith(ATTRIBUTION)]
        unread = ("id", "status", "internal_chat_message_metadata_passthrough")
        parameters = [body.get("thinking"), body.get("output_config"), body.get("reasoning")]
        blocks.append({"parameters": parameters})
        for item in body.get("input") or body["messages"]:
            bare = {key: value for key, value in item.items() if key not in ("content", *unread)}
            content = _list(item.get("content"))
            blocks += [{"item": bare, **block} for block in content] or [{"item": bare}]
        return [
            ({key: value for key, value in block.items() if key != "cache_control"}, block.get("cache_control"))
            for block in blocks
        ]


class GrowingSession:
    """A client that keeps a list and sends all of it with each request."""

    format = "chat"
    words = 120
    """Words of a tool result."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.steps = 0
        self.body: Json = self.start()

    def start(self) -> Json:
        names = ("read", "write", "search", "run")
        tools = [
            {"type": "function", "function": {"name": name, "description": f"{name} a file. " * 40}} for name in names
        ]
        instructions = "You are a careful assistant. Today is Tuesday, 17 November 2026. " + "Follow the rules. " * 200
        messages: list[Json] = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": "Fix the bug."},
        ]
        return {"model": "gpt-5.4", "messages": messages, "tools": tools, "stream": True}

    def text(self, words: int | None = None) -> str:
        return f"step {self.steps}: " + " ".join(f"w{self.random.randrange(9_999)}" for _ in range(words or self.words))

    def step(self) -> None:
        """Appends a reply and what follows it."""
        self.steps += 1
        call = {"id": f"call_{self.steps}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": f"call_{self.steps}", "content": self.text()}
        self.body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
        self.body["user"] = f"u{self.random.random()}"

    def send(self) -> Json:
        return copy_json(self.body)


class ClaudeSession(GrowingSession):
    """Shapes of Claude Code: the only marker of the list moves with the newest block, texts change their form, and the
    attribution changes its suffix."""

    format = "messages"

    def start(self) -> Json:
        body = copy_json(load_capture("claude_code_session")[0].body)
        body["system"][2]["text"] += " Follow the rules." * 100
        body["messages"][0]["content"].insert(
            0,
            {
                "type": "text",
                "text": "<system-reminder>\nSessionStart hook additional context: branch main\n</system-reminder>\n"
                "The session began at 2026-11-17T09:15:02Z.",
            },
        )
        return body

    def step(self) -> None:
        self.steps += 1
        call_id = f"toolu_{self.steps}"
        content: list[Json] = [
            {"type": "thinking", "thinking": "I think.", "signature": f"sig{self.steps}"},
            {"type": "text", "text": self.text(10)},
            {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}},
        ]
        result: Json = {"tool_use_id": call_id, "type": "tool_result", "content": self.text(), "is_error": False}
        self.body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        if self.steps % 5 == 0:
            question = {"role": "user", "content": [{"type": "text", "text": self.text(20)}]}
            self.body["messages"] += [{"role": "assistant", "content": [{"type": "text", "text": "Done."}]}, question]
        if self.steps % 7 == 0:
            reminder = {"type": "text", "text": "Effort is medium."}
            self.body["messages"].append(
                {"role": "system", "content": [reminder], "output_config": {"effort": "medium"}}
            )
        if self.steps % 11 == 0:
            self.body["system"][0]["text"] = f"{ATTRIBUTION} cc_version=2.1.325.{self.steps:03x}; cc_entrypoint=cli;"

    def send(self) -> Json:
        body = copy_json(self.body)
        for item in body["messages"]:
            for block in item["content"] if isinstance(item["content"], list) else ():
                block.pop("cache_control", None)
            texts = item["content"]
            if isinstance(texts, list) and len(texts) == 1 and texts[0]["type"] == "text":
                item["content"] = texts[0]["text"]
        newest = body["messages"][-1]
        newest["content"] = _list(newest["content"])
        newest["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return body


class CodexSession(GrowingSession):
    """Shapes of Codex: new IDs of items and of the turn with each request."""

    format = "responses"

    def start(self) -> Json:
        body = copy_json(load_capture("codex_session")[0].body)
        body["model"] = "gpt-5.4"
        body["input"][0]["content"][0]["text"] += " Follow the rules." * 200
        return body

    def step(self) -> None:
        self.steps += 1
        call_id = f"call_{self.steps}"
        self.body["input"] += [
            {"type": "reasoning", "id": f"rs_{self.steps}", "summary": [], "encrypted_content": "sealed"},
            {"type": "function_call", "status": "completed", "id": f"fc_{self.steps}", "name": "exec_command",
             "arguments": "{}", "call_id": call_id},
            {"type": "function_call_output", "id": f"fco_{self.steps}", "call_id": call_id, "output": self.text()},
        ]  # fmt: skip

    def send(self) -> Json:
        body = copy_json(self.body)
        body["client_metadata"] = {"turn_id": str(self.random.random())}
        for item in body["input"]:
            if item["type"] == "message" and item["role"] != "assistant":
                item["id"] = f"msg_{self.random.random()}"
        return body
