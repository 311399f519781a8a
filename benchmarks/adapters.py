"""The same agent with and without Quire, for each framework that has an adapter, with a real model.

The agent has one tool, a context window of 2,048 tokens, and questions that fill it several times. Without Quire, the
framework holds and sends the whole history, as it does by default. llama.cpp says how many prompt tokens it got and
how many it evaluated. Facts are planted in the first turns, and their questions are the last ones.
Also: the time to convert a history of 1,000 messages that has two new ones.
"""

import statistics
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from pydantic_ai import messages as pai

from infra.llama import LocalModel
from infra.tool_calling_proxy import ToolCallingProxy, run_tool_calling_proxy
from quire.adapters.langchain import convert_message
from quire.adapters.pydantic_ai import convert_model_message
from quire.model.entries import iter_paths
from quire.proxy.framework_requests import ConversionCache, make_match_key
from support import Report, run_benchmark, time_rounds

sys.path.append(str(Path(__file__).parents[1] / "tests" / "adapters"))

import local_model_agents as agents

TURNS, QUICK_TURNS = 90, 60
WINDOW_TOKENS = 2_048
"""Large enough for recall, which is skipped where it would have less than 256 tokens."""
MAX_REPLY_TOKENS = 8
FACTS = {"Albatross": "41", "Merganser": "58", "Petrel": "73"}
"""Ships and their berths."""
NAMES = {"openai_agents": "OpenAI Agents SDK", "langchain": "LangChain", "pydantic_ai": "Pydantic AI"}
CONVERTED_MESSAGES = 1_000


@dataclass(frozen=True)
class AgentRun:
    requests: int
    sent_tokens: int
    evaluated_tokens: int
    failed_turns: int
    facts_in_requests: int
    facts_answered: int


async def run_agent(framework: str, turns: int, *, database_url: str | None) -> AgentRun:
    """Runs all turns with a server of its own, so that the prompt caches are separate."""
    planted = [f"Note that the ship {ship} is at berth {berth}." for ship, berth in FACTS.items()]
    piers = [agents.make_question(number) for number in range(1, turns - 2 * len(FACTS) + 1)]
    failed = answered = in_requests = 0
    with (
        LocalModel(context=WINDOW_TOKENS) as model,
        run_tool_calling_proxy(model.url, agents.choose_call) as proxy,
    ):
        async with agents.open_agent(
            framework,
            proxy.url,
            database_url=database_url,
            max_tokens=MAX_REPLY_TOKENS,
            window_tokens=WINDOW_TOKENS,
        ) as ask:
            for question in (*planted, *piers):
                failed += await ask_or_fail(ask, question) is None
            for ship, berth in FACTS.items():
                answer = await ask_or_fail(ask, f"The ship {ship} is at berth number")
                failed += answer is None
                answered += berth in (answer or "")
                in_requests += answer is not None and f"{ship} is at berth {berth}" in str(proxy.requests[-1].body)
    sent, evaluated = count_tokens(proxy)
    return AgentRun(len(proxy.forwarded), sent, evaluated, failed, in_requests, answered)


async def ask_or_fail(ask: agents.AskAgent, question: str) -> str | None:
    try:
        return await ask(question)
    except Exception:  # noqa: BLE001 (each framework wraps the server's refusal in an error of its own)
        return None


def count_tokens(proxy: ToolCallingProxy) -> tuple[int, int]:
    """The prompt tokens that the server was sent and evaluated. A request that it refused has none."""
    responses = [each.response for each in proxy.forwarded if each.status == 200]
    sent = sum(response["usage"]["prompt_tokens"] for response in responses)
    return sent, sum(response["timings"]["prompt_n"] for response in responses)


async def measure_conversion(report: Report) -> None:
    """Compares the conversion of a known list with two new messages with that of the whole list."""
    histories: dict[str, tuple[Any, list[Any]]] = {
        "LangChain": (
            lambda message: [convert_message(message)],
            [HumanMessage(f"Question {n}?" * 20) if n % 2 else AIMessage(f"Answer {n}." * 20)
             for n in range(CONVERTED_MESSAGES)],
        ),
        "Pydantic AI": (
            convert_model_message,
            [pai.ModelRequest([pai.UserPromptPart(f"Question {n}?" * 20)]) if n % 2
             else pai.ModelResponse([pai.TextPart(f"Answer {n}." * 20)]) for n in range(CONVERTED_MESSAGES)],
        ),
    }  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for name, (convert, history) in histories.items():
        cache: ConversionCache[Any] = ConversionCache(convert)

        def convert_new(cache: ConversionCache[Any] = cache, history: list[Any] = history) -> None:
            # The entry of a shorter list makes the last two messages new again.
            cache.convert("c", history)

        def forget_new(cache: ConversionCache[Any] = cache, history: list[Any] = history) -> None:
            cache.convert("c", history[:-2])

        def convert_all(convert: Any = convert, history: list[Any] = history) -> None:
            messages = [each.message for source in history for each in convert(source)]
            deque(iter_paths(message.canonical_json().encode() for message in messages), maxlen=0)
            deque(map(make_match_key, messages), maxlen=0)

        _, new, whole = await time_rounds(forget_new, convert_new, convert_all, rounds=7)
        ratio = statistics.median(one / other for one, other in zip(new, whole, strict=True))
        rows.append((name, statistics.median(whole), statistics.median(new), ratio))
        report.require_at_most(f"conversion_{name.replace(' ', '_').lower()}", ratio, 0.3)
    report.print_table(
        f"conversion of {CONVERTED_MESSAGES} messages, of which two are new",
        ("", "all, ms", "new only, ms", "ratio"),
        rows,
    )


async def run(*, quick: bool) -> Report:
    report = Report("adapters")
    await measure_conversion(report)
    turns = QUICK_TURNS if quick else TURNS
    rows: list[tuple[object, ...]] = []
    for framework in agents.FRAMEWORKS:
        for has_quire in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/quire.db" if has_quire else None
                result = await run_agent(framework, turns, database_url=url)
            name = f"{NAMES[framework]}, {'with' if has_quire else 'without'} Quire"
            rows.append((
                name, result.requests, result.sent_tokens, result.evaluated_tokens, result.failed_turns,
                f"{result.facts_in_requests} of {len(FACTS)}", f"{result.facts_answered} of {len(FACTS)}",
            ))  # fmt: skip
            print(*rows[-1], flush=True)
            if has_quire:
                report.require_at_most(f"{framework}_failed_turns", result.failed_turns, 0)
                report.require_at_most(f"{framework}_facts_missing", len(FACTS) - result.facts_in_requests, 0)
    report.print_table(
        f"{turns} turns in a window of {WINDOW_TOKENS:,} tokens, as the server reports them",
        ("", "requests", "sent", "evaluated", "failed turns", "facts in request", "facts answered"),
        rows,
    )
    return report


if __name__ == "__main__":
    run_benchmark(run)
