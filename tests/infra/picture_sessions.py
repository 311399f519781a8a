"""Sessions for the picture of requests: a long chat, an agent's turn of many calls, an imported one of Claude Code."""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from infra.long_turn import QUESTION, make_steps
from quire.engine import Engine
from quire.engine.file_import import import_files
from quire.llm import Reply
from quire.model import Message, Usage
from quire.sources.registry import SOURCES

MODEL = "gpt-4o"
OUTPUT_TOKENS = 120

TOPICS = {
    "sea gate": "The gate is elm, hung at the top; the lower hinge is worn and two boards date from 1998.",
    "pond": "The pond holds 5,200 cubic metres above the sill, less 900 of silt in the corner by the lodge.",
    "wheel": "Twelve feet across, six wide, forty floats; the shaft is oak with iron gudgeons.",
    "timber": "Green elm for whatever stays wet, oak for whatever dries out twice a day; six weeks' notice.",
    "tides": "Springs range 4.4 metres here, neaps 2.1; the pond fills at a high water of 3.2 or more.",
    "grant": "The trust gives 12,000 pounds for gate and pond, to be spent before March.",
    "visitors": "Open on Saturdays from May to October; the path along the dam is closed at springs.",
    "millstones": "One pair of French burrs, dressed last in 1931; the runner stone has a crack by the eye.",
    "flour": "Wholemeal only, from the parish wheat; about forty kilos in a tide when the pond is full.",
    "insurance": "Cover for volunteers ends at dusk, and does not include work in the water.",
}
ASIDES = (
    "Rosa will measure it again on Saturday.", "The surveyor wrote the same.", "That is in the minutes of April.",
    "The yard wants an answer by Friday.", "Nobody works there alone.", "We had it wrong in the leaflet.",
)  # fmt: skip


class _Cache:
    """Usage as a provider with a prompt cache reports it: a compaction leaves the fixed beginning of a prompt."""

    def __init__(self) -> None:
        self.cached_tokens = 0

    def count(self, total_tokens: int, fixed_tokens: int, *, is_compacted: bool) -> Usage:
        read = min(fixed_tokens if is_compacted else self.cached_tokens, total_tokens)
        self.cached_tokens = total_tokens
        return Usage(
            model=MODEL, input_tokens=total_tokens, output_tokens=OUTPUT_TOKENS, cache_read_tokens=read,
            cache_write_tokens=total_tokens - read,
        )  # fmt: skip


async def create_long_chat(engine: Engine, *, turns: int = 200) -> str:
    """A chat that passes its window several times, and asks again about what was said long before."""
    random, cache = Random(4), _Cache()
    conversation = await engine.conversation((await engine.store.create_conversation(title="A year at the mill")).id)
    names = list(TOPICS)
    for number in range(turns):
        topic = names[number % len(names)] if number < 40 else random.choice(names)
        request = await conversation.prepare(f"Week {number + 1}: what do we know about the {topic} by now?")
        manifest = request.manifest
        fixed = sum(each.used for each in manifest.slots if each.slot in ("system", "tools", "memory", "references"))
        usage = cache.count(manifest.total_tokens, fixed, is_compacted=bool(request.compactions))
        answer = f"About the {topic}: {TOPICS[topic]} {' '.join(random.sample(ASIDES, 3))} Noted for week {number + 1}."
        await conversation.record(Reply(Message.assistant(answer), usage, "stop"), request=request)
        if number == 60:
            await conversation.pin(3)
    return conversation.id


async def create_agent_turn(engine: Engine, *, calls: int = 300) -> str:
    """One question, and an agent that calls tools until it is answered."""
    cache = _Cache()
    conversation = await engine.conversation((await engine.store.create_conversation(title="Audit of the ledger")).id)
    pending: str | None = QUESTION
    for step in make_steps(calls, result_tokens=(50, 700), huge_result_tokens=2_500):
        request = await conversation.prepare(pending)
        usage = cache.count(request.manifest.total_tokens, 800, is_compacted=bool(request.compactions))
        await conversation.record(Reply(step.reply, usage, "tool_calls"), request=request)
        await conversation.append(*step.results)
        pending = None
    request = await conversation.prepare()
    usage = cache.count(request.manifest.total_tokens, 800, is_compacted=bool(request.compactions))
    answer = "All modules are audited. **Quay 3** has the largest total."
    await conversation.record(Reply(Message.assistant(answer), usage, "stop"), request=request)
    return conversation.id


SUMMARY = """This session is being continued from a previous conversation. Summary:

1. The user asked to move the tide tables to the new parser, with tests for each port.
2. `tables/reader.py` and `tables/ports.py` are converted; `tests/test_ports.py` passes.
3. Open: the times of the summer term are one hour late in three ports.
"""


def write_claude_code_session(folder: Path, *, messages: int = 600, compact_at: tuple[int, ...] = (260, 470)) -> Path:
    """A transcript of Claude Code whose context grows to its window, and was compacted at these messages."""
    path = folder / "-home-dev-tide-tables" / "5f0c7c1e-0000-4000-8000-000000000001.jsonl"
    path.parent.mkdir(parents=True)
    lines = list(_make_lines(messages, compact_at))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    # Of a file that still grows, the end is held back.
    changed = time.time() - 3_600
    os.utime(path, (changed, changed))
    return path


async def import_claude_code_session(engine: Engine, folder: Path, **sizes: Any) -> str:
    path = write_claude_code_session(folder, **sizes)
    await import_files(engine, SOURCES["claude-code"], [path])
    [record] = await engine.store.list_session("5f0c7c1e-0000-4000-8000-000000000001")
    return record.id


def _make_lines(messages: int, compact_at: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    random, started = Random(9), datetime(2026, 9, 3, 9, 0, tzinfo=UTC)
    parent: str | None = None
    context, cached, called = 18_000, 0, False
    for number in range(messages):
        common = {
            "sessionId": "5f0c7c1e-0000-4000-8000-000000000001", "cwd": "/home/dev/tide-tables", "isSidechain": False,
            "version": "2.0.14", "timestamp": (started + timedelta(seconds=19 * number)).isoformat(),
        }  # fmt: skip
        if number in compact_at:
            metadata = {"trigger": "auto", "preTokens": context}
            yield {
                **common, "type": "system", "subtype": "compact_boundary", "uuid": f"b{number}", "parentUuid": None,
                "logicalParentUuid": parent, "compactMetadata": metadata,
            }  # fmt: skip
            context, cached, parent = 24_000, 14_000, f"b{number}"
            content: Any = SUMMARY
            yield {
                **common, "type": "user", "uuid": f"m{number}", "parentUuid": parent, "isCompactSummary": True,
                "message": {"role": "user", "content": content},
            }  # fmt: skip
        elif number % 2:
            context += random.randint(300, 2_600)
            call = {"type": "tool_use", "id": f"t{number}", **_make_call(number, random)}
            usage = {
                "input_tokens": 4, "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": max(0, context - cached - 4), "output_tokens": random.randint(60, 700),
            }  # fmt: skip
            content = [{"type": "text", "text": f"Step {number // 2 + 1}."}]
            content += [call] if number % 12 != 11 and number + 1 not in compact_at and number + 1 < messages else []
            yield {
                **common, "type": "assistant", "uuid": f"m{number}", "parentUuid": parent,
                "message": {
                    "id": f"msg_{number}", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
                    "content": content, "usage": usage,
                },
            }  # fmt: skip
            cached = context
            called = len(content) > 1
        else:
            content = f"Now port {number // 12 + 1}: convert its table, and run the tests."
            if called:
                text = "\n".join(
                    f"{port:>4} {random.randint(0, 23):02}:{random.randint(0, 59):02}" for port in range(9)
                )
                content = [{"type": "tool_result", "tool_use_id": f"t{number - 1}", "content": text}]
            yield {
                **common, "type": "user", "uuid": f"m{number}", "parentUuid": parent,
                "message": {"role": "user", "content": content},
            }  # fmt: skip
        parent = f"m{number}"


def _make_call(number: int, random: Random) -> dict[str, Any]:
    file = f"/home/dev/tide-tables/tables/port_{number // 12}.py"
    return random.choice(
        [
            {"name": "Read", "input": {"file_path": file}},
            {"name": "Edit", "input": {"file_path": file, "old_string": "hour + 1", "new_string": "hour"}},
            {"name": "Bash", "input": {"command": "pytest -q tests/test_ports.py", "description": "Run the tests"}},
        ]
    )
