"""`quire run`: runs an agent program with the gateway between it and its model."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import SetOptions, run_async
from quire.cli.output import print_note, to_one_line
from quire.errors import InvalidConfiguration

if TYPE_CHECKING:
    import socket
    from multiprocessing.process import BaseProcess

    from quire.access.keys import ApiKey
    from quire.cli.agent_programs import AgentProgram, Launch, Route
    from quire.cli.serve import LocalServer, ServeOptions
    from quire.log import ConversationRecord
    from quire.settings import Settings

EXIT_PROGRAM_NOT_FOUND = 127
"""Exit code of shells for a program that does not exist."""
GRACE_SECONDS = 5.0
"""Graceful shutdown of a server that was started for one run."""
PROBE_SECONDS = 1.0
"""Seconds to connect to a model server on this machine."""
STOP_SECONDS = 20.0
"""Seconds after which a server that does not stop is killed."""
MAX_TITLE_CHARS = 60
"""Length of a conversation's title in the note at the end."""
KEY_DAYS = 30
"""Validity of the key of a run, which is revoked at the end of the run."""


def command(
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM", help="The program: claude, codex, opencode, or any other.", show_default=False
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS...", help="The program's own options and arguments.", show_default=False),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The model that answers, whichever one the program names.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print where each model name goes, with which credential; run nothing.")
    ] = False,
    overrides: SetOptions = None,
) -> None:
    """Run an agent with Quire between it and its model: every conversation is recorded.

    Uses a running local server with the same settings, else starts one for the duration of the run. The program gets
    the address and an API key by environment variables and options; none of its files is changed. The exit code is the
    program's.
    """
    from quire.cli.agent_programs import (
        AGENT_PROGRAMS,
        OTHER_PROGRAM,
        Gateway,
        choose_upstreams,
        find_answering_model,
        format_routes,
        list_routes,
    )
    from quire.cli.serve import build_options, check_server_extra

    executable, known = shutil.which(program), AGENT_PROGRAMS.get(program)
    if executable is None and not explain:
        remedy = f"install it with `{known.installation}`" if known is not None else "install it, or correct its name"
        print_note(f"quire: There is no program {program!r} in PATH; {remedy}.")
        raise typer.Exit(EXIT_PROGRAM_NOT_FOUND)
    check_server_extra("Running an agent")
    agent_program = known or OTHER_PROGRAM
    options = build_options(overrides, local=True, grace_seconds=GRACE_SECONDS, log_format="json")
    settings = choose_upstreams(options.settings, agent_program, os.environ, model=model)
    routes = list_routes(settings, agent_program)
    if explain:
        typer.echo(format_routes(routes, settings))
        return
    assert executable is not None
    options = replace(options, settings=settings)
    _warn_about_stopped_servers(settings)
    warn_about_small_windows(settings, agent_program, routes)
    # The server starts while the key is created.
    with _connect_server(options) as connection, _create_key(options.database_url, program) as (key, secret):
        connection.wait_until_ready()
        named = [name for name in settings.upstreams if not set("*?[") & set(name)]
        gateway = Gateway(
            url=connection.server.url,
            key=secret,
            passes_credentials=any(each.credentials == "client" for each in settings.upstreams.values()),
            models=tuple(dict.fromkeys([settings.model, *named])),
            answering_model=find_answering_model(settings, agent_program),
        )
        launch = agent_program.connect(gateway, os.environ)
        exit_code = _run_program([executable, *launch.options, *(arguments or ())], launch)
    _print_where_to_look(options, connection, since=key.created_at)
    raise typer.Exit(exit_code)


def _warn_about_stopped_servers(settings: "Settings") -> None:
    """Names the model servers on this machine that do not answer; agents would retry for minutes without a word."""
    import socket
    from urllib.parse import urlsplit

    from quire.cli.local_models import is_local

    for url in {each.base_url for each in settings.upstreams.values()} or {settings.base_url or ""}:
        address = urlsplit(url)
        if is_local(url) and address.port is not None:
            try:
                socket.create_connection((address.hostname or "", address.port), timeout=PROBE_SECONDS).close()
            except OSError:
                print_note(
                    f"quire: No model server answers at {url}; start it, or correct the address in the settings."
                )


def warn_about_small_windows(settings: "Settings", program: "AgentProgram", routes: "Sequence[Route]") -> None:
    """Says before the start that the program's own instructions and tools do not fit, which Quire never shortens."""
    from quire.cli.agent_programs import find_set_window

    for names, upstream in routes:
        if upstream is None or names not in program.provider_models:
            continue
        window = find_set_window(settings, upstream.model or names)
        if window is not None and window <= program.prompt_tokens:
            print_note(
                f"quire: {upstream.model or names} at {upstream.base_url} has a window of {window:,} tokens. The "
                f"program's own instructions and tools have about {program.prompt_tokens:,}, so its requests will be "
                "refused; start the model with a larger window, or choose another."
            )
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnection:
    """The server of a run: one that was running, or one in a new process."""

    server: "LocalServer"
    process: "BaseProcess | None" = None
    log_path: Path | None = None

    def wait_until_ready(self) -> None:
        while self.process is not None and not self.server.is_running():
            if not self.process.is_alive():
                raise InvalidConfiguration(f"The server could not start; its log is {self.log_path}.")


@contextmanager
def _connect_server(options: "ServeOptions") -> Generator[ServerConnection]:
    """Finds a server, or starts one without waiting for it.

    A server that was started is stopped at the end. It also stops if this process dies.
    """
    from quire.cli.serve import create_servers_folder, digest_configuration, find_server, make_local_server
    from quire.concurrency.processes import get_spawn_context
    from quire.server.addresses import bind_socket

    server = find_server(digest_configuration(options.settings, options.database_url, os.environ))
    if server is not None:
        yield ServerConnection(server=server)
        return
    host, log_path = "127.0.0.1", create_servers_folder() / f"{os.getpid()}.log"
    with bind_socket(host, 0) as listener:
        server = make_local_server(options, host, listener.getsockname()[1])
        process = get_spawn_context().Process(target=serve_quietly, args=(options, listener, log_path))
        process.start()
    try:
        yield ServerConnection(server=server, process=process, log_path=log_path)
    finally:
        has_failed = not process.is_alive()
        process.terminate()
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        if not has_failed:
            log_path.unlink(missing_ok=True)


def serve_quietly(options: "ServeOptions", listener: "socket.socket", log_path: Path) -> None:
    """Entry point of the server's process. It writes to a log, because the terminal is the program's."""
    from quire.cli.serve import serve_in_process

    # As in `quire.cli.main`: collecting garbage among the imported objects would only delay the start.
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    # The agent takes a second to its first request, too.
    serve_in_process(options, listener, is_preloaded=False)


@contextmanager
def _create_key(database_url: str, program: str) -> "Generator[tuple[ApiKey, str]]":
    """Creates an API key for the run, and revokes it at the end."""
    from quire.model.ids import now
    from quire.store import SqlStore

    async def create() -> "tuple[ApiKey, str]":
        async with SqlStore.open(database_url) as store:
            await store.check()
            name = f"quire run {Path(program).name}"[:200]
            return await store.keys.create(name, ["chat"], expires_at=now() + KEY_DAYS * 86_400_000_000)

    async def revoke() -> None:
        async with SqlStore.open(database_url) as store:
            await store.keys.revoke(key.id)

    key, secret = run_async(create())
    try:
        yield key, secret
    finally:
        run_async(revoke())


def _run_program(argv: list[str], launch: "Launch") -> int:
    """Runs the program and returns its exit code. Ctrl-C is the program's; SIGTERM is passed on to it."""
    process = subprocess.Popen(argv, env=launch.build_environment(os.environ))  # noqa: S603 (the user typed it)

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # The terminal sends Ctrl-C to the program as well.
        if number != signal.SIGINT:
            process.send_signal(number)

    # A handler even for Ctrl-C: a program would inherit an ignored signal.
    previous = {number: signal.signal(number, handle_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _print_where_to_look(options: "ServeOptions", connection: ServerConnection, *, since: int) -> None:
    """Names the most recently updated conversation of this run. Conversations of sub-agents do not count."""
    from urllib.parse import quote, urlencode

    from quire.store import SqlStore

    async def find_newest() -> "list[ConversationRecord]":
        async with SqlStore.open(options.database_url) as store:
            recent = await store.list_conversations(limit=1, main_only=True)
            return await store.fill_titles(*(each for each in recent if each.updated_at >= since))

    newest = next(iter(run_async(find_newest())), None)
    if newest is None:
        settings = options.settings
        upstreams = [f"{pattern} at {each.base_url}" for pattern, each in settings.upstreams.items()]
        print_note(f"Quire recorded no reply in this run. Upstreams: {', '.join(upstreams) or settings.base_url}")
        return
    server = connection.server
    page = (
        f"at {server.url}/?{urlencode({'token': server.token})}#/c/{quote(newest.id, safe='')}"
        if connection.process is None
        else "with `quire serve --open`"
    )
    title = to_one_line(newest.title, MAX_TITLE_CHARS)
    print_note(f"Quire recorded “{title}”: `quire conversation show {newest.id}`, or in the browser {page}")
