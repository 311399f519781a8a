"""A scripted agent whose one question is followed by many tool calls: the same steps for every window and provider."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, ToolDefinition

QUESTION = "TASK-7719: audit every module of the harbour ledger, and report the totals by quay."
HUGE_RESULT_TOKENS = 50_000
WORDS = ("quay", "crane", "berth", "ledger", "tonnage", "pilot", "tide", "buoy", "cargo", "hull", "anchor", "freight")

READ_TOOL = ToolDefinition(
    name="read_module",
    description="Reads one module of the ledger.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


@dataclass(frozen=True, slots=True)
class Step:
    """One model reply and the results of its tool calls."""

    reply: Message
    results: tuple[Message, ...]


def make_steps(
    count: int,
    *,
    seed: int = 7,
    thinking: bool = True,
    facts: Sequence[str] = (),
    result_tokens: tuple[int, int] = (50, 3_000),
    huge_result_tokens: int = HUGE_RESULT_TOKENS,
) -> Iterator[Step]:
    """Steps with one to three parallel calls and results of `result_tokens`; the middle one has a huge result.

    Each of `facts` is in one result, spread evenly over the steps.
    """
    random = Random(seed)
    planted = {index * count // max(1, len(facts)): fact for index, fact in enumerate(facts)}
    for number in range(count):
        calls = [
            ToolCallPart(id=f"call_{number}_{index}", name=READ_TOOL.name, arguments=_make_arguments(number, index))
            for index in range(random.choice((1, 1, 1, 2, 3)))
        ]
        notes = f"Module {number} next; the last one had {random.randrange(100)} findings."
        parts = [TextPart(text=notes), *calls]
        if thinking and number % 2:
            parts.insert(0, ThinkingPart(text=_make_text(random, 120), signature=f"sig{number}"))
        results: list[Message] = []
        for index, call in enumerate(calls):
            is_huge = number == count // 2 and index == 0
            tokens = huge_result_tokens if is_huge else random.randint(*result_tokens) // len(calls)
            fact = f"{planted[number]}\n" if index == 0 and number in planted else ""
            results.append(Message.tool(call.id, f"# {call.id}\n{fact}{_make_text(random, tokens)}"))
        yield Step(Message(role="assistant", parts=tuple(parts)), tuple(results))


def _make_arguments(number: int, index: int) -> str:
    return json.dumps({"path": f"m{number}/{index}.py"})


def _make_text(random: Random, tokens: int) -> str:
    """About that many tokens."""
    lines: list[str] = []
    used = 0
    while used < tokens:
        lines.append(f"{random.choice(WORDS)} {random.choice(WORDS)} {random.randrange(1_000)}: {random.choice(WORDS)}")
        used += 8
    return "\n".join(lines)


def measure_shared(before: bytes, after: bytes) -> float:
    """Part of a request that the next one repeats: their common prefix, over the length of the earlier one."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[low:middle] == after[low:middle] else (low, middle - 1)
    return low / len(before)


def measure_mean_shared(requests: Sequence[bytes]) -> float:
    shares = [measure_shared(before, after) for before, after in pairwise(requests)]
    return sum(shares) / len(shares)
