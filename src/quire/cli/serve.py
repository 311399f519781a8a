"""`quire serve`: runs the server, for the local user with a token or for many users with API keys."""

import logging
import sys
import webbrowser
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import EXIT_FAILED, SetOptions, run_async
from quire.cli.engine_setup import wait_for_database
from quire.cli.output import print_note
from quire.cli.platforms import IS_WINDOWS
from quire.cli.server_setup import build_options, check_server_extra, open_app, preload_modules
from quire.cli.service_client import UserSocket, ask_service
from quire.errors import InvalidConfiguration

if TYPE_CHECKING:
    import socket

    from quire.cli.server_setup import ServeOptions
    from quire.errors import StoreUnavailable


class LogFormat(StrEnum):
    text = "text"
    json = "json"


def command(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on, or 0 for a free one.")] = 8300,
    workers: Annotated[int, typer.Option(min=1, help="Server processes. More than one needs PostgreSQL.")] = 1,
    open_: Annotated[bool, typer.Option("--open", help="Open the web interface in the browser.")] = False,
    keys: Annotated[
        bool | None,
        typer.Option(
            "--keys/--no-keys",
            help="Require API keys (`quire key create`). Default: only if other machines can connect.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Graceful shutdown: time for running turns and streams.")
    ] = 20.0,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Log format. Default: text on a terminal, otherwise json.", show_default=False),
    ] = None,
    overrides: SetOptions = None,
) -> None:
    """Serve the web interface, the API under /api, and the gateway for OpenAI clients under /v1.

    On loopback, the printed address contains a token that grants full access. Where other machines can connect, every
    request needs an API key, or with the setting `sign_in` a person who has signed in. SIGTERM or Ctrl-C shuts down
    gracefully. A second one stops at once.
    """
    check_server_extra("Serving")
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
        overrides,
        local=is_local,
        grace_seconds=grace,
        log_format="text" if as_text else "json",
    )
    if keys is None and options.settings.sign_in is not None:
        # People sign in, also on this machine: the token would be one person for all.
        is_local, options = False, replace(options, local_token=None)
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

    running = ask_service({"command": "describe"}) if is_local and workers == 1 else None
    if running is not None and running["stays"] and running["database"] == options.database_digest:
        if open_:
            webbrowser.open(running["page"])
            print_note(f"Opened the web interface of the server that runs at {running['url']}.")
            return
        if running["port"] == port:
            raise InvalidConfiguration(
                f"Quire runs at {running['url']} already. Open its web interface with `quire serve --open`."
            )
    with UserSocket(takes_over=True) if is_local and workers == 1 else nullcontext() as user_socket:
        # Before the address is printed: an unusable database is reported here, once, and not by every process.
        run_async(wait_for_database(options.database_url, report=report_wait))
        with bind_socket(host, port) as listener:
            if not _serve_on(listener, options, host, user_socket, workers=workers, opens_browser=open_):
                raise typer.Exit(EXIT_FAILED)


def _serve_on(
    listener: "socket.socket",
    options: "ServeOptions",
    host: str,
    user_socket: UserSocket | None,
    *,
    workers: int,
    opens_browser: bool,
) -> bool:
    """Prints the address and serves until a signal; returns whether all processes ended as they should."""
    from quire.cli.run_host import serve_with_runs
    from quire.server.addresses import server_url
    from quire.server.lifecycle import Supervisor

    port = listener.getsockname()[1]
    url = server_url(host, port, options.local_token)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    if options.local_token is not None:
        print_note(f"Open this address. For OpenAI clients: {server_url(host, port)}v1, with the token as API key.")
    else:
        if (sign_in := options.settings.sign_in) is not None:
            print_note(f"People sign in at {sign_in.url} with {sign_in.issuer}; programs need an API key.")
        else:
            print_note("Requests need an API key: create one with `quire key create NAME --scope read --scope chat`.")
        uses_host = options.agent is not None or options.settings.vault is not None
        if uses_host and not options.settings.trusted_tenants:
            print_note("Vault and agent are off for API keys: name the tenants that use them in `trusted_tenants`.")
    if opens_browser:
        webbrowser.open(url)
    if workers > 1:
        grace_seconds = options.grace_seconds
        return Supervisor(serve_in_process, options, listener, workers=workers, grace_seconds=grace_seconds).run()
    preload_modules(options.settings)
    if user_socket is not None:
        run_async(serve_with_runs(options, listener, user_socket))
    else:
        run_async(_serve_app(options, listener))
    return True


def serve_in_process(options: "ServeOptions", listener: "socket.socket") -> None:
    """Entry point of a spawned server process."""
    from quire.server.telemetry.logs import configure_logging

    configure_logging(options.log_format)
    preload_modules(options.settings)
    run_async(_serve_app(options, listener))


async def _serve_app(options: "ServeOptions", listener: "socket.socket") -> None:
    from quire.server.lifecycle import run_server

    async with open_app(options) as app:
        await run_server(app, listener, grace_seconds=options.grace_seconds)
