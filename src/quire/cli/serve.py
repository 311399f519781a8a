"""`quire serve`: runs the server, for the local user with a token or for many users with API keys."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.chat import AgentOption, VaultOption
from quire.cli.common import EXIT_FAILED, SetOptions, enable_garbage_collection, run_async
from quire.cli.output import print_note
from quire.cli.platforms import IS_WINDOWS
from quire.errors import InvalidConfiguration, MissingExtra

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from quire.cli.local_servers import LocalServer
    from quire.errors import StoreUnavailable
    from quire.model.agents import Agent
    from quire.server.telemetry.logs import LogLineFormat
    from quire.settings import Settings


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
    from quire.server.addresses import bind_socket
    from quire.server.telemetry.logs import configure_logging

    as_text = log_format is LogFormat.text or (log_format is None and sys.stderr.isatty())
    options = build_options(
        build_overrides(overrides or (), agent=agent, vault=vault),
        local=_is_local(host, keys=keys),
        grace_seconds=grace,
        log_format="text" if as_text else "json",
    )
    _check_workers(options, workers)
    configure_logging(options.log_format)
    # Before the address is printed: an unusable database is reported here, once, and not by every process.
    run_async(check_database(options.database_url))
    with bind_socket(host, port) as listener, _register(options, host, listener.getsockname()[1]):
        _print_address(options, host, listener.getsockname()[1], open_browser=open_)
        succeeded = _run_server(options, listener, workers)
    if not succeeded:
        raise typer.Exit(EXIT_FAILED)


def check_server_extra(feature: str) -> None:
    """Checks that the extra `server` is installed, without the time that its import takes."""
    from importlib.util import find_spec

    if any(find_spec(package) is None for package in ("fastapi", "uvicorn", "aiohttp", "httpx2")):
        raise MissingExtra(extra="server", feature=feature)


def _is_local(host: str, *, keys: bool | None) -> bool:
    """Whether the server is for the local user only; it must then listen on loopback."""
    from quire.server.addresses import check_loopback

    if keys:
        return False
    try:
        check_loopback(host)
    except InvalidConfiguration:
        if keys is not None:
            raise
        return False
    return True


def build_options(overrides: Any, *, local: bool, grace_seconds: float, log_format: "LogLineFormat") -> ServeOptions:
    from pathlib import Path

    from quire.cli.engine_setup import load_cli_settings, resolve_database_url
    from quire.server.addresses import generate_token
    from quire.settings.sources import parse_options

    settings, agent = load_cli_settings(overrides).settings, None
    if settings.agent is not None:
        from quire.context.agent_loader import load_agent

        agent = load_agent(Path(settings.agent))
        values = {**settings.model_dump(), **agent.setting_overrides, **parse_options(overrides.pairs).values}
        settings = type(settings).model_validate(values)
    return ServeOptions(
        settings=settings,
        database_url=resolve_database_url(settings),
        agent=agent,
        local_token=generate_token() if local else None,
        grace_seconds=grace_seconds,
        log_format=log_format,
    )


def _check_workers(options: ServeOptions, workers: int) -> None:
    from quire.log.database_url import is_postgres

    if workers > 1 and IS_WINDOWS:
        raise InvalidConfiguration("Several workers need Linux or macOS; on Windows use --workers 1.")
    if workers > 1 and not is_postgres(options.database_url):
        raise InvalidConfiguration(
            "Several workers need PostgreSQL, not SQLite: use --workers 1, or set `database_url` to postgresql://…"
        )


async def check_database(url: str) -> None:
    """Waits for the database, with a log line before each retry; raises if it stays away or cannot be used."""
    import logging

    from quire.cli.database_wait import wait_for_database
    from quire.server.telemetry.logs import log_server_event

    def report(error: "StoreUnavailable", pause_seconds: float) -> None:
        log_server_event(
            "waiting for the database", level=logging.WARNING, error_kind=type(error).__name__, retry_in=pause_seconds
        )

    await wait_for_database(url, report=report)


def _register(options: ServeOptions, host: str, port: int) -> "AbstractContextManager[None]":
    """Registers a local server for `quire run`."""
    from quire.cli.local_servers import register_server

    return register_server(make_local_server(options, host, port)) if options.local_token is not None else nullcontext()


def make_local_server(options: ServeOptions, host: str, port: int) -> "LocalServer":
    """Describes a server with a token."""
    import os

    from quire.cli.local_servers import LocalServer, digest_configuration
    from quire.server.addresses import server_url

    return LocalServer(
        url=server_url(host, port).rstrip("/"),
        token=options.local_token or "",
        configuration=digest_configuration(options.settings, options.database_url, os.environ),
    )


def _print_address(options: ServeOptions, host: str, port: int, *, open_browser: bool) -> None:
    from quire.server.addresses import server_url

    url = server_url(host, port, options.local_token)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    if options.local_token is None:
        print_note("Requests need an API key: create one with `quire key create NAME --scope read --scope chat`.")
        uses_host = options.agent is not None or options.settings.vault is not None
        if uses_host and not options.settings.host_access_tenants:
            print_note("Vault and agent are off for API keys: name the tenants that use them in `host_access_tenants`.")
    else:
        print_note(f"Open this address. For OpenAI clients: {server_url(host, port)}v1, with the token as API key.")
    if open_browser:
        import webbrowser

        webbrowser.open(url)


def _run_server(options: ServeOptions, listener: "socket.socket", workers: int) -> bool:
    if workers == 1:
        run_async(serve_app(options, listener))
        return True
    from quire.server.supervisor import Supervisor

    return Supervisor(serve_in_process, options, listener, workers=workers, grace_seconds=options.grace_seconds).run()


def serve_in_process(options: ServeOptions, listener: "socket.socket", *, is_preloaded: bool = True) -> None:
    """Entry point of a server process of its own."""
    from quire.server.telemetry.logs import configure_logging

    configure_logging(options.log_format)
    run_async(serve_app(options, listener, is_preloaded=is_preloaded))


async def serve_app(options: ServeOptions, listener: "socket.socket", *, is_preloaded: bool = True) -> None:
    """Serves until a signal. Without `is_preloaded`, the first requests are served while modules are still imported."""
    import asyncio
    import os

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
    from contextlib import suppress
    from importlib import import_module

    from quire.view.tokens import counter_for

    # First the tokenizer of the default model, which every request needs.
    counter_for(settings.model, tokenizer=settings.tokenizer).count(" ")
    for module in (
        "quire.llm.pydantic_ai_model",
        "quire.search.segments",
        "quire.compaction.extractive_summary",
    ):
        with suppress(ImportError):
            import_module(module)
    _preload_provider(settings)
    enable_garbage_collection()


def _preload_provider(settings: "Settings") -> None:
    """Imports the SDK of the model's provider, by building a model that is never called."""
    from contextlib import suppress

    from quire.errors import QuireError
    from quire.llm import get_model

    with suppress(ImportError, QuireError):
        get_model(settings.model, base_url=settings.base_url, api_key="unused")


def _save_settings(changes: "Mapping[str, Any]") -> None:
    """Saves settings changed in the web interface to the user's file, like `quire config set`."""
    import os

    from quire.cli import paths
    from quire.cli.config import write_setting

    for name, value in changes.items():
        write_setting(paths.get_user_settings_path(os.environ), name, value)
