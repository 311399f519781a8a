"""Finds a model to talk to: a provider's key in the environment, or an OpenAI-compatible server on this machine.

Keys are seen, never read out; servers are asked on loopback alone, each for as long as it may take and no longer.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

SECONDS = 1.0
"""How long a server may take to answer; one on this machine needs a few thousandths."""
LARGEST = 1_000_000
LOOPBACK = "127.0.0.1"

_OLLAMA_WINDOW = 4_096
_NO_CHAT = ("embed", "bge-", "rerank", "whisper", "tts", "clip", "moderation", "guard")
"""Parts of the names of models that do not chat."""


class Key(NamedTuple):
    """A variable that holds a provider's key, and a model of that provider to begin with."""

    variable: str
    provider: str
    model: str


KEYS = (
    Key("OPENAI_API_KEY", "OpenAI", "openai:gpt-4o"),
    Key("ANTHROPIC_API_KEY", "Anthropic", "anthropic:claude-sonnet-4-5"),
    Key("GOOGLE_API_KEY", "Google", "google:gemini-2.5-flash"),
    Key("GEMINI_API_KEY", "Google", "google:gemini-2.5-flash"),
    Key("OPENROUTER_API_KEY", "OpenRouter", "openrouter:openai/gpt-4o"),
    Key("MISTRAL_API_KEY", "Mistral", "mistral:mistral-large-latest"),
    Key("GROQ_API_KEY", "Groq", "groq:llama-3.3-70b-versatile"),
    Key("DEEPSEEK_API_KEY", "DeepSeek", "deepseek:deepseek-chat"),
    Key("XAI_API_KEY", "xAI", "xai:grok-4"),
    Key("CO_API_KEY", "Cohere", "cohere:command-r-plus-08-2024"),
    Key("CEREBRAS_API_KEY", "Cerebras", "cerebras:gpt-oss-120b"),
    Key("MOONSHOTAI_API_KEY", "Moonshot AI", "moonshotai:kimi-latest"),
    Key("ZAI_API_KEY", "Z.AI", "zai:glm-4.5"),
    Key("TOGETHER_API_KEY", "Together AI", "together:meta-llama/Llama-3.3-70B-Instruct-Turbo"),
    Key("FIREWORKS_API_KEY", "Fireworks AI", "fireworks:accounts/fireworks/models/llama-v3p3-70b-instruct"),
    Key("HF_TOKEN", "Hugging Face", "huggingface:meta-llama/Llama-3.3-70B-Instruct"),
)
"""Of several, the first that is set is taken."""


class Place(NamedTuple):
    """Where a server may be, and the program that usually listens there."""

    program: str
    url: str


USUAL_PLACES = tuple(
    Place(program, f"http://{LOOPBACK}:{port}/v1")
    for program, port in (("Ollama", 11434), ("LM Studio", 1234), ("llama.cpp", 8080), ("vLLM", 8000))
)


class Server(NamedTuple):
    place: Place
    models: tuple[str, ...]
    """Those that seem to chat."""
    window: int | None = None
    """Tokens that it takes, where it says so."""


def found_keys(environ: Mapping[str, str]) -> list[Key]:
    return [key for key in KEYS if environ.get(key.variable, "").strip()]


def found_servers(places: Sequence[Place] = USUAL_PLACES, *, seconds: float = SECONDS) -> list[Server]:
    """The servers that answer at these places and have a model to chat with; all are asked at once."""
    if not places:
        return []
    with ThreadPoolExecutor(len(places)) as threads:
        answers = threads.map(partial(_asked, seconds=seconds), places)
        return [server for server in answers if server is not None]


def _asked(place: Place, *, seconds: float) -> Server | None:
    listed = list(_models(_json(f"{place.url.rstrip('/')}/models", seconds)))
    chatting = tuple(name for name, _ in listed if not any(part in name.lower() for part in _NO_CHAT))
    if not chatting:
        return None
    said = next((window for name, window in listed if name == chatting[0]), None)
    return Server(place, chatting, said or _window(place, seconds))


def _models(answer: object) -> Iterator[tuple[str, int | None]]:
    """The names in a list of models, with the window where the server tells it there, as vLLM does."""
    data = _field(answer, "data")
    for each in cast("list[object]", data) if isinstance(data, list) else ():
        name = _field(each, "id")
        if isinstance(name, str) and name:
            yield name, _number(_field(each, "max_model_len"))


def _window(place: Place, seconds: float) -> int | None:
    """llama.cpp tells its window beside the models. Ollama cuts what is too long without a word, so its own is taken
    to be what it usually is."""
    root = place.url.rstrip("/").removesuffix("/v1")
    generation = _field(_json(f"{root}/props", seconds), "default_generation_settings")
    return _number(_field(generation, "n_ctx")) or (_OLLAMA_WINDOW if place.program == "Ollama" else None)


def _json(url: str, seconds: float) -> object:
    """What stands there, or None. Straight to the server, whatever proxy is set for the rest of the world."""
    parts = urlsplit(url)
    try:
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.request("GET", parts.path, headers={"accept": "application/json"})
            answer = connection.getresponse()
            return json.loads(answer.read(LARGEST)) if answer.status == http.client.OK else None
        finally:
            connection.close()
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None


def _field(value: object, name: str) -> object:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
