"""How `quire run` connects a program to the gateway: by environment variables and options, never by its files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, cast

from quire.cli.local_models import ServerAddress, is_local, probe_server
from quire.errors import InvalidConfiguration
from quire.model.json_values import get_object, is_object
from quire.settings import Settings
from quire.settings.schema import ModelEntry, Upstream, upstream_for

RUN_KEY_PREFIX = "quire run "
"""Start of the names of the keys that runs have."""
KEY_VARIABLE = "QUIRE_KEY"
"""Environment variable with the API key of Quire, for programs that read a header or a key from a variable."""
ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com"
CHATGPT_URL = "https://chatgpt.com/backend-api/codex"
"""API of a ChatGPT subscription, as Codex calls it."""
_CLAUDE_PROVIDER_SWITCHES = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
_PROXY_EXCEPTIONS = "127.0.0.1,localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The gateway as a program reaches it."""

    url: str
    """Base URL without `/v1`."""
    key: str
    passes_credentials: bool
    """Whether the program's own credentials go upstream. Quire's key is then in a separate header."""
    models: tuple[str, ...]
    """Models that the settings name, the default first."""
    answering_model: str | None = None
    """The model that answers in place of the provider's models, in another wire format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Changes to the command line and the environment of a program."""

    options: Sequence[str] = ()
    """Options before the user's own arguments."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    unset: Sequence[str] = ()
    """Environment variables that would lead the program past the gateway."""

    def build_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in environ.items() if name not in self.unset}
        no_proxy = {
            name: ",".join(filter(None, (environ.get(name), _PROXY_EXCEPTIONS))) for name in ("NO_PROXY", "no_proxy")
        }
        return {**inherited, **no_proxy, **self.variables}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """A program that `quire run` can connect."""

    connect: Callable[[Gateway, Mapping[str, str]], Launch]
    default_upstreams: Callable[[Mapping[str, str]], dict[str, Upstream]]
    """Upstreams by pattern where the settings have none, from the environment variables of the provider."""
    provider_models: tuple[str, ...] = ()
    """Patterns of the models that the program names by itself, which a server of another provider does not have."""
    prompt_tokens: int = 0
    """Tokens of the program's instructions and tools, which are in every request."""
    installation: str | None = None
    """Command that installs the program."""
    find_bypass: Callable[[Path, Mapping[str, str]], tuple[Path, str] | None] = lambda folder, environ: None
    """Finds a file of the program's own, in a folder or the home, that leads it past the gateway, and by what."""


def choose_upstreams(
    settings: Settings, program: AgentProgram, environ: Mapping[str, str], *, model: str | None = None
) -> Settings:
    """Settings with the upstreams of a run; with `model`, requests for all models go to that one."""
    settings = add_default_upstreams(add_local_model(settings), program, environ)
    if model is not None:
        upstream = upstream_for(settings, model)
        if upstream is None:
            raise InvalidConfiguration(f"No upstream serves the model {model!r}; add one, or set `base_url`.")
        upstreams = {"*": upstream.model_copy(update={"model": upstream.model or model})}
        settings = add_local_model(settings.model_copy(update={"upstreams": upstreams}))
    if not settings.base_url and not settings.upstreams:
        raise InvalidConfiguration(
            "There is no upstream: set `base_url` or `upstreams`, or the environment variable OPENAI_API_KEY, "
            "ANTHROPIC_API_KEY or GEMINI_API_KEY."
        )
    return settings


def add_default_upstreams(settings: Settings, program: AgentProgram, environ: Mapping[str, str]) -> Settings:
    """Adds the upstreams of the program's provider if the settings name none: traffic goes where the settings say.

    With `base_url`, the `model` of the settings answers for the provider's models, unless it is one of them.
    """
    if settings.base_url is None:
        added = {} if settings.upstreams else program.default_upstreams(environ)
    elif "*" in settings.upstreams or "model" not in settings.model_fields_set:
        added = {}
    else:
        upstream = Upstream(base_url=settings.base_url, model=settings.model)
        patterns = [each for each in program.provider_models if not fnmatchcase(settings.model, each)]
        added = {pattern: upstream for pattern in patterns if pattern not in settings.upstreams}
    # The settings come first, because the first matching pattern counts.
    return settings.model_copy(update={"upstreams": settings.upstreams | added}) if added else settings


class Route(NamedTuple):
    """Where requests for some model names go."""

    names: str
    """A model name or pattern."""
    upstream: Upstream | None
    """None if no upstream serves them: they are refused."""

    def describe(self, settings: Settings) -> tuple[str, str, str, str]:
        """The names, the host with its formats, the model there, and whose credential it gets."""
        upstream = self.upstream
        if upstream is None:
            return self.names, "refused: no upstream serves it", "", ""
        credential = "none"
        if upstream.credentials == "client":
            credential = "the program's own"
        elif upstream.api_key_env is not None:
            credential = upstream.api_key_env
        model = upstream.model or "the same"
        window = find_set_window(settings, upstream.model or self.names)
        size = f" ({window:,} tokens)" if window is not None else ""
        return self.names, f"{upstream.base_url} ({', '.join(upstream.speaks)})", f"{model}{size}", credential


def list_routes(settings: Settings, program: AgentProgram) -> list[Route]:
    """Where each model name goes: the program's own names, names in the settings, and every other."""
    names = dict.fromkeys([*settings.upstreams, *program.provider_models])
    routes = [Route(name, upstream_for(settings, name.replace("*", "x"))) for name in names]
    return routes if "*" in names else [*routes, Route("any other", upstream_for(settings, ""))]


def format_routes(routes: Sequence[Route], settings: Settings) -> str:
    """The routes as a table in plain text."""
    rows = [("model", "goes to", "as", "credential"), *(each.describe(settings) for each in routes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def add_local_model(settings: Settings) -> Settings:
    """Adds what a model server on this machine reports: its first model, if the settings name none, and its window."""
    url = settings.base_url
    if url is not None and is_local(url) and "model" not in settings.model_fields_set and not settings.upstreams:
        server = probe_server(ServerAddress("a server", url))
        if server is not None:
            changes = {"model": server.models[0]}
            settings = Settings.model_validate(settings.model_dump(exclude_unset=True) | changes)
    models = dict(settings.models)
    used = {(each.base_url, each.model) for each in settings.upstreams.values() if each.model is not None}
    if url is not None:
        used.add((url, settings.model))
    for address, model in sorted(used):
        if is_local(address) and find_set_window(settings, model) is None:
            server = probe_server(ServerAddress("a server", address), model=model)
            if server is not None and server.window is not None:
                models[model] = models.get(model, ModelEntry()).model_copy(update={"window": server.window})
    return settings.model_copy(update={"models": models}) if models != settings.models else settings


def find_set_window(settings: Settings, model: str) -> int | None:
    """The context window that the settings give for a model."""
    windows = (entry.window for pattern, entry in settings.models.items() if fnmatchcase(model, pattern))
    return next(filter(None, windows), settings.context_limit)


def find_answering_model(settings: Settings, program: AgentProgram) -> str | None:
    """Returns the model of an upstream for all models of the program's provider, unless it is passed their requests."""
    patterns = ("*", *program.provider_models)
    upstreams = (each for pattern, each in settings.upstreams.items() if pattern in patterns)
    return next((each.model for each in upstreams if each.speaks == ("chat",)), None)


def _connect_claude(gateway: Gateway, environ: Mapping[str, str]) -> Launch:
    unset = list(_CLAUDE_PROVIDER_SWITCHES)
    if gateway.passes_credentials:
        return Launch(
            variables={
                "ANTHROPIC_BASE_URL": gateway.url,
                "ANTHROPIC_CUSTOM_HEADERS": _add_key_header(gateway, environ),
            },
            unset=unset,
        )
    # In ANTHROPIC_API_KEY, Claude Code would first ask the user whether to use the key.
    variables = {"ANTHROPIC_BASE_URL": gateway.url, "ANTHROPIC_AUTH_TOKEN": gateway.key}
    return Launch(variables=variables, unset=[*unset, "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"])


def _find_claude_bypass(folder: Path, environ: Mapping[str, str]) -> tuple[Path, str] | None:
    """Variables in Claude Code's own settings override the environment."""
    home = Path(environ.get("CLAUDE_CONFIG_DIR") or Path(environ.get("HOME") or Path.home()) / ".claude")
    names = ("settings.json", "settings.local.json")
    for path in (home / "settings.json", *(folder / ".claude" / name for name in names)):
        try:
            settings: object = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        variables = get_object(settings, "env") if is_object(settings) else {}
        for variable in ("ANTHROPIC_BASE_URL", *_CLAUDE_PROVIDER_SWITCHES):
            if variables.get(variable):
                return path, variable
    return None


def _add_key_header(gateway: Gateway, environ: Mapping[str, str]) -> str:
    """Adds the key to the user's own headers; the variable has one header per line."""
    return "\n".join(filter(None, (environ.get("ANTHROPIC_CUSTOM_HEADERS"), f"X-Quire-Key: {gateway.key}")))


def _connect_codex(gateway: Gateway, environ: Mapping[str, str]) -> Launch:
    provider: dict[str, object] = {
        "name": "Quire",
        "base_url": f"{gateway.url}/v1",
        "wire_api": "responses",
        # Codex sends only what is new of its history, and falls back to HTTP where a proxy refuses it.
        "supports_websockets": True,
        # The header names the variable, so that no list of processes shows the key.
        **(
            {"requires_openai_auth": True, "env_http_headers.X-Quire-Key": KEY_VARIABLE}
            if gateway.passes_credentials
            else {"env_key": KEY_VARIABLE}
        ),
    }
    # Of a model that it knows, Codex sends the tools in a form that only OpenAI's own API has.
    model = {"model": gateway.answering_model} if gateway.answering_model is not None else {}
    values = {
        **model,
        "model_provider": "quire",
        **{f"model_providers.quire.{name}": each for name, each in provider.items()},
    }
    # Strings and booleans have the same form in JSON and in TOML, which Codex parses.
    options = [word for name, value in values.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    return Launch(options=options, variables={KEY_VARIABLE: gateway.key})


def _connect_gemini(gateway: Gateway, environ: Mapping[str, str]) -> Launch:
    """Without a choice in its settings, Gemini CLI accepts another address only as one of Vertex AI.

    So it gets the variables of both: which ones it reads is for its settings to say.
    """
    if gateway.passes_credentials:
        headers = (environ.get("GEMINI_CLI_CUSTOM_HEADERS"), f"X-Quire-Key: {gateway.key}")
        custom = ", ".join(filter(None, headers))
        return Launch(variables={"GOOGLE_GEMINI_BASE_URL": gateway.url, "GEMINI_CLI_CUSTOM_HEADERS": custom})
    addresses = dict.fromkeys(("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"), gateway.url)
    keys = dict.fromkeys(("GEMINI_API_KEY", "GOOGLE_API_KEY"), gateway.key)
    # With a project, a client of Vertex AI would log in to it.
    unset = ("GOOGLE_GENAI_USE_GCA", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_PROJECT_ID", "GOOGLE_CLOUD_LOCATION")
    return Launch(variables={**addresses, **keys, "GOOGLE_GENAI_USE_VERTEXAI": "true"}, unset=unset)


def _connect_opencode(gateway: Gateway, environ: Mapping[str, str]) -> Launch:
    options: dict[str, object] = {"baseURL": f"{gateway.url}/v1"}
    if gateway.passes_credentials:
        options["headers"] = {"X-Quire-Key": gateway.key}
    else:
        options["apiKey"] = gateway.key
    models: dict[str, object] = {name: {} for name in gateway.models}
    quire = {"npm": "@ai-sdk/openai-compatible", "name": "Quire", "options": options, "models": models}
    config = _parse_object(environ.get("OPENCODE_CONFIG_CONTENT"))
    providers: dict[str, object] = {"anthropic": {"options": options}, "openai": {"options": options}, "quire": quire}
    config["provider"] = _parse_object(config.get("provider")) | providers
    return Launch(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _parse_object(value: object) -> dict[str, object]:
    """Parses a part of the user's own configuration, which may be missing."""
    try:
        parsed: object = json.loads(value) if isinstance(value, str) and value else value
    except ValueError as error:
        raise InvalidConfiguration(f"OPENCODE_CONFIG_CONTENT is not valid JSON: {error}.") from error
    return dict(cast("dict[str, object]", parsed)) if isinstance(parsed, dict) else {}


def _connect_command(gateway: Gateway, environ: Mapping[str, str]) -> Launch:
    variables = {
        "OPENAI_BASE_URL": f"{gateway.url}/v1",
        "ANTHROPIC_BASE_URL": gateway.url,
        "GOOGLE_GEMINI_BASE_URL": gateway.url,
        KEY_VARIABLE: gateway.key,
    }
    if gateway.passes_credentials:
        variables["ANTHROPIC_CUSTOM_HEADERS"] = _add_key_header(gateway, environ)
    else:
        variables |= dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), gateway.key)
    # The clients of Anthropic and Google warn if both of their variables are set.
    unset = () if gateway.passes_credentials else ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY")
    return Launch(variables=variables, unset=unset)


def _get_claude_upstreams(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Uses the API key of the environment, else the login of Claude Code."""
    base_url = environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
    if environ.get("ANTHROPIC_API_KEY"):
        return {"*": Upstream(base_url=base_url, speaks=("messages",), api_key_env="ANTHROPIC_API_KEY")}
    return {"*": Upstream(base_url=base_url, speaks=("messages",), credentials="client")}


def _get_codex_upstreams(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Uses the API key of the environment, else the ChatGPT login of Codex."""
    return _get_openai_upstream(environ) or {
        "*": Upstream(base_url=CHATGPT_URL, speaks=("responses",), credentials="client")
    }


def _get_openai_upstream(environ: Mapping[str, str]) -> dict[str, Upstream]:
    if not environ.get("OPENAI_API_KEY"):
        return {}
    base_url = environ.get("OPENAI_BASE_URL") or OPENAI_URL
    return {"*": Upstream(base_url=base_url, speaks=("responses", "chat"), api_key_env="OPENAI_API_KEY")}


def _get_gemini_upstreams(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Uses the API key of the environment, else the one that Gemini CLI has stored."""
    base_url = environ.get("GOOGLE_GEMINI_BASE_URL") or GEMINI_URL
    if environ.get("GEMINI_API_KEY"):
        return {"*": Upstream(base_url=base_url, speaks=("gemini",), api_key_env="GEMINI_API_KEY")}
    return {"*": Upstream(base_url=base_url, speaks=("gemini",), credentials="client")}


def _get_opencode_upstreams(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Uses each provider whose API key is in the environment. opencode speaks chat completions with Google."""
    upstreams = _get_provider_upstreams(environ)
    if (gemini := upstreams.get("gemini-*")) is not None:
        base_url = f"{gemini.base_url.rstrip('/').removesuffix('/v1beta')}/v1beta/openai"
        upstreams["gemini-*"] = gemini.model_copy(update={"base_url": base_url, "speaks": ("chat",)})
    return upstreams


def _get_provider_upstreams(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Uses each provider whose API key is in the environment."""
    claude = {"claude-*": _get_claude_upstreams(environ)["*"]} if environ.get("ANTHROPIC_API_KEY") else {}
    gemini = {"gemini-*": _get_gemini_upstreams(environ)["*"]} if environ.get("GEMINI_API_KEY") else {}
    return claude | gemini | _get_openai_upstream(environ)


AGENT_PROGRAMS: Mapping[str, AgentProgram] = {
    "claude": AgentProgram(
        connect=_connect_claude,
        default_upstreams=_get_claude_upstreams,
        provider_models=("claude-*",),
        prompt_tokens=11_000,
        installation="npm install -g @anthropic-ai/claude-code",
        find_bypass=_find_claude_bypass,
    ),
    "codex": AgentProgram(
        connect=_connect_codex,
        default_upstreams=_get_codex_upstreams,
        provider_models=("gpt-*", "codex-*"),
        prompt_tokens=9_000,
        installation="npm install -g @openai/codex",
    ),
    "opencode": AgentProgram(
        connect=_connect_opencode,
        default_upstreams=_get_opencode_upstreams,
        provider_models=("claude-*", "gpt-*"),
        installation="npm install -g opencode-ai",
    ),
    "gemini": AgentProgram(
        connect=_connect_gemini,
        default_upstreams=_get_gemini_upstreams,
        provider_models=("gemini-*",),
        prompt_tokens=11_000,
        installation="npm install -g @google/gemini-cli",
    ),
}
OTHER_PROGRAM = AgentProgram(connect=_connect_command, default_upstreams=_get_provider_upstreams)
"""Any other program: the variables that the clients of OpenAI, Anthropic and Google read."""
