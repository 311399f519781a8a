"""Opens an engine for a command: loads settings from files, environment and options, then builds the models.

The command line is an entry point, so the environment is read here; the library below never reads it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quire.cli import paths
from quire.cli.output import pluralize, to_one_line
from quire.cli.workspace_trust import Decide, ask_or_refuse, read_trusted_layer
from quire.errors import StoreUnavailable
from quire.llm.protocol import ModelBuilder
from quire.settings.sources import (
    LoadedSettings,
    SettingsLayer,
    load_settings,
    parse_options,
    read_environment,
    read_settings_file,
)

if TYPE_CHECKING:
    from quire.agent.mcp.servers import ServerProblem
    from quire.agent.protocols import ToolRunner
    from quire.engine import Engine
    from quire.llm import Model
    from quire.llm.embeddings import Embedder
    from quire.model.agents import Agent
    from quire.settings import Settings

DATABASE_WAIT_SECONDS = 60.0
"""Maximum wait for a PostgreSQL that is not there yet, or does not accept writes yet."""
_MAX_PAUSE_SECONDS = 5.0


def load_setting_layers(
    overrides: Sequence[str] | None = None,
    *,
    decide: Decide = ask_or_refuse,
    folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[SettingsLayer]:
    """Loads the layers, lowest precedence first: user's file, project's file, environment, options.

    `overrides` are the `name=value` pairs of `--set`. `decide` is called for a project's file that needs trust. A
    server loads the settings of a run, with the folder and the environment of that run.
    """
    project = read_trusted_layer(folder or Path.cwd(), decide, environ)
    return [
        read_settings_file(paths.get_user_settings_path(environ)),
        *([project] if project is not None else []),
        *read_environment(environ),
        parse_options(overrides or ()),
    ]


def load_cli_settings(
    overrides: Sequence[str] | None = None,
    *,
    decide: Decide = ask_or_refuse,
    folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> LoadedSettings:
    return load_settings(load_setting_layers(overrides, decide=decide, folder=folder, environ=environ))


def resolve_database_url(settings: "Settings") -> str:
    return settings.database_url or paths.get_default_database_url()


@asynccontextmanager
async def open_engine_from_settings(
    overrides: Sequence[str] | None = None, *, decide: Decide = ask_or_refuse
) -> AsyncGenerator["Engine"]:
    """Opens the engine that the settings describe. Opening sends no model request."""
    from quire.engine import open_engine

    settings = load_cli_settings(overrides, decide=decide).settings
    # The user has just typed these, so they win over the agent's file.
    typed = parse_options(overrides or ()).values
    async with open_engine(
        resolve_database_url(settings),
        tenant=settings.tenant,
        settings=settings,
        agent=settings.agent,
        vault=settings.vault,
        summarizer=build_summarizer(settings),
        embedder=await build_embedder(settings),
        environ=os.environ,
        **{name: value for name, value in typed.items() if name not in ("tenant", "agent", "vault", "summarizer")},
    ) as engine:
        yield engine.with_changes(runs_turns=True)


def build_model(settings: "Settings") -> "Model":
    """Builds the model that answers. A missing API key is reported by its provider."""
    from quire.llm import get_model, get_upstream_model
    from quire.settings.schema import upstream_for

    upstream = upstream_for(settings, settings.model)
    if upstream is not None and upstream.credentials == "client":
        # An agent brings its own key, and a chat has that of the environment.
        return get_model(settings.model, wire_format=settings.wire_format)
    return get_upstream_model(settings.model, settings, os.environ)


def build_summarizer(settings: "Settings", environ: Mapping[str, str] = os.environ) -> "Model | ModelBuilder | None":
    """The named summarizer, or a function that returns the model that answers; None if summaries are extracts."""
    from quire.llm import get_upstream_model
    from quire.llm.protocol import DeferredModel
    from quire.settings.schema import EXTRACT_SUMMARIZER

    def build_deferred(name: str) -> "Model":
        return DeferredModel(name, partial(get_upstream_model, name, settings, environ))

    if settings.summarizer == EXTRACT_SUMMARIZER:
        return None
    return build_deferred if settings.summarizer is None else build_deferred(settings.summarizer)


async def build_embedder(settings: "Settings") -> "Embedder | None":
    if settings.embeddings is None:
        return None
    if settings.embeddings == "local":
        from quire.llm.embeddings import load_local_embedder

        return load_local_embedder()
    from quire.llm.onnx_encoder import ONNX_PREFIX, load_onnx_encoder

    if settings.embeddings.startswith(ONNX_PREFIX):
        return load_onnx_encoder(settings.embeddings.removeprefix(ONNX_PREFIX))
    from quire.llm.embedding_endpoint import connect_endpoint_embedder

    url, _, model = settings.embeddings.partition("#")
    return await connect_endpoint_embedder(url, model or "default")


async def wait_for_database(
    url: str,
    *,
    report: Callable[[StoreUnavailable, float], None],
    max_seconds: float = DATABASE_WAIT_SECONDS,
) -> None:
    """Returns once the database accepts writes, so that servers and workers may start before it.

    Calls `report` with the error and the pause before each retry. Raises the last error after `max_seconds`, and all
    others at once, such as an outdated schema.
    """
    from quire.db.database_url import is_postgres
    from quire.store import SqlStore

    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + (max_seconds if is_postgres(url) else 0.0), 0.25
    while True:
        try:
            async with SqlStore.open(url) as store:
                return await store.check()
        except StoreUnavailable as error:
            if loop.time() + pause > deadline:
                raise
            report(error, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def list_enabled_servers(agent: "Agent") -> list[str]:
    return [server.name for server in agent.servers if server.enabled]


class StartedServers(NamedTuple):
    """An engine that offers the tools of the agent's MCP servers, and the runners of these tools."""

    engine: "Engine"
    runners: "Sequence[ToolRunner]" = ()
    problems: "Sequence[ServerProblem]" = ()


async def start_servers(engine: "Engine", stack: AsyncExitStack) -> StartedServers:
    """Starts the agent's servers and offers their tools to the engine; closing the stack stops them.

    Starting takes seconds and runs programs, so read-only commands start servers only with `--servers`.
    """
    if not list_enabled_servers(engine.agent):
        return StartedServers(engine)
    from quire.agent.limits import build_mcp_limits
    from quire.agent.mcp.servers import MCPServers, MCPToolRunner

    servers = await stack.enter_async_context(
        MCPServers(
            engine.agent.servers,
            variables=os.environ,
            limits=build_mcp_limits(engine.settings),
            put_blob=engine.store.put_blob,
        )
    )
    offered = await servers.list_tools()
    agent = engine.agent.with_tools(*engine.agent.tools, *offered)
    return StartedServers(engine.with_changes(agent=agent), [MCPToolRunner(servers, offered)], servers.problems)


def format_server_problem(problem: "ServerProblem") -> str:
    return f"The server {problem.server}: {to_one_line(problem.message)}"


def format_not_started(names: Sequence[str]) -> str:
    """Says which servers are not started, so that their tools are missing from the output."""
    servers = f"{pluralize(len(names), 'server')} of the agent ({', '.join(map(to_one_line, names))})"
    if len(names) == 1:
        return f"{servers} is not started, so its tools are missing; start it with --servers."
    return f"{servers} are not started, so their tools are missing; start them with --servers."
