"""`quire serve`: the server, for one user of this machine or for many with keys."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.chat import AgentName, Vault
from quire.cli.output import note
from quire.cli.running import FAILED, Given, run
from quire.errors import InvalidConfiguration, MissingExtra

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from quire.model.agents import Agent
    from quire.server.telemetry.logs import Format
    from quire.settings import Settings


class LogFormat(StrEnum):
    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each process of a server is to do; it is handed to processes that begin afresh."""

    settings: "Settings"
    url: str
    agent: "Agent | None"
    token: str | None
    """Of the one user of this machine; None where keys are asked for."""
    grace: float
    log_format: "Format"


def command(
    *,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen at; 0 for any that is free.")] = 8300,
    workers: Annotated[int, typer.Option(min=1, help="Processes that serve; more than one on PostgreSQL alone.")] = 1,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    keys: Annotated[
        bool | None,
        typer.Option(
            "--keys/--no-keys",
            help="Whether requests need a key of `quire key create`; else only where other machines can ask.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Let turns and streams go on for so long when told to stop.")
    ] = 20.0,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="How lines on standard error look; else text on a terminal.", show_default=False),
    ] = None,
    agent: AgentName = None,
    vault: Vault = None,
    given: Given = None,
) -> None:
    """Serve the page, the interface under /api, and the gateway for OpenAI's clients under /v1.

    On this machine alone, the address that is printed has a token in it, which is the key to everything. Where other
    machines can ask, every request needs a key. SIGTERM or Ctrl-C lets what is under way end; a second one does not.
    """
    try:
        from quire.server.running import bind
    except ModuleNotFoundError as missing:
        raise MissingExtra(extra="server", needed_for="Serving") from missing
    from quire.cli.chat.talk import options_from
    from quire.server.telemetry.logs import configure

    local = _is_local(host, keys=keys)
    as_text = log_format is LogFormat.text or (log_format is None and sys.stderr.isatty())
    form = "text" if as_text else "json"
    plan = _plan(options_from(given or (), agent=agent, vault=vault), local=local, grace=grace, log_format=form)
    _check_workers(plan, workers)
    configure(plan.log_format)
    # Before an address is told: a database that cannot be used is said here, once, and not by every process.
    run(_check_database(plan.url))
    with bind(host, port) as listening:
        _welcome(plan, host, listening.getsockname()[1], browse=open_)
        ended_well = _serve(plan, listening, workers)
    if not ended_well:
        raise typer.Exit(FAILED)


def _is_local(host: str, *, keys: bool | None) -> bool:
    """Whether the server is for the user of this machine alone. Without keys, other machines cannot ask."""
    from quire.server.local import check_loopback

    if keys:
        return False
    try:
        check_loopback(host)
    except InvalidConfiguration:
        if keys is not None:
            raise
        return False
    return True


def _plan(options: Any, *, local: bool, grace: float, log_format: "Format") -> Plan:
    from pathlib import Path

    from quire.cli.opening import database_url, settings_from
    from quire.context.agents import load_agent
    from quire.server.local import new_token
    from quire.settings.sources import option_layer

    found = settings_from(options).settings
    agent = load_agent(Path(found.agent)) if found.agent is not None else None
    if agent is not None:
        values = {**found.model_dump(), **agent.own_settings, **option_layer(options.given).values}
        found = type(found).model_validate(values)
    token = new_token() if local else None
    return Plan(settings=found, url=database_url(found), agent=agent, token=token, grace=grace, log_format=log_format)


def _check_workers(plan: Plan, workers: int) -> None:
    if workers > 1 and not plan.url.startswith("postgresql"):
        raise InvalidConfiguration(
            "Several processes share PostgreSQL, not SQLite: serve with one, or set `database_url` to a postgresql://…"
        )


async def _check_database(url: str) -> None:
    from quire.log import SqlStore

    async with SqlStore.open(url) as store:
        await store.check()


def _welcome(plan: Plan, host: str, port: int, *, browse: bool) -> None:
    from quire.server.local import address

    opened = address(host, port, plan.token)
    sys.stdout.write(f"{opened}\n")
    sys.stdout.flush()
    if plan.token is None:
        note("Requests need a key: `quire key create NAME --scope read --scope chat` makes one.")
    else:
        note(f"Open this address. For OpenAI's clients: {address(host, port)}v1, with the token as their key.")
    if browse:
        import webbrowser

        webbrowser.open(opened)


def _serve(plan: Plan, listening: "socket.socket", workers: int) -> bool:
    if workers == 1:
        run(served(plan, listening))
        return True
    from quire.server.supervising import Supervisor

    return Supervisor(serve_process, plan, listening, workers=workers, grace=plan.grace).run()


def serve_process(plan: Plan, listening: "socket.socket") -> None:
    """One of several processes."""
    from quire.server.telemetry.logs import configure

    configure(plan.log_format)
    run(served(plan, listening))


async def served(plan: Plan, listening: "socket.socket") -> None:
    import os
    from contextlib import suppress
    from importlib import import_module

    from quire.cli.opening import embedder_from, summarizer_from
    from quire.server.app import create_app
    from quire.server.running import run as run_app
    from quire.server.serving import serving

    with suppress(ImportError):
        # It takes a second or two, for which the first to ask would otherwise hold everybody up.
        import_module("quire.llm.direct")
    async with serving(
        plan.url,
        plan.settings,
        agent=plan.agent,
        summarizer=summarizer_from(plan.settings),
        embedder=await embedder_from(plan.settings),
        environ=os.environ,
        local=plan.token is not None,
        save=_save if plan.token is not None else None,
    ) as shared:
        await run_app(create_app(shared, token=plan.token), listening, grace=plan.grace)


def _save(changes: "Mapping[str, Any]") -> None:
    """What is changed on the page stands in the user's own file, as if `quire config set` had written it."""
    import os

    from quire.cli import places
    from quire.cli.config import rewrite

    for name, value in changes.items():
        rewrite(places.user_settings(os.environ), name, value)
