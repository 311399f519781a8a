"""What every command shares: its options, the conversation that it is about, and the code that it ends with.

    0  done, or yes
    1  failed, or no
    2  the command line cannot be understood
    3  there is no such conversation, entry, item or file

Nothing of the library below the settings is imported before a command runs.
"""

import asyncio
import gc
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quire.cli.completing import conversation_ids
from quire.errors import ConversationNotFound, NotFound, QuireError

if TYPE_CHECKING:
    from quire.engine import Conversation, Engine
    from quire.log import SqlStore

T = TypeVar("T")

FAILED = 1
NOT_FOUND = 3
MAIN = 0
"""The first branch, as in the log."""
AT_ONCE = 100
"""Conversations that are listed by one read."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting for this command alone; may be given several times."),
]
ConversationId = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONVERSATION]",
        help="The conversation's id; else the one used last.",
        show_default=False,
        autocompletion=conversation_ids,
    ),
]
BranchNumber = Annotated[int, typer.Option("--branch", min=0, help="The number of the branch; 0 is the first.")]
ReplyNumber = Annotated[
    int | None,
    typer.Option("--reply", metavar="NUMBER", min=1, help="The request that this reply answered.", show_default=False),
]
WithServers = Annotated[
    bool, typer.Option("--servers", help="Start the agent's servers, so that their tools are there.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="The most that is listed.")]


def group(help: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False)


Function = TypeVar("Function", bound=Callable[..., None])


def command(app: typer.Typer, example: str, *, name: str | None = None) -> Callable[[Function], Function]:
    """Adds a command with an example, which its help shows, the docs print and the tests run."""
    return app.command(name, epilog=example_of(example))


def example_of(call: str) -> str:
    return f"Example: {call}"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Which conversation a command is about, and the settings that were given with it."""

    conversation: str | None = None
    branch: int = MAIN
    given: Sequence[str] = ()


def branch_command(app: typer.Typer, example: str) -> Callable[[Function], Function]:
    """Adds a command about one branch of a conversation, with the parameters that all of these have in common.

    The function is called with an `About` in front. Its own arguments stand before `[CONVERSATION]`, its own options
    behind `--branch`.
    """

    def add(function: Function) -> Function:
        def called(*, conversation: str | None, branch: int, given: list[str] | None, **own: Any) -> None:
            function(about(conversation, branch=branch, given=given), **own)

        parameters = _with_common(list(inspect.signature(function).parameters.values())[1:])
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(called)["__signature__"] = inspect.Signature(parameters)
        command(app, example)(called)
        return function

    return add


def _with_common(own: Sequence[Parameter]) -> list[Parameter]:
    arguments = [each for each in own if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    options = [each for each in own if each.kind is Parameter.KEYWORD_ONLY]
    conversation = Parameter("conversation", Parameter.POSITIONAL_OR_KEYWORD, annotation=ConversationId, default=None)
    branch = Parameter("branch", Parameter.KEYWORD_ONLY, annotation=BranchNumber, default=MAIN)
    given = Parameter("given", Parameter.KEYWORD_ONLY, annotation=Given, default=None)
    return [*arguments, conversation, branch, *options, given]


def about(conversation: str | None = None, *, branch: int = MAIN, given: Sequence[str] | None = None) -> About:
    return About(conversation=conversation, branch=branch, given=tuple(given or ()))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def collect_garbage() -> None:
    """From now on, but for what is there already; `main` puts it off until all is imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def exit_code(error: QuireError) -> int:
    return NOT_FOUND if isinstance(error, NotFound) else FAILED


@asynccontextmanager
async def opened_store(target: About) -> AsyncGenerator["SqlStore"]:
    """The log alone, for commands that need no model, agent or vault."""
    from quire.cli.opening import as_options, database_url, settings_from
    from quire.log import SqlStore

    collect_garbage()
    url = database_url(settings_from(as_options(target.given)).settings)
    async with SqlStore.open(url) as store:
        yield store


@asynccontextmanager
async def opened_conversation(target: About, *, servers: bool = False) -> AsyncGenerator["Conversation"]:
    """A conversation that is there: asking for one by the command line makes none. With `servers`, these are started.

    What goes wrong with a server is said beside the outcome.
    """
    from quire.cli.opening import as_options, opened
    from quire.engine import Conversation

    collect_garbage()
    async with opened(as_options(target.given)) as engine, AsyncExitStack() as stack:
        _options_first(engine, target.given)
        if servers:
            await _start_servers(engine, stack)
        named = await conversation_named(engine.store, target.conversation)
        await engine.store.branch(named, target.branch)
        yield Conversation(engine, named, target.branch)


async def _start_servers(engine: "Engine", stack: AsyncExitStack) -> None:
    from quire.cli.output import note
    from quire.cli.progress import waiting
    from quire.cli.servers import started, trouble_said

    with waiting("Starting the servers"):
        _, troubles = await started(engine, stack)
    for trouble in troubles:
        note(trouble_said(trouble))


def _options_first(engine: "Engine", given: Sequence[str]) -> None:
    """What a command sets holds, whatever the agent's own file says."""
    from quire.settings.sources import option_layer

    if given:
        engine.use(**option_layer(given).values)


async def conversation_named(store: Any, id: str | None) -> str:
    """The id, if there is such a conversation; without one, that of the conversation used last."""
    if id is not None:
        try:
            return (await store.conversation(id)).id
        except ConversationNotFound as error:
            said = f"There is no conversation {id!r}; `quire conversation list` shows those that there are."
            raise ConversationNotFound(said) from error
    used_last = await store.conversations(limit=1)
    if not used_last:
        raise ConversationNotFound("There is no conversation yet; `quire chat` begins one.")
    return used_last[0].id


async def all_conversations(store: Any) -> list[str]:
    """The ids of all, the one used last first."""
    found: list[str] = []
    page = await store.conversations(limit=AT_ONCE)
    while page:
        found += [each.id for each in page]
        page = await store.conversations(limit=AT_ONCE, before=page[-1])
    return found
