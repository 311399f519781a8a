"""`quire serve`: runs the server, for the local user with a token or for many users with API keys."""

import asyncio
import hmac
import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from quire.cli.chat import AgentOption, VaultOption
from quire.cli.common import EXIT_FAILED, SetOptions, enable_garbage_collection, run_async
from quire.cli.engine_setup import wait_for_database
from quire.cli.output import print_note
from quire.cli.paths import get_servers_folder
from quire.cli.platforms import IS_WINDOWS
from quire.errors import InvalidConfiguration, MissingExtra, QuireError
from quire.model.base import FrozenModel

if TYPE_CHECKING:
    import socket

    from quire.errors import StoreUnavailable
    from quire.model.agents import Agent
    from quire.server.telemetry.logs import LogLineFormat
    from quire.settings import Settings

PROBE_SECONDS = 20.0
"""Seconds that a server has to answer before it counts as not running. One that starts on a busy machine takes several;
a port that nothing listens on refuses at once."""


class LogFormat(StrEnum):
    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of a server process; picklable, because they are passed to spawned processes."""

    settings: "Settings"
    database_url: str
    agent: "Agent | None"
    local_token: str | None
    """Token of the local user; None if requests need API keys."""
    grace_seconds: float
    log_format: "LogLineFormat"


def command(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 for a free port.")] = 8300,
    workers: Annotated[int, typer.Option(min=1, help="Server processes; more than one needs PostgreSQL.")] = 1,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    keys: Annotated[
        bool | None,
        typer.Option(
            "--keys/--no-keys",
            help="Require API keys (`quire key create`); default: only if other machines can connect.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Graceful shutdown: time for running turns and streams.")
    ] = 20.0,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Log format; default: text on a terminal, else json.", show_default=False),
    ] = None,
    agent: AgentOption = None,
    vault: VaultOption = None,
    overrides: SetOptions = None,
) -> None:
    """Serve the web interface, the API under /api, and the gateway for OpenAI clients under /v1.

    On loopback, the printed address contains a token that grants full access. Where other machines can connect, every
    request needs an API key. SIGTERM or Ctrl-C shuts down gracefully; a second one stops at once.
    """
    check_server_extra("Serving")
    from quire.cli.chat.runtime import build_overrides
    from quire.db.database_url import is_postgres
    from quire.server.addresses import bind_socket, check_loopback
    from quire.server.telemetry.logs import configure_logging, log_server_event

    # A server for the local user only must listen on loopback.
    is_local = not keys
    if is_local:
        try:
            check_loopback(host)
        except InvalidConfiguration:
            if keys is not None:
                raise
            is_local = False
    as_text = log_format is LogFormat.text or (log_format is None and sys.stderr.isatty())
    options = build_options(
        build_overrides(overrides, agent=agent, vault=vault),
        local=is_local,
        grace_seconds=grace,
        log_format="text" if as_text else "json",
    )
    if workers > 1 and IS_WINDOWS:
        raise InvalidConfiguration("Several workers need Linux or macOS; on Windows use --workers 1.")
    if workers > 1 and not is_postgres(options.database_url):
        raise InvalidConfiguration(
            "Several workers need PostgreSQL, not SQLite: use --workers 1, or set `database_url` to postgresql://…"
        )
    configure_logging(options.log_format)

    def report_wait(error: "StoreUnavailable", pause_seconds: float) -> None:
        kind = type(error).__name__
        log_server_event("waiting for the database", level=logging.WARNING, error_kind=kind, retry_in=pause_seconds)

    # Before the address is printed: an unusable database is reported here, once, and not by every process.
    run_async(wait_for_database(options.database_url, report=report_wait))
    with bind_socket(host, port) as listener:
        if not _serve_on(listener, options, host, workers=workers, opens_browser=open_):
            raise typer.Exit(EXIT_FAILED)


def _serve_on(
    listener: "socket.socket", options: "ServeOptions", host: str, *, workers: int, opens_browser: bool
) -> bool:
    """Prints the address and serves until a signal; returns whether all processes ended as they should."""
    import webbrowser

    from quire.server.addresses import server_url
    from quire.server.lifecycle import Supervisor

    port = listener.getsockname()[1]
    url, is_local = server_url(host, port, options.local_token), options.local_token is not None
    # Only a server of the local user is registered for `quire run`.
    with register_server(make_local_server(options, host, port)) if is_local else nullcontext():
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if is_local:
            print_note(f"Open this address. For OpenAI clients: {server_url(host, port)}v1, with the token as API key.")
        else:
            print_note("Requests need an API key: create one with `quire key create NAME --scope read --scope chat`.")
            uses_host = options.agent is not None or options.settings.vault is not None
            if uses_host and not options.settings.trusted_tenants:
                print_note("Vault and agent are off for API keys: name the tenants that use them in `trusted_tenants`.")
        if opens_browser:
            webbrowser.open(url)
        if workers == 1:
            run_async(serve_app(options, listener))
            return True
        grace_seconds = options.grace_seconds
        return Supervisor(serve_in_process, options, listener, workers=workers, grace_seconds=grace_seconds).run()


def check_server_extra(feature: str) -> None:
    """Checks that the extra `server` is installed, without the time that its import takes."""
    from importlib.util import find_spec

    if any(find_spec(package) is None for package in ("fastapi", "uvicorn", "aiohttp", "httpx2")):
        raise MissingExtra(extra="server", feature=feature)


def build_options(
    overrides: Sequence[str] | None, *, local: bool, grace_seconds: float, log_format: "LogLineFormat"
) -> ServeOptions:
    from quire.cli.engine_setup import load_cli_settings, resolve_database_url
    from quire.server.addresses import generate_token
    from quire.settings.sources import parse_options

    settings, agent = load_cli_settings(overrides).settings, None
    if settings.agent is not None:
        from quire.context.agent_loader import load_agent

        agent = load_agent(Path(settings.agent))
        values = {**settings.model_dump(), **agent.setting_overrides, **parse_options(overrides or ()).values}
        settings = type(settings).model_validate(values)
    return ServeOptions(
        settings=settings,
        database_url=resolve_database_url(settings),
        agent=agent,
        local_token=generate_token() if local else None,
        grace_seconds=grace_seconds,
        log_format=log_format,
    )


def make_local_server(options: ServeOptions, host: str, port: int) -> "LocalServer":
    """Describes a server with a token."""
    from quire.server.addresses import server_url

    return LocalServer(
        url=server_url(host, port).rstrip("/"),
        token=options.local_token or "",
        configuration=digest_configuration(options.settings, options.database_url, os.environ),
    )


def serve_in_process(options: ServeOptions, listener: "socket.socket", *, is_preloaded: bool = True) -> None:
    """Entry point of a spawned server process."""
    from quire.server.telemetry.logs import configure_logging

    configure_logging(options.log_format)
    run_async(serve_app(options, listener, is_preloaded=is_preloaded))


async def serve_app(options: ServeOptions, listener: "socket.socket", *, is_preloaded: bool = True) -> None:
    """Serves until a signal. Without `is_preloaded`, the first requests are served while modules are still imported."""
    from quire.cli.engine_setup import build_embedder, build_summarizer
    from quire.server.app import create_app
    from quire.server.lifecycle import run_server
    from quire.server.state import open_server_state

    if is_preloaded:
        _preload_modules(options.settings)
    async with open_server_state(
        options.database_url,
        options.settings,
        agent=options.agent,
        summarizer=build_summarizer(options.settings),
        embedder=await build_embedder(options.settings),
        environ=os.environ,
        is_local=options.local_token is not None,
        save_settings=_save_settings if options.local_token is not None else None,
    ) as state:
        app = create_app(state, token=options.local_token)
        if not is_preloaded:
            asyncio.get_running_loop().run_in_executor(None, _preload_modules, options.settings)
        await run_server(app, listener, grace_seconds=options.grace_seconds)


def _preload_modules(settings: "Settings") -> None:
    """Imports what would otherwise block the event loop for a second or two when a request first needs it."""
    from importlib import import_module

    from quire.llm import get_model
    from quire.wire.tokens import counter_for

    # First the tokenizer of the default model, which every request needs.
    counter_for(settings.model, tokenizer=settings.tokenizer).count(" ")
    for module in (
        "quire.llm.pydantic_ai_model",
        "quire.search.segments",
        "quire.compaction.extractive_summary",
    ):
        with suppress(ImportError):
            import_module(module)
    # The SDK of the model's provider, by building a model that is never called.
    with suppress(ImportError, QuireError):
        get_model(settings.model, base_url=settings.base_url, api_key="unused")
    enable_garbage_collection()


def _save_settings(changes: Mapping[str, Any]) -> None:
    """Saves settings changed in the web interface to the user's file, like `quire config set`."""
    from quire.cli import paths
    from quire.cli.config import write_setting

    for name, value in changes.items():
        write_setting(paths.get_user_settings_path(os.environ), name, value)


class LocalServer(FrozenModel):
    """A server on loopback with a token."""

    url: str
    """Base URL, without a path and without the token."""
    token: str
    configuration: str
    """Digest of its settings, its database and its API keys of upstreams."""

    def is_running(self) -> bool:
        """Whether this server answers. Another program on its port gets no token and cannot answer the challenge."""
        from quire.server.addresses import CHALLENGE_HEADER, generate_token, sign_challenge

        challenge = generate_token()
        proof = sign_challenge(self.token, challenge).encode()
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", "/healthz", headers={CHALLENGE_HEADER: challenge})
            return hmac.compare_digest(connection.getresponse().read(len(proof) + 1), proof)
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def digest_configuration(settings: "Settings", database_url: str, environ: Mapping[str, str]) -> str:
    """Computes a digest that is equal for servers with the same settings, database and API keys of upstreams."""
    if database_url.startswith("sqlite:///"):
        database_url = str(Path(database_url.removeprefix("sqlite:///")).absolute())
    variables = [each.api_key_env for each in settings.upstreams.values()]
    api_keys = [environ.get(name) for name in variables if name is not None]
    return sha256(f"{database_url}\n{api_keys}\n{settings.model_dump_json()}".encode()).hexdigest()


@contextmanager
def register_server(server: LocalServer) -> Generator[None]:
    """Lets `find_server` find the server while the context is open. Only the user can read the file.

    Where the data folder is read-only, the server runs unregistered.
    """
    path = get_servers_folder() / f"{os.getpid()}.json"
    with suppress(OSError):
        create_servers_folder()
        path.unlink(missing_ok=True)
        with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(server.model_dump_json())
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def create_servers_folder() -> Path:
    folder = get_servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def find_server(configuration: str) -> LocalServer | None:
    """Finds a running server with this configuration. Files of servers that have crashed are ignored."""
    for path in sorted(get_servers_folder().glob("*.json")):
        with suppress(OSError, ValidationError):
            server = LocalServer.model_validate_json(path.read_bytes())
            if server.configuration == configuration and server.is_running():
                return server
    return None
