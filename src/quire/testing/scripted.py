"""A model that follows a script, for tests: it answers what it was told to, and keeps what it was asked.

    model = ScriptedModel("first", ModelThrottled(retry_after=2), Slow(5, "late"), window=4_096)

With a `window` it refuses a longer prompt as a provider would, so that no test can send one unnoticed.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from quire.errors import ModelOverflow, ModelUnavailable
from quire.llm import Chunk, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.view.shapes import OpenAIShape
from quire.view.tokens import counter_for

_COUNTED_AS = "gpt-4o"


@dataclass(frozen=True, slots=True)
class Slow:
    """A reply after some seconds; the prompt's time-out may come first."""

    seconds: float
    reply: "Step"


Said = str | Message | Reply | BaseException | type[BaseException]
Step = Said | Slow | Callable[[Prompt], "Step"]


class ScriptedModel:
    """Gives its replies in turn. A text or a message is a reply that stopped of itself; an exception is raised; a
    function is handed the prompt and gives any of these; `repeat` goes on with the last when all are used.
    """

    def __init__(self, *replies: Step, window: int | None = None, name: str = "scripted", repeat: bool = False) -> None:
        self.name = name
        self.window = window
        self.prompts: list[Prompt] = []
        """Every prompt it was sent, those that it refused too."""
        self.largest = 0
        """The tokens of the longest prompt that it was sent."""
        self._script = list(replies)
        self._next = 0
        self._repeat = repeat

    @property
    def unused(self) -> int:
        return len(self._script) - self._next

    async def complete(self, prompt: Prompt) -> Reply:
        tokens = self._receive(prompt)
        step = self._take()
        try:
            async with asyncio.timeout(prompt.timeout):
                return await _played(step, prompt, tokens, self.name)
        except TimeoutError as exc:
            raise ModelUnavailable(f"{self.name} did not answer in time.") from exc

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        reply = await self.complete(prompt)
        for chunk in _chunks(reply.message):
            await asyncio.sleep(0)
            yield chunk
        yield reply

    def _receive(self, prompt: Prompt) -> int:
        tokens = prompt_tokens(prompt)
        self.prompts.append(prompt)
        self.largest = max(self.largest, tokens)
        if self.window is not None and tokens > self.window:
            message = f"{self.name} was sent {tokens:,} tokens, and its window has {self.window:,}."
            raise ModelOverflow(message, status=400, tokens=tokens, window=self.window)
        return tokens

    def _take(self) -> Step:
        if self._next < len(self._script):
            self._next += 1
        elif not (self._repeat and self._script):
            raise AssertionError(
                f"{self.name} has {len(self._script)} replies in its script, and this is one more request: "
                f"{self.prompts[-1].messages[-1:]}. Add a reply, or let it repeat the last one."
            )
        return self._script[self._next - 1]


def prompt_tokens(prompt: Prompt) -> int:
    """The tokens of a prompt in OpenAI's shape, counted with o200k."""
    shape, counter = OpenAIShape(_COUNTED_AS), counter_for(_COUNTED_AS)
    units = [unit for message in prompt.messages for unit in shape.units(message, load=prompt.load)]
    tools = [shape.tool(tool) for tool in prompt.tools]
    parts = shape.count_units(units, counter) + shape.count_tools(tools, counter)
    return shape.overhead + shape.count_system(prompt.system, counter) + parts


async def _played(step: Step, prompt: Prompt, tokens: int, model: str) -> Reply:
    if isinstance(step, Slow):
        await asyncio.sleep(step.seconds)
        return await _played(step.reply, prompt, tokens, model)
    if isinstance(step, Reply):
        return step
    if isinstance(step, str | Message):
        message = Message.assistant(step) if isinstance(step, str) else step
        written = counter_for(_COUNTED_AS).count(message.text)
        usage = Usage(model=model, input_tokens=tokens, output_tokens=written)
        return Reply(message, usage, "tool_calls" if message.tool_calls else "stop")
    if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
        raise step
    return await _played(step(prompt), prompt, tokens, model)


def _chunks(message: Message) -> Iterator[Chunk]:
    """The message word by word; a call's arguments in two pieces."""
    for index, part in enumerate(message.parts):
        match part:
            case TextPart(text=text):
                yield from map(TextDelta, _words(text))
            case ThinkingPart(text=text):
                yield from map(ThinkingDelta, _words(text))
            case ToolCallPart(id=id_, name=name, arguments=text):
                half = len(text) // 2
                yield ToolCallDelta(index=index, id=id_, name=name, arguments=text[:half])
                yield ToolCallDelta(index=index, arguments=text[half:])
            case _:
                pass


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)
