"""`quire init`: writes a settings file that explains itself, with a model that was found; says what it did."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from quire.cli import places
from quire.cli.detect import USUAL_PLACES, Key, Place, Server, found_keys, found_servers
from quire.errors import InvalidConfiguration, InvalidRequest
from quire.model.value import Value
from quire.settings.written import commented


class Alternative(Value):
    """Something else that could be used, and the command that would."""

    name: str
    command: str


class Initialised(Value):
    """What `quire init --json` prints."""

    path: str
    written: bool
    model: str | None
    base_url: str | None
    context_limit: int | None
    vault: str | None
    source: Literal["option", "key", "server", "none"]
    said: str
    """Where the model comes from, or what to do to have one."""
    also_found: tuple[Alternative, ...]
    next: tuple[str, ...]


class Chosen(NamedTuple):
    source: Literal["option", "key", "server", "none"]
    said: str
    settings: dict[str, Any]


def command(
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over a settings file that is there.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Write ./quire.toml, for this project alone.")] = False,
    model: Annotated[str | None, typer.Option(help="Use this model, whatever else is found.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Ask this OpenAI-compatible server.")] = None,
    vault: Annotated[Path | None, typer.Option(help="The folder that links and @paths lead into.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a settings file, with a model that a key or a local server offers."""
    path = Path.cwd() / places.SETTINGS_FILE if here else places.user_settings(os.environ)
    if path.exists() and not force:
        raise InvalidConfiguration(f"{path} is there already, and stays as it is; `quire init --force` writes it anew.")
    done = initialise(path, os.environ, model=model, base_url=base_url, vault=vault)
    typer.echo(done.model_dump_json(indent=2) if json else told(done))


def initialise(
    path: Path,
    environ: Mapping[str, str],
    *,
    model: str | None = None,
    base_url: str | None = None,
    vault: Path | None = None,
    usual: Sequence[Place] = USUAL_PLACES,
) -> Initialised:
    """Looks, chooses and writes."""
    keys = found_keys(environ)
    asked = [Place("a server", base_url)] if base_url is not None else [] if model is not None else usual
    servers = found_servers(asked)
    chosen = choose(keys, servers, model=model, base_url=base_url)
    settings = dict(chosen.settings)
    if vault is not None:
        settings["vault"] = str(_folder(vault))
    _write(path, commented(settings))
    return Initialised(
        path=str(path),
        written=True,
        model=settings.get("model"),
        base_url=settings.get("base_url"),
        context_limit=settings.get("context_limit"),
        vault=settings.get("vault"),
        source=chosen.source,
        said=chosen.said,
        also_found=_alternatives(keys, servers, settings),
        next=_next(chosen, settings),
    )


def choose(
    keys: Sequence[Key], servers: Sequence[Server], *, model: str | None = None, base_url: str | None = None
) -> Chosen:
    """What is asked for goes before what is found, and a key before a server. Pure."""
    if base_url is not None:
        return _at_server(base_url, servers[0] if servers else None, model)
    if model is not None:
        return Chosen("option", "as you asked", {"model": model})
    if keys:
        return Chosen("key", f"{keys[0].variable} is set in the environment", {"model": keys[0].model})
    if servers:
        return _at_server(servers[0].place.url, servers[0], None)
    return Chosen(
        "none",
        "no key is set in the environment, and no local server answers. Set OPENAI_API_KEY, ANTHROPIC_API_KEY or "
        "another provider's key, or start Ollama, LM Studio, llama.cpp or vLLM; then run `quire init --force`",
        {},
    )


def _at_server(url: str, server: Server | None, model: str | None) -> Chosen:
    if server is None and model is None:
        raise InvalidRequest(f"No OpenAI-compatible server answers at {url}; start it, or name its model by --model.")
    name = model or (server.models[0] if server else "")
    settings: dict[str, Any] = {"model": name, "base_url": url}
    if server is not None and server.window is not None:
        settings["context_limit"] = server.window
    said = f"{server.place.program} answers at {url}" if server else f"as you asked; nothing answers at {url} yet"
    return Chosen("server" if server else "option", said, settings)


def _folder(vault: Path) -> Path:
    if not vault.is_dir():
        raise InvalidConfiguration(f"{vault} is no folder; make it first, or name another by --vault.")
    return vault.resolve()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be written: {error}.") from error


def _alternatives(
    keys: Sequence[Key], servers: Sequence[Server], settings: Mapping[str, Any]
) -> tuple[Alternative, ...]:
    by_key = [
        Alternative(name=f"{key.provider} ({key.variable})", command=f"quire init --force --model {key.model}")
        for key in keys
        if key.model != settings.get("model")
    ]
    by_server = [
        Alternative(
            name=f"{name} ({server.place.program})",
            command=f"quire init --force --base-url {server.place.url} --model {name}",
        )
        for server in servers
        for name in server.models
        if (name, server.place.url) != (settings.get("model"), settings.get("base_url"))
    ]
    return (*by_key, *by_server)


def _next(chosen: Chosen, settings: Mapping[str, Any]) -> tuple[str, ...]:
    ways = ["quire chat", 'quire ask "What can you do?"'] if chosen.source != "none" else ["quire init --force"]
    return (*ways, *([] if "vault" in settings else ["quire chat --vault ~/notes"]), "quire config list")


def told(done: Initialised) -> str:
    """The same for people."""
    model = f"Model: {done.model} ({done.said})." if done.model else f"No model was found: {done.said}."
    lines = [f"Wrote {done.path}.", model]
    if done.context_limit is not None:
        lines.append(f"Its window: {done.context_limit:,} tokens; `context_limit` changes that.")
    if done.model is None:
        lines.append("Without a model everything but sending works.")
    if done.vault is not None:
        lines.append(f"Vault: {done.vault}.")
    if done.also_found:
        lines += ["Also found:", *(f"  {each.name}: {each.command}" for each in done.also_found)]
    return "\n".join([*lines, "Next:", *(f"  {each}" for each in done.next)])
