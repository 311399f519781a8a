"""Shared parts of the commands: parameters, exit codes, shell completion, and opening a store or a conversation.

Every `quire --help` imports this module, so it imports neither settings nor the engine at the top.
"""

import asyncio
import gc
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quire.errors import ConversationNotFound, NotFound, QuireError

if TYPE_CHECKING:
    from quire.engine import Conversation, Engine
    from quire.log import SqlStore

EXIT_FAILED = 1
EXIT_NOT_FOUND = 3
MAIN_BRANCH = 0
"""Number of the first branch, as in the log."""
CONVERSATION_PAGE_SIZE = 100
"""Conversations that one read lists."""
MAX_COMPLETIONS = 50
"""Conversation ids that the shell completion offers."""

T = TypeVar("T")
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., None])


def complete_conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    """Completes ids of recent conversations, with titles. A completion never fails, it may be empty."""
    try:
        return asyncio.run(_find_conversation_ids(incomplete))
    except (QuireError, OSError):
        return []


async def _find_conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    from quire.cli.engine_setup import SettingOverrides, load_cli_settings, resolve_database_url
    from quire.log import SqlStore

    url = resolve_database_url(load_cli_settings(SettingOverrides()).settings)
    if url.startswith("sqlite:///") and not await asyncio.to_thread(Path(url.removeprefix("sqlite:///")).exists):
        return []  # Opening a missing database would create it.
    async with SqlStore.open(url) as store:
        recent = await store.fill_titles(*await store.list_conversations(limit=MAX_COMPLETIONS))
    return [(each.id, each.title) for each in recent if each.id.startswith(incomplete)]


def complete_agent_names(incomplete: str) -> Iterator[str]:
    from quire.cli.paths import find_agent_files

    yield from (name for name in find_agent_files() if name.startswith(incomplete))


def complete_setting_names(incomplete: str) -> Iterator[tuple[str, str]]:
    from quire.settings import Settings

    for name, field in Settings.model_fields.items():
        if name.startswith(incomplete):
            yield name, field.description or ""


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
SetOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting for this command; repeatable."),
]
ConversationId = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONVERSATION]",
        help="The conversation's id; default: the most recently used.",
        show_default=False,
        autocompletion=complete_conversation_ids,
    ),
]
BranchNumber = Annotated[int, typer.Option("--branch", min=0, help="The branch number; 0 is the main branch.")]
ReplyNumber = Annotated[
    int | None,
    typer.Option("--reply", metavar="NUMBER", min=1, help="The request that this reply answered.", show_default=False),
]
WithServers = Annotated[bool, typer.Option("--servers", help="Start the agent's MCP servers to include their tools.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")]


def create_group(help: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False)


def command(app: typer.Typer, example: str, *, name: str | None = None) -> Callable[[CommandFunction], CommandFunction]:
    """Adds a command with an example, which its help shows, docs/commands.md prints and the tests run."""
    return app.command(name, epilog=format_example(example))


def format_example(call: str) -> str:
    return f"Example: {call}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """The conversation and branch of a command, and its setting overrides."""

    conversation: str | None = None
    branch: int = MAIN_BRANCH
    overrides: Sequence[str] = ()


def branch_command(app: typer.Typer, example: str) -> Callable[[CommandFunction], CommandFunction]:
    """Adds a command on one branch of a conversation, with `[CONVERSATION]`, `--branch` and `--set`.

    The function gets a `CommandTarget` as its first argument. Its own arguments come before `[CONVERSATION]`, its own
    options after `--branch`.
    """

    def add(function: CommandFunction) -> CommandFunction:
        def run(*, conversation: str | None, branch: int, overrides: list[str] | None, **own: Any) -> None:
            function(make_target(conversation, branch=branch, overrides=overrides), **own)

        parameters = _add_common_parameters(list(inspect.signature(function).parameters.values())[1:])
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        command(app, example)(run)
        return function

    return add


def _add_common_parameters(own: Sequence[Parameter]) -> list[Parameter]:
    arguments = [each for each in own if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    options = [each for each in own if each.kind is Parameter.KEYWORD_ONLY]
    conversation = Parameter("conversation", Parameter.POSITIONAL_OR_KEYWORD, annotation=ConversationId, default=None)
    branch = Parameter("branch", Parameter.KEYWORD_ONLY, annotation=BranchNumber, default=MAIN_BRANCH)
    overrides = Parameter("overrides", Parameter.KEYWORD_ONLY, annotation=SetOptions, default=None)
    return [*arguments, conversation, branch, *options, overrides]


def make_target(
    conversation: str | None = None, *, branch: int = MAIN_BRANCH, overrides: Sequence[str] | None = None
) -> CommandTarget:
    return CommandTarget(conversation=conversation, branch=branch, overrides=tuple(overrides or ()))


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def enable_garbage_collection() -> None:
    """Turns garbage collection on, which `main` turns off for the imports; the imported objects stay exempt."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def to_exit_code(error: QuireError) -> int:
    return EXIT_NOT_FOUND if isinstance(error, NotFound) else EXIT_FAILED


@asynccontextmanager
async def open_store(target: CommandTarget) -> AsyncGenerator["SqlStore"]:
    """Opens the log alone, for commands that need no model, agent or vault."""
    from quire.cli.engine_setup import load_cli_settings, resolve_database_url, to_overrides
    from quire.log import SqlStore

    enable_garbage_collection()
    url = resolve_database_url(load_cli_settings(to_overrides(target.overrides)).settings)
    async with SqlStore.open(url) as store:
        yield store


@asynccontextmanager
async def open_conversation(target: CommandTarget, *, servers: bool = False) -> AsyncGenerator["Conversation"]:
    """Opens an existing conversation, or raises `ConversationNotFound`: these commands create none.

    With `servers`, the agent's MCP servers are started; their problems are printed to standard error.
    """
    from quire.cli.engine_setup import open_engine_from_settings, to_overrides
    from quire.engine import Conversation

    enable_garbage_collection()
    async with open_engine_from_settings(to_overrides(target.overrides)) as engine, AsyncExitStack() as stack:
        if servers:
            engine = await _start_mcp_servers(engine, stack)
        conversation_id = await resolve_conversation_id(engine.store, target.conversation)
        await engine.store.get_branch(conversation_id, target.branch)
        yield Conversation(engine, conversation_id, target.branch)


async def _start_mcp_servers(engine: "Engine", stack: AsyncExitStack) -> "Engine":
    from quire.cli.mcp_servers import format_server_problem, start_servers
    from quire.cli.output import print_note, show_spinner

    with show_spinner("Starting the servers"):
        started = await start_servers(engine, stack)
    for problem in started.problems:
        print_note(format_server_problem(problem))
    return started.engine


async def resolve_conversation_id(store: Any, id: str | None) -> str:
    """Checks that the conversation exists; without an id, returns that of the most recently used one."""
    if id is not None:
        try:
            return (await store.get_conversation(id)).id
        except ConversationNotFound as error:
            message = f"There is no conversation {id!r}; run `quire conversation list` to see the ids."
            raise ConversationNotFound(message) from error
    recent = await store.list_conversations(limit=1)
    if not recent:
        raise ConversationNotFound("There is no conversation yet; start one with `quire chat`.")
    return recent[0].id


async def list_conversation_ids(store: Any) -> list[str]:
    """Lists the ids of all conversations, the most recently used first, by cursor pagination."""
    ids: list[str] = []
    page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE)
    while page:
        ids += [each.id for each in page]
        page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE, before=page[-1])
    return ids
