"""`Model` implementation on pydantic-ai's direct requests. Importing this module needs the `llm` extra.

A call is made once: retries are disabled in the provider's SDK, so that the caller controls timeouts, spending and
recording. Connections are closed after each call, unless the model is entered with `async with`.
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

import httpx2
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from quire.errors import ModelRefused, ModelRequestRejected
from quire.llm.chat_completions_model import COMPATIBLE_PROVIDER_NAME, OPENAI_NAME_PATTERN, get_ssl_context
from quire.llm.error_mapping import classify_exception
from quire.llm.protocol import ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.llm.pydantic_ai_messages import to_pydantic_ai, to_pydantic_ai_tool, to_reply
from quire.wire import Reply

# Models that take no temperature, such as reasoning models, get none: pydantic-ai omits it, and warns each time.
warnings.filterwarnings("ignore", message="Sampling parameters .* are not supported", category=UserWarning)


class PydanticAIModel:
    """One model at one provider. Tasks can share it. Event loops can use it one after the other."""

    def __init__(self, name: str, model: ProviderModel) -> None:
        self.name = name
        self._model = model
        _share_certificates(model)

    @classmethod
    def from_name(cls, name: str, *, base_url: str | None, api_key: str | None) -> Self:
        """Returns a model on the server at `base_url`, or one of a provider that pydantic-ai knows by name."""
        try:
            with _map_errors(name):
                if base_url is not None:
                    return cls(name, _build_model_at_url(base_url, name, api_key))
                known_name = name
                if ":" not in name and name.startswith("claude"):
                    known_name = f"anthropic:{name}"
                elif ":" not in name and OPENAI_NAME_PATTERN.match(name):
                    known_name = f"openai:{name}"

                def make_provider(kind: str) -> Provider[Any]:
                    # Every provider class has this parameter, though their base class does not declare it.
                    provider_class: Any = infer_provider_class(kind)
                    return provider_class(api_key=api_key)

                return cls(name, infer_model(known_name, infer_provider if api_key is None else make_provider))
        except ImportError as exc:
            raise ModelRequestRejected(f"The provider of {name} needs a package that is not installed: {exc}") from exc

    @property
    def base_url(self) -> str | None:
        """Base URL of the provider's API, if it is called over HTTP."""
        return self._model.base_url

    async def complete(self, prompt: Prompt) -> Reply:
        with _map_errors(self.name):
            async with asyncio.timeout(prompt.timeout), self._model:
                response = await model_request(
                    self._model,
                    to_pydantic_ai(prompt.messages, load_blob=prompt.load_blob),
                    model_settings=_build_settings(prompt, self._model),
                    model_request_parameters=_build_parameters(prompt),
                )
        return self._to_reply(response)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        with _map_errors(self.name):
            async with self._model, self._open_stream(prompt) as (events, get_response):
                while True:
                    async with asyncio.timeout(prompt.timeout):
                        event = await anext(events, None)
                    if event is None:
                        break
                    if (chunk := _to_chunk(event)) is not None:
                        yield chunk
                response = get_response()
        yield self._to_reply(response)

    async def __aenter__(self) -> Self:
        await self._model.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._model.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _open_stream(self, prompt: Prompt) -> AsyncGenerator[Any, None]:
        """Yields the events of a streamed response, and a function that returns the response accumulated so far."""
        request = model_request_stream(
            self._model,
            to_pydantic_ai(prompt.messages, load_blob=prompt.load_blob),
            model_settings=_build_settings(prompt, self._model),
            model_request_parameters=_build_parameters(prompt),
        )
        async with asyncio.timeout(prompt.timeout):
            stream = await request.__aenter__()
        try:
            yield aiter(stream), stream.get
        finally:
            await request.__aexit__(None, None, None)

    def _to_reply(self, response: pai.ModelResponse) -> Reply:
        if response.finish_reason == "content_filter":
            reason = (response.provider_details or {}).get("refusal") or response.text or "no reason given"
            raise ModelRefused(f"{self.name} refused: {reason}")
        return to_reply(response)


def _to_chunk(event: pai.ModelResponseStreamEvent) -> ModelChunk | None:
    match event:
        case (
            pai.PartStartEvent(part=pai.TextPart(content=text))
            | pai.PartDeltaEvent(delta=pai.TextPartDelta(content_delta=text))
        ):
            return TextDelta(text) if text else None
        case (
            pai.PartStartEvent(part=pai.ThinkingPart(content=text))
            | pai.PartDeltaEvent(delta=pai.ThinkingPartDelta(content_delta=text))
        ):
            return ThinkingDelta(text) if text else None
        case pai.PartStartEvent(index=index, part=pai.ToolCallPart() as part):
            return ToolCallDelta(index=index, id=part.tool_call_id, name=part.tool_name, arguments=_as_text(part.args))
        case pai.PartDeltaEvent(index=index, delta=pai.ToolCallPartDelta() as delta):
            return ToolCallDelta(
                index=index, id=delta.tool_call_id, name=delta.tool_name_delta, arguments=_as_text(delta.args_delta)
            )
        case _:
            return None


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else ""


def _build_settings(prompt: Prompt, model: ProviderModel) -> ModelSettings:
    settings = ModelSettings()
    if prompt.max_tokens is not None:
        settings["max_tokens"] = prompt.max_tokens
    if prompt.temperature is not None:
        settings["temperature"] = prompt.temperature
    # Other clients warn about settings they do not know; the timeout is enforced without them as well.
    if hasattr(getattr(model, "client", None), "max_retries"):
        settings["max_retries"] = 0
        if prompt.timeout is not None:
            settings["timeout"] = prompt.timeout
        if prompt.headers:
            settings["extra_headers"] = dict(prompt.headers)
    return settings


def _build_parameters(prompt: Prompt) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[to_pydantic_ai_tool(tool) for tool in prompt.tools],
        instruction_parts=[pai.InstructionPart(content=prompt.system)] if prompt.system else None,
    )


def _share_certificates(model: ProviderModel) -> None:
    """Has the provider open all its clients with one SSL context.

    It closes its client after each call and opens another for the next one. That would load all certificates again,
    which takes 40 ms on the event loop.
    """
    provider: Any = model.provider
    first = getattr(provider, "_own_http_client", None)
    if not isinstance(first, httpx2.AsyncClient):
        return

    def open_client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=get_ssl_context(),
            timeout=first.timeout,
            headers=first.headers,
            event_hooks=first.event_hooks,
            limits=httpx2.Limits(),
        )

    # pydantic-ai's own gateway provider sets it in the same way; no parameter does.
    provider._http_client_factory = open_client


def _build_model_at_url(base_url: str, name: str, api_key: str | None) -> ProviderModel:
    """Returns a model on a custom server. Without a key none is sent, in particular not another provider's."""
    if name.startswith("anthropic:"):
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        # Anthropic's client adds the version to the path itself.
        root = base_url.rstrip("/").removesuffix("/v1")
        provider = AnthropicProvider(api_key=api_key or "none", base_url=root)
        return AnthropicModel(name.removeprefix("anthropic:"), provider=provider)
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    compatible = OpenAICompatibleProvider(COMPATIBLE_PROVIDER_NAME, base_url=base_url, api_key=api_key)
    if name.startswith("openai-responses:"):
        return OpenAIResponsesModel(name.removeprefix("openai-responses:"), provider=compatible)
    return OpenAIChatModel(name.removeprefix("openai:"), provider=compatible)


@contextmanager
def _map_errors(model: str) -> Generator[None, None, None]:
    """Raises provider and network errors as `ModelError`; others pass unchanged."""
    try:
        yield
    except Exception as exc:
        error = classify_exception(exc, model=model)
        if error is None:
            raise
        raise error from exc
