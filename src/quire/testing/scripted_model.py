"""Scripted model for tests: it plays scripted replies and records its prompts.

    model = ScriptedModel("first", ModelRateLimited(retry_after=2), DelayedReply(5, "late"), window=4_096)

With a `window` it rejects a longer prompt as a provider would, so that no test can send one unnoticed.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from quire.errors import ModelContextOverflow, ModelUnavailable
from quire.llm import ModelChunk, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.tokens import counter_for

_COUNTER_MODEL = "gpt-4o"
"""Prompts are counted with this model's tokenizer."""


@dataclass(frozen=True, slots=True)
class DelayedReply:
    """A reply after a delay; the prompt's timeout may come first."""

    seconds: float
    reply: "ScriptStep"


ScriptedReply = str | Message | Reply | BaseException | type[BaseException]
ScriptStep = ScriptedReply | DelayedReply | Callable[[Prompt], "ScriptStep"]


class ScriptedModel:
    """Plays its replies in order.

    A text or message is a complete reply; an exception is raised; a function gets the prompt and returns any of these.
    With `repeat` the last reply is repeated at the end of the script.
    """

    def __init__(
        self, *replies: ScriptStep, window: int | None = None, name: str = "scripted", repeat: bool = False
    ) -> None:
        self.name = name
        self.window = window
        self.prompts: list[Prompt] = []
        """All prompts, including rejected ones."""
        self.max_prompt_tokens = 0
        """Tokens of the longest prompt."""
        self._script = list(replies)
        self._position = 0
        self._repeat = repeat

    @property
    def remaining_replies(self) -> int:
        return len(self._script) - self._position

    async def complete(self, prompt: Prompt) -> Reply:
        tokens = self._record_prompt(prompt)
        step = self._next_step()
        try:
            async with asyncio.timeout(prompt.timeout):
                return await _play_step(step, prompt, tokens, self.name)
        except TimeoutError as exc:
            raise ModelUnavailable(f"{self.name} did not answer in time.") from exc

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        reply = await self.complete(prompt)
        for chunk in _split_chunks(reply.message):
            await asyncio.sleep(0)
            yield chunk
        yield reply

    def _record_prompt(self, prompt: Prompt) -> int:
        tokens = count_prompt_tokens(prompt)
        self.prompts.append(prompt)
        self.max_prompt_tokens = max(self.max_prompt_tokens, tokens)
        if self.window is not None and tokens > self.window:
            message = f"{self.name} got {tokens:,} tokens, and its context window has {self.window:,}."
            raise ModelContextOverflow(message, status=400, tokens=tokens, window=self.window)
        return tokens

    def _next_step(self) -> ScriptStep:
        if self._position < len(self._script):
            self._position += 1
        elif not (self._repeat and self._script):
            raise AssertionError(
                f"{self.name} has {len(self._script)} replies in its script, and this is one more request: "
                f"{self.prompts[-1].messages[-1:]}. Add a reply, or let it repeat the last one."
            )
        return self._script[self._position - 1]


def count_prompt_tokens(prompt: Prompt) -> int:
    """Counts a prompt in OpenAI's wire format, with o200k."""
    wire_format, counter = OpenAIChatFormat(_COUNTER_MODEL), counter_for(_COUNTER_MODEL)
    messages = [
        wire_message
        for message in prompt.messages
        for wire_message in wire_format.render_message(message, load_blob=prompt.load_blob)
    ]
    tools = [wire_format.render_tool(tool) for tool in prompt.tools]
    tokens = wire_format.count_messages(messages, counter) + wire_format.count_tools(tools, counter)
    return wire_format.request_overhead + wire_format.count_system(prompt.system, counter) + tokens


async def _play_step(step: ScriptStep, prompt: Prompt, tokens: int, model: str) -> Reply:
    if isinstance(step, DelayedReply):
        await asyncio.sleep(step.seconds)
        return await _play_step(step.reply, prompt, tokens, model)
    if isinstance(step, Reply):
        return step
    if isinstance(step, str | Message):
        message = Message.assistant(step) if isinstance(step, str) else step
        written = counter_for(_COUNTER_MODEL).count(message.text)
        usage = Usage(model=model, input_tokens=tokens, output_tokens=written)
        return Reply(message, usage, "tool_calls" if message.tool_calls else "stop")
    if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
        raise step
    return await _play_step(step(prompt), prompt, tokens, model)


def _split_chunks(message: Message) -> Iterator[ModelChunk]:
    """Splits a message into word chunks, and the arguments of a call into two."""
    for index, part in enumerate(message.parts):
        match part:
            case TextPart(text=text):
                yield from map(TextDelta, _split_words(text))
            case ThinkingPart(text=text):
                yield from map(ThinkingDelta, _split_words(text))
            case ToolCallPart(id=id_, name=name, arguments=text):
                half = len(text) // 2
                yield ToolCallDelta(index=index, id=id_, name=name, arguments=text[:half])
                yield ToolCallDelta(index=index, arguments=text[half:])
            case _:
                pass


def _split_words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)
