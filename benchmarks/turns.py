"""One question followed by many tool calls, in windows much smaller than the turn.

Repeated prefix: the part of each request that the next one repeats, which a prompt cache can serve. Quire against
itself without compactions inside the turn (it then shortens every result of the turn) and against LangChain's
`ContextEditingMiddleware`, on the same script.

Facts: 200 facts in tool results; each is asked for after the turn. Counted is how it is reached.

Real model: eighty steps in 2,048 tokens, with llama.cpp's own numbers of evaluated prompt tokens. Quire against
LangChain's `SummarizationMiddleware` and `ContextEditingMiddleware`. Calls that write summaries are counted in.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx2
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.exceptions import LangChainException
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import APIError

import quire
from infra.llama import LocalModel
from infra.long_turn import QUESTION, READ_TOOL, Step, make_steps, measure_mean_shared
from quire.compaction.summarizer import Summarizer
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.request import Request
from quire.errors import ContextOverflow, ModelRequestRejected
from quire.llm import Prompt, Reply
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.tokens import counter_for
from support import Report, run_benchmark

STEPS, QUICK_STEPS = 1_000, 120
WINDOWS = {6_000: 0.50, 32_000: 0.85, 200_000: 0.95}
"""Goal of the mean repeated prefix by window."""
MODELS = ("gpt-4.1", "claude-sonnet-4-5")
FACTS, QUICK_FACTS = 200, 40
MODEL_STEPS, QUICK_MODEL_STEPS = 80, 30
MODEL_WINDOW_TOKENS = 2_048
RESERVED_TOKENS = 128
TRIGGER_SHARE = 0.85
MAX_EVALUATED_RATIO = 2.2
"""Goal: prompt tokens evaluated by the server, divided by the tokens that were new."""
FORMAT = OpenAIChatFormat()
STARTS = ("Ilver", "Bassen", "Pell", "Crow", "Thist", "Wex", "Mor", "Hadd")
MIDDLES = ("am", "eth", "or", "in", "ul", "ack")
ENDS = ("more", "waite", "worm", "ley", "combe", "stead")
"""Parts of the names in the facts."""


def encode(request: Request) -> bytes:
    return b"".join(each.encoded for each in request.assembly.rendered.messages)


async def run_quire(model: str, window: int, steps: int, *, compacts: bool) -> tuple[float, int, int]:
    """Mean repeated prefix, compactions, and steps that failed."""
    bodies: list[bytes] = []
    compactions = failures = 0
    async with quire.open("sqlite://", model=model, context_limit=window, tools=[READ_TOOL]) as engine:
        if not compacts:
            engine.hooks.before_compaction(refuse_compaction)
        conversation = await engine.conversation()
        question: str | None = QUESTION
        for step in make_steps(steps):
            try:
                request = await conversation.prepare(question)
            except ContextOverflow:
                failures = steps - len(bodies)
                break
            bodies.append(encode(request))
            compactions += len(request.compactions)
            await conversation.record(step.reply, request=request)
            await conversation.append(*step.results)
            question = None
    return measure_mean_shared(bodies), compactions, failures


async def refuse_compaction(conversation: str, plan: object) -> bool:
    return False


class ScriptedChatModel(BaseChatModel):
    """Plays the replies of the script; with `url`, a server evaluates each prompt first."""

    script: list[Any]
    bodies: list[bytes]
    url: str | None = None
    usage: Any = None
    position: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> "ScriptedChatModel":
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        wire_messages = convert_to_openai_messages(messages)
        self.bodies.append(json.dumps(wire_messages).removesuffix("]").encode())
        if self.url is not None:
            evaluate(self.url, wire_messages, self.usage)
            self.usage.end_step()
        step: Step = self.script[self.position]
        self.position += 1
        calls = [
            {"name": call.name, "args": json.loads(call.arguments), "id": call.id} for call in step.reply.tool_calls
        ]
        is_last = self.position == len(self.script)
        reply = AIMessage(step.reply.text, tool_calls=[] if is_last else calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def run_langchain(script: Sequence[Step], middleware: Any, model: ScriptedChatModel) -> None:
    results = {
        call.arguments: result.tool_results[0].content[0].text
        for step in script
        for call, result in zip(step.reply.tool_calls, step.results, strict=True)
    }

    @tool(READ_TOOL.name, description=READ_TOOL.description)
    def read_module(path: str) -> str:
        return results[json.dumps({"path": path})]

    agent = create_agent(model, tools=[read_module], middleware=[middleware])
    agent.invoke({"messages": [HumanMessage(QUESTION)]}, {"recursion_limit": 10 * len(script)})


def make_context_editing(window: int) -> ContextEditingMiddleware:
    return ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=int(window * TRIGGER_SHARE))])


async def measure_prefixes(report: Report, *, quick: bool) -> None:
    steps = QUICK_STEPS if quick else STEPS
    rows: list[tuple[object, ...]] = []
    for window, goal in WINDOWS.items():
        for model in MODELS:
            share, compactions, failures = await run_quire(model, window, steps, compacts=True)
            rows.append((window, f"quire, {model}", share, compactions, failures))
            report.require_at_most(f"unrepeated_{window}_{model}", 1 - share, 1 - goal)
            report.require_at_most(f"failures_{window}_{model}", failures, 0)
        squeezed, _, failures = await run_quire(MODELS[0], window, steps, compacts=False)
        rows.append((window, "quire without compactions", squeezed, 0, failures))
        script = list(make_steps(steps, thinking=False))
        model = ScriptedChatModel(script=script, bodies=[])
        run_langchain(script, make_context_editing(window), model)
        counter = counter_for("gpt-4o")
        too_long = sum(counter.count(body.decode()) > window for body in model.bodies)
        rows.append((window, "ContextEditingMiddleware", measure_mean_shared(model.bodies), "-", too_long))
    report.print_table(
        f"{steps} steps", ("window", "method", "mean repeated prefix", "compactions", "requests over the window"), rows
    )


def make_facts(count: int) -> list[tuple[str, str, str]]:
    """Question, sentence and answer of each fact; each is about a person with a name of their own."""
    names = [f"{first}{middle}{last}" for first in STARTS for middle in MIDDLES for last in ENDS]
    return [
        (
            f"Where is {name} quartered?",
            f"Harbour roll: {name} is quartered at house {number * 7 + 3} in Gannet Row.",
            f"at house {number * 7 + 3} in Gannet Row",
        )
        for number, name in enumerate(Random(3).sample(names, count))
    ]


async def measure_facts(report: Report, *, quick: bool) -> None:
    facts = make_facts(QUICK_FACTS if quick else FACTS)
    ways: Counter[str] = Counter()
    async with quire.open("sqlite://", model="gpt-4o", context_limit=32_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation()
        question: str | None = QUESTION
        for step in make_steps(QUICK_STEPS if quick else STEPS, facts=[fact for _, fact, _ in facts]):
            request = await conversation.prepare(question)
            await conversation.record(step.reply, request=request)
            await conversation.append(*step.results)
            question = None
        await conversation.record("The audit is complete.", request=await conversation.prepare())
        await engine.wait_for_background()
        for text, _, answer in facts:
            ways[await find_way(conversation, text, answer)] += 1
    report.print_table("facts", ("way", "facts"), sorted(ways.items()))
    report.require_at_most("facts_not_reached", ways["not reached"], 0)


async def find_way(conversation: Conversation, question: str, answer: str) -> str:
    """How a request for the question reaches the answer."""
    request = await conversation.prepare(question)
    numbers: list[int] = []
    for section, text in list_sections(request.assembly):
        if answer in text:
            return section
        numbers += map(int, re.findall(r"#(\d+)", text))
    shown = await conversation.engine.store.get_entries(conversation.id, set(numbers))
    return "one history_read" if any(answer in entry.raw for entry in shown) else "not reached"


def list_sections(assembly: Any) -> list[tuple[str, str]]:
    summary = assembly.counted_input.summary
    recalled = assembly.selection.recalled
    return [
        ("summary", summary.message.text if summary is not None else ""),
        ("recall", recalled.message.message.text if recalled is not None else ""),
        ("whole message", "".join(each.encoded.decode() for each in assembly.rendered.messages)),
    ]


class ServerUsage:
    """Tokens that the server was sent and evaluated, and the requests that it answered and refused.

    A refused request evaluates nothing, so totals are to be read together with the number of refusals.
    """

    def __init__(self) -> None:
        self.sent = self.evaluated = self.answered = self.failures = 0
        self.evaluated_by_step: list[int] = []
        """Tokens evaluated up to the end of each step. A method that gave up has fewer steps than the script."""

    def end_step(self) -> None:
        self.evaluated_by_step.append(self.evaluated)

    def add(self, response: httpx2.Response) -> None:
        if response.status_code != 200:
            self.failures += 1
            return
        body = response.json()
        self.answered += 1
        self.sent += body["usage"]["prompt_tokens"]
        self.evaluated += body["timings"]["prompt_n"]

    def on_response(self, response: httpx2.Response) -> None:
        response.read()
        self.add(response)


def evaluate(url: str, messages: Sequence[dict[str, Any]], usage: ServerUsage) -> httpx2.Response:
    """Lets the server evaluate a prompt; its reply is the script's."""
    body = {"model": "smollm2", "messages": list(messages), "max_tokens": 1, "temperature": 0}
    response = httpx2.post(f"{url}/chat/completions", json=body, timeout=300)
    usage.add(response)
    return response


class CountedModel:
    """A summarizer whose calls are counted like all others."""

    name = "smollm2"

    def __init__(self, url: str, usage: ServerUsage) -> None:
        self._url, self._usage = url, usage

    async def complete(self, prompt: Prompt) -> Reply:
        wire_messages = [unit for message in prompt.messages for unit in FORMAT.render_message(message)]
        payload = FORMAT.build_payload(
            model=self.name, system=prompt.system, tools=(), messages=wire_messages, max_tokens=prompt.max_tokens
        )
        async with httpx2.AsyncClient(timeout=300) as client:
            response = await client.post(f"{self._url}/chat/completions", json=payload)
        self._usage.add(response)
        if response.status_code != 200:
            raise ModelRequestRejected(response.text)
        return FORMAT.parse_reply(response.json())

    def stream(self, prompt: Prompt) -> Any:
        raise NotImplementedError


def make_model_steps(steps: int) -> list[Step]:
    return list(make_steps(steps, thinking=False, result_tokens=(30, 400), huge_result_tokens=900))


async def run_quire_on_server(url: str, steps: int, *, compacts: bool, summarizes: bool) -> ServerUsage:
    usage = ServerUsage()
    settings = Settings(
        model="smollm2",
        context_limit=MODEL_WINDOW_TOKENS,
        reserved_response_tokens=RESERVED_TOKENS,
        context_background_threshold=None,
    )
    summarizer = Summarizer(model=CountedModel(url, usage), window=MODEL_WINDOW_TOKENS, timeout=300)
    async with SqlStore.open("sqlite://") as store:
        engine = Engine(store, EngineConfig.create(settings, summarizer=summarizer if summarizes else None))
        if not compacts:
            engine.hooks.before_compaction(refuse_compaction)
        conversation = await engine.conversation()
        question: str | None = QUESTION
        for step in make_model_steps(steps):
            try:
                request = await conversation.prepare(question)
            except ContextOverflow:
                usage.failures += 1
                usage.end_step()
                continue
            response = evaluate(url, request.to_chat()["messages"], usage)
            reported = response.json().get("usage") if response.status_code == 200 else None
            reply: dict[str, Any] = {"choices": [{"message": FORMAT.render_message(step.reply)[0]}], "usage": reported}
            await conversation.record(reply if reported else step.reply, request=request)
            await conversation.append(*step.results)
            usage.end_step()
            question = None
    return usage


def run_middleware_on_server(url: str, steps: int, middleware: Any, usage: ServerUsage) -> ServerUsage:
    """A middleware that raises ends its run there: that is its result, and the benchmark goes on."""
    script = make_model_steps(steps)
    try:
        run_langchain(script, middleware, ScriptedChatModel(script=script, bodies=[], url=url, usage=usage))
    except (APIError, LangChainException) as error:
        print(f"{type(middleware).__name__} ended after {len(usage.evaluated_by_step)} of {steps} steps: {error}")
    return usage


def make_summarization(url: str, usage: ServerUsage) -> SummarizationMiddleware:
    client = httpx2.Client(event_hooks={"response": [usage.on_response]}, timeout=300)
    model = ChatOpenAI(
        model="smollm2",
        base_url=url,
        api_key="none",
        max_tokens=150,  # type: ignore[call-arg]
        temperature=0,
        http_client=client,
        max_retries=0,
    )
    trigger = int((MODEL_WINDOW_TOKENS - RESERVED_TOKENS) * TRIGGER_SHARE)
    # Its prompt takes about 500 tokens of the window; the text to summarize has the rest.
    return SummarizationMiddleware(
        model=model, trigger=("tokens", trigger), keep=("messages", 6), trim_tokens_to_summarize=1_200
    )


def count_new_tokens(url: str, steps: int) -> int:
    """Tokens of all messages of the turn, each counted once by the server's tokenizer."""
    messages = [
        Message.user(QUESTION),
        *(each for step in make_model_steps(steps) for each in (step.reply, *step.results)),
    ]
    overhead = 5
    tokens = 0
    for message in messages:
        for unit in FORMAT.render_message(message):
            response = httpx2.post(f"{url.removesuffix('/v1')}/tokenize", json={"content": unit["content"]}, timeout=60)
            tokens += len(response.json()["tokens"]) + overhead
    return tokens


async def measure_real_model(report: Report, *, quick: bool) -> None:
    steps = QUICK_MODEL_STEPS if quick else MODEL_STEPS
    usages: dict[str, ServerUsage] = {}
    with LocalModel(context=MODEL_WINDOW_TOKENS) as address:
        url = address.url
        new_tokens = count_new_tokens(url, steps)
        usages["quire, extracts"] = await run_quire_on_server(url, steps, compacts=True, summarizes=False)
        usages["quire without compactions"] = await run_quire_on_server(url, steps, compacts=False, summarizes=False)
        for name, make in (
            ("ContextEditingMiddleware", lambda usage: make_context_editing(MODEL_WINDOW_TOKENS - RESERVED_TOKENS)),
            ("SummarizationMiddleware", lambda usage: make_summarization(url, usage)),
        ):
            usage = ServerUsage()
            usages[name] = run_middleware_on_server(url, steps, make(usage), usage)
        # Last: the small model writes its summaries at a few dozen tokens a second, for most of the benchmark's time.
        usages["quire, summaries"] = await run_quire_on_server(url, steps, compacts=True, summarizes=True)
    report.print_table(
        f"real model: {steps} steps in {MODEL_WINDOW_TOKENS} tokens; {new_tokens} tokens were new",
        ("method", "steps", "sent", "evaluated", "evaluated / new", "evaluated / answered request", "refused"),
        [
            (
                name,
                len(each.evaluated_by_step),
                each.sent,
                each.evaluated,
                each.evaluated / new_tokens,
                each.evaluated / max(1, each.answered),
                each.failures,
            )
            for name, each in usages.items()
        ],
    )
    ours = usages["quire, extracts"]
    report.require_at_most("evaluated_to_new", ours.evaluated / new_tokens, MAX_EVALUATED_RATIO)
    report.require_at_most("refused", ours.failures, 0)
    for peer in ("ContextEditingMiddleware", "SummarizationMiddleware"):
        # Over the steps that the peer has done, which are all unless it gave up.
        done = len(usages[peer].evaluated_by_step)
        ratio = ours.evaluated_by_step[done - 1] / usages[peer].evaluated if done else 0.0
        report.require_at_most(f"evaluated_to_{peer}", ratio, 1.0)


async def run(*, quick: bool) -> Report:
    report = Report("turns")
    await measure_prefixes(report, quick=quick)
    await measure_facts(report, quick=quick)
    await measure_real_model(report, quick=quick)
    return report


if __name__ == "__main__":
    run_benchmark(run)
