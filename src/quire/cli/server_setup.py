"""Sets up a server of the command line: its settings and options, its application, and what it imports early."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli import paths
from quire.cli.common import enable_garbage_collection
from quire.cli.engine_setup import build_embedder, build_summarizer, load_cli_settings, resolve_database_url
from quire.cli.workspace_trust import PATH_SETTINGS, Decide, ask_or_refuse
from quire.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from quire.model.agents import Agent
    from quire.server.lifecycle import StreamRegistry
    from quire.server.telemetry.logs import LogLineFormat
    from quire.settings import Settings


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
    environ: "Mapping[str, str]" = field(default_factory=lambda: dict(os.environ))
    """Environment variables with the API keys of upstreams."""

    @property
    def database_digest(self) -> str:
        return sha256(self.database_url.encode()).hexdigest()

    @property
    def configuration(self) -> str:
        """Digest that is equal for servers with the same settings, agent, database and API keys of upstreams."""
        variables = [each.api_key_env for each in self.settings.upstreams.values()]
        api_keys = [self.environ.get(name) for name in variables if name is not None]
        agent = self.agent.model_dump_json() if self.agent is not None else None
        parts = (self.database_url, api_keys, self.settings.model_dump_json(), agent)
        return sha256(repr(parts).encode()).hexdigest()


def check_server_extra(feature: str) -> None:
    """Checks that the extra `server` is installed, without the time that its import takes."""
    from importlib.util import find_spec

    if any(find_spec(package) is None for package in ("fastapi", "uvicorn", "aiohttp", "httpx2")):
        raise MissingExtra(extra="server", feature=feature)


def build_options(
    overrides: Sequence[str] | None,
    *,
    local: bool,
    grace_seconds: float,
    log_format: "LogLineFormat",
    folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    decide: Decide = ask_or_refuse,
) -> ServeOptions:
    """Options from the settings that apply in a folder, by default the working directory."""
    from quire.server.addresses import generate_token
    from quire.settings.sources import parse_options

    folder = folder or Path.cwd()
    settings, agent = load_cli_settings(overrides, decide=decide, folder=folder, environ=environ).settings, None
    # The server may run in another folder.
    given = {name: getattr(settings, name) for name in PATH_SETTINGS}
    located = {name: str(folder / Path(path).expanduser()) for name, path in given.items() if path is not None}
    # The user's own agent must not stop because a disk is full. Keys with a cap are refused all the same.
    if local and "on_store_failure" not in settings.model_fields_set:
        located["on_store_failure"] = "pass_through"
    settings = settings.model_copy(update=located)
    if settings.agent is not None:
        from quire.context.agent_loader import load_agent

        agent = load_agent(Path(settings.agent))
        values = {
            **settings.model_dump(),
            **agent.setting_overrides,
            **parse_options(overrides or ()).values,
            **located,
        }
        settings = type(settings).model_validate(values)
    database_url = resolve_database_url(settings)
    if database_url.startswith(_SQLITE):
        database_url = f"{_SQLITE}{folder / database_url.removeprefix(_SQLITE)}"
    return ServeOptions(
        settings=settings,
        database_url=database_url,
        agent=agent,
        local_token=generate_token() if local else None,
        grace_seconds=grace_seconds,
        log_format=log_format,
        environ=dict(environ),
    )


_SQLITE = "sqlite:///"


@asynccontextmanager
async def open_app(options: ServeOptions, *, streams: "StreamRegistry | None" = None) -> "AsyncGenerator[FastAPI]":
    """Opens the database and the application on it."""
    from quire.engine.source_scan import watch_sources
    from quire.server.app import create_app
    from quire.server.state import open_server_state
    from quire.store import DEFAULT_TENANT

    is_local = options.local_token is not None
    async with open_server_state(
        options.database_url,
        options.settings,
        agent=options.agent,
        summarizer=build_summarizer(options.settings, options.environ),
        embedder=await build_embedder(options.settings),
        environ=options.environ,
        is_local=is_local,
        save_settings=_save_settings if is_local else None,
    ) as state:
        app = create_app(state, token=options.local_token, streams=streams)
        if not is_local:
            yield app
            return
        async with watch_sources(state.engine_for(DEFAULT_TENANT), options.environ):
            yield app


def preload_modules(settings: "Settings") -> None:
    """Imports what would otherwise block the event loop when a request first needs it.

    Clients of models are not among it: most servers only pass requests on. A turn imports them in a thread.
    """
    from importlib import import_module

    from quire.wire.tokens import counter_for

    # First the tokenizer of the default model, which every request needs. The table of all models is not.
    entries = (entry for pattern, entry in settings.models.items() if fnmatchcase(settings.model, pattern))
    tokenizer = next((each.tokenizer for each in entries if each.tokenizer is not None), None)
    counter_for(settings.model, tokenizer=tokenizer).count(" ")
    for module in ("quire.search.segments", "quire.compaction.extractive_summary"):
        with suppress(ImportError):
            import_module(module)
    enable_garbage_collection()


def _save_settings(changes: Mapping[str, Any]) -> None:
    """Saves settings changed in the web interface to the user's file, like `quire config set`."""
    from quire.cli.config import write_setting

    for name, value in changes.items():
        write_setting(paths.get_user_settings_path(os.environ), name, value)
