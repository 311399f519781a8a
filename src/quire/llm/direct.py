"""Models reached through pydantic-ai's direct calls. Importing this module needs the `llm` extra.

A call is made once: retries are switched off in the provider's SDK, so that time-outs, spending and what is recorded
are the caller's own. Connections are closed after each call, unless the model is entered with `async with`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

from pydantic_ai import messages as foreign
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model as ForeignModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from quire.errors import ModelInvalid, ModelRefused, ModelUnavailable
from quire.llm.access import Chunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.llm.convert import reply_of, to_foreign, to_foreign_tool
from quire.llm.faults import from_exception
from quire.view.shapes import Reply

_OPENAI = re.compile(r"gpt-|chatgpt-|o\d")
_SERVER = "openai-compatible"


class DirectModel:
    """One model at one provider. It can be shared by tasks and, one after the other, by event loops."""

    def __init__(self, name: str, model: ForeignModel) -> None:
        self.name = name
        self._model = model

    @classmethod
    def named(cls, name: str, *, base_url: str | None, api_key: str | None) -> Self:
        try:
            with _sorted(name):
                model = _at(base_url, name, api_key) if base_url is not None else _known(name, api_key)
        except ImportError as exc:
            raise ModelInvalid(f"The provider of {name} needs a package that is not installed: {exc}") from exc
        return cls(name, model)

    async def complete(self, prompt: Prompt) -> Reply:
        with _sorted(self.name):
            async with asyncio.timeout(prompt.timeout), self._model:
                response = await model_request(
                    self._model,
                    to_foreign(prompt.messages, load=prompt.load),
                    model_settings=_settings(prompt, self._model),
                    model_request_parameters=_parameters(prompt),
                )
        return self._reply(response)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        with _sorted(self.name):
            async with self._model, self._events(prompt) as (events, whole):
                while (event := await _next(events, within=prompt.timeout)) is not None:
                    if (chunk := _chunk(event)) is not None:
                        yield chunk
                response = whole()
        yield self._reply(response)

    async def __aenter__(self) -> Self:
        await self._model.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._model.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _events(self, prompt: Prompt) -> AsyncGenerator[Any, None]:
        """The events of a streamed response, and a function that gives the response they have made up so far."""
        opening = model_request_stream(
            self._model,
            to_foreign(prompt.messages, load=prompt.load),
            model_settings=_settings(prompt, self._model),
            model_request_parameters=_parameters(prompt),
        )
        async with asyncio.timeout(prompt.timeout):
            stream = await opening.__aenter__()
        try:
            yield aiter(stream), stream.get
        finally:
            await opening.__aexit__(None, None, None)

    def _reply(self, response: foreign.ModelResponse) -> Reply:
        if response.finish_reason == "content_filter":
            said = (response.provider_details or {}).get("refusal") or response.text or "no reason was given"
            raise ModelRefused(f"{self.name} refused: {said}")
        return reply_of(response)


async def _next(
    events: AsyncIterator[foreign.ModelResponseStreamEvent], *, within: float | None
) -> foreign.ModelResponseStreamEvent | None:
    async with asyncio.timeout(within):
        return await anext(events, None)


def _chunk(event: foreign.ModelResponseStreamEvent) -> Chunk | None:
    match event:
        case (
            foreign.PartStartEvent(part=foreign.TextPart(content=text))
            | foreign.PartDeltaEvent(delta=foreign.TextPartDelta(content_delta=text))
        ):
            return TextDelta(text) if text else None
        case (
            foreign.PartStartEvent(part=foreign.ThinkingPart(content=text))
            | foreign.PartDeltaEvent(delta=foreign.ThinkingPartDelta(content_delta=text))
        ):
            return ThinkingDelta(text) if text else None
        case foreign.PartStartEvent(index=index, part=foreign.ToolCallPart() as part):
            return ToolCallDelta(index=index, id=part.tool_call_id, name=part.tool_name, arguments=_text(part.args))
        case foreign.PartDeltaEvent(index=index, delta=foreign.ToolCallPartDelta() as delta):
            return ToolCallDelta(
                index=index, id=delta.tool_call_id, name=delta.tool_name_delta, arguments=_text(delta.args_delta)
            )
        case _:
            return None


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else ""


def _settings(prompt: Prompt, model: ForeignModel) -> ModelSettings:
    settings = ModelSettings()
    if prompt.max_tokens is not None:
        settings["max_tokens"] = prompt.max_tokens
    if prompt.temperature is not None:
        settings["temperature"] = prompt.temperature
    # Providers whose client does not know these settings warn of them; the time-out holds there without it.
    if hasattr(getattr(model, "client", None), "max_retries"):
        settings["max_retries"] = 0
        if prompt.timeout is not None:
            settings["timeout"] = prompt.timeout
        if prompt.headers:
            settings["extra_headers"] = dict(prompt.headers)
    return settings


def _parameters(prompt: Prompt) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[to_foreign_tool(tool) for tool in prompt.tools],
        instruction_parts=[foreign.InstructionPart(content=prompt.system)] if prompt.system else None,
    )


def _known(name: str, api_key: str | None) -> ForeignModel:
    """A model of a provider that pydantic-ai knows by name."""
    if ":" not in name:
        if name.startswith("claude"):
            name = f"anthropic:{name}"
        elif _OPENAI.match(name):
            name = f"openai:{name}"

    def provider(kind: str) -> Provider[Any]:
        # Each provider's class takes its key by this name, though their common base does not say so.
        make: Any = infer_provider_class(kind)
        return make(api_key=api_key)

    return infer_model(name, infer_provider if api_key is None else provider)


def _at(base_url: str, name: str, api_key: str | None) -> ForeignModel:
    """A model on a server of one's own; without a key none is sent, least of all another provider's."""
    if name.startswith("anthropic:"):
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        # Anthropic's client writes the version into the path itself.
        root = base_url.rstrip("/").removesuffix("/v1")
        provider = AnthropicProvider(api_key=api_key or "none", base_url=root)
        return AnthropicModel(name.removeprefix("anthropic:"), provider=provider)
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    return OpenAIChatModel(
        name.removeprefix("openai:"), provider=OpenAICompatibleProvider(_SERVER, base_url=base_url, api_key=api_key)
    )


@contextmanager
def _sorted(model: str) -> Generator[None, None, None]:
    """Errors of the provider and of the way to it, raised as Quire's; all others pass."""
    try:
        yield
    except TimeoutError as exc:
        raise ModelUnavailable(f"{model} did not answer in time; repeat the call, or allow it longer.") from exc
    except Exception as exc:  # noqa: BLE001 (sorted below; what is not the provider's doing is raised again)
        _raise_sorted(exc, model)


def _raise_sorted(exc: Exception, model: str) -> NoReturn:
    error = from_exception(exc, model=model)
    if error is None:
        raise exc
    raise error from exc
