"""`quire init`: detects a model and writes a settings file.

A model comes from a provider's API key in the environment, or from an OpenAI-compatible server on this machine. API
keys are only checked for presence, never printed or stored; servers are probed on loopback only, each with a timeout.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from quire.cli import paths
from quire.cli.local_models import DEFAULT_SERVER_ADDRESSES, LocalModelServer, ServerAddress, find_local_servers
from quire.cli.output import Result, Verbatim
from quire.cli.workspace_trust import read_project_file, remember
from quire.errors import InvalidConfiguration, InvalidRequest
from quire.llm.providers import PROVIDERS
from quire.schemas.setup import InitSchema, ModelAlternativeSchema
from quire.settings.toml_template import render_settings_template


class ProviderKey(NamedTuple):
    """Environment variable of a provider's API key, and a default model of that provider."""

    variable: str
    provider: str
    model: str


PROVIDER_KEYS = tuple(
    ProviderKey(variable, provider.label, f"{name}:{provider.default_model}")
    for name, provider in PROVIDERS.items()
    for variable in provider.key_variables
)
"""The first variable that is set wins."""


def find_provider_keys(environ: Mapping[str, str]) -> list[ProviderKey]:
    return [key for key in PROVIDER_KEYS if environ.get(key.variable, "").strip()]


class ModelChoice(NamedTuple):
    source: Literal["option", "key", "server", "none"]
    explanation: str
    settings: dict[str, Any]


def command(
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing settings file.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Write ./quire.toml, for this project only.")] = False,
    model: Annotated[str | None, typer.Option(help="Use this model instead of a detected one.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Use this OpenAI-compatible server.")] = None,
    vault: Annotated[Path | None, typer.Option(help="The folder of notes that links and @paths refer to.")] = None,
) -> Result:
    """Write a settings file, with a model detected from API keys or local servers."""
    path = Path.cwd() / paths.SETTINGS_FILENAME if here else paths.get_user_settings_path(os.environ)
    if path.exists() and not force:
        raise InvalidConfiguration(f"{path} already exists; overwrite it with `quire init --force`.")
    result = write_initial_settings(path, os.environ, model=model, base_url=base_url, vault=vault)
    if here and (written := read_project_file(path.parent)) is not None:
        remember(written, "trusted")
    return Result(result, lambda _: [Verbatim(format_init_result(result))])


def write_initial_settings(
    path: Path,
    environ: Mapping[str, str],
    *,
    model: str | None = None,
    base_url: str | None = None,
    vault: Path | None = None,
    addresses: Sequence[ServerAddress] = DEFAULT_SERVER_ADDRESSES,
) -> InitSchema:
    """Detects keys and servers, chooses a model, and writes the settings file."""
    keys = find_provider_keys(environ)
    probed = [ServerAddress("a server", base_url)] if base_url is not None else [] if model is not None else addresses
    servers = find_local_servers(probed)
    choice = choose_model(keys, servers, model=model, base_url=base_url)
    settings = dict(choice.settings)
    if vault is not None:
        if not vault.is_dir():
            raise InvalidConfiguration(f"{vault} is not a folder; create it, or choose another with --vault.")
        settings["vault"] = str(vault.resolve())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_settings_template(settings), encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be written: {error}.") from error
    first_steps = ["quire chat", 'quire ask "What can you do?"'] if choice.source != "none" else ["quire init --force"]
    return InitSchema(
        path=str(path),
        written=True,
        model=settings.get("model"),
        base_url=settings.get("base_url"),
        context_limit=settings.get("context_limit"),
        summarizer=settings.get("model"),
        vault=settings.get("vault"),
        source=choice.source,
        explanation=choice.explanation,
        alternatives=[
            *(
                ModelAlternativeSchema(
                    name=f"{key.provider} ({key.variable})", command=f"quire init --force --model {key.model}"
                )
                for key in keys
                if key.model != settings.get("model")
            ),
            *(
                ModelAlternativeSchema(
                    name=f"{name} ({server.address.program})",
                    command=f"quire init --force --base-url {server.address.url} --model {name}",
                )
                for server in servers
                for name in server.models
                if (name, server.address.url) != (settings.get("model"), settings.get("base_url"))
            ),
        ],
        next_steps=[
            *first_steps,
            *([] if vault is not None else ["quire config set vault ~/notes"]),
            "quire config list",
        ],
    )


def choose_model(
    keys: Sequence[ProviderKey],
    servers: Sequence[LocalModelServer],
    *,
    model: str | None = None,
    base_url: str | None = None,
) -> ModelChoice:
    """Chooses a model: options before detected ones, an API key before a local server. Pure function."""
    if base_url is not None:
        return _choose_server_model(base_url, servers[0] if servers else None, model)
    if model is not None:
        return ModelChoice("option", "from --model", {"model": model})
    if keys:
        return ModelChoice("key", f"{keys[0].variable} is set in the environment", {"model": keys[0].model})
    if servers:
        return _choose_server_model(servers[0].address.url, servers[0], None)
    return ModelChoice(
        "none",
        "no API key is set in the environment, and no local server answers. Set OPENAI_API_KEY, ANTHROPIC_API_KEY or "
        "another provider's key, or start Ollama, LM Studio, llama.cpp or vLLM; then run `quire init --force`",
        {},
    )


def _choose_server_model(url: str, server: LocalModelServer | None, model: str | None) -> ModelChoice:
    if server is None and model is None:
        raise InvalidRequest(f"No OpenAI-compatible server answers at {url}; start it, or pass its model as --model.")
    name = model or (server.models[0] if server else "")
    settings: dict[str, Any] = {"model": name, "base_url": url}
    if server is not None and server.window is not None:
        settings["context_limit"] = server.window
    explanation = f"{server.address.program} answers at {url}" if server else f"from --model; no server at {url} yet"
    return ModelChoice("server" if server else "option", explanation, settings)


def format_init_result(result: InitSchema) -> str:
    """Formats the result as text."""
    model = (
        f"Model: {result.model} ({result.explanation})."
        if result.model
        else f"No model was found: {result.explanation}."
    )
    lines = [f"Wrote {result.path}.", model]
    if result.context_limit is not None:
        lines.append(f"Context window: {result.context_limit:,} tokens; change it with `context_limit`.")
    if result.summarizer is not None:
        lines.append(f"Summaries: by {result.summarizer} too; name another model with `summarizer`.")
    if result.model is None:
        lines.append(
            "Without a model everything works except sending messages; old messages are extracted, not summarized."
        )
    if result.vault is not None:
        lines.append(f"Vault: {result.vault}.")
    if result.alternatives:
        lines += ["Also found:", *(f"  {each.name}: {each.command}" for each in result.alternatives)]
    return "\n".join([*lines, "Next:", *(f"  {each}" for each in result.next_steps)])
