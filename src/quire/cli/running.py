"""What every command shares: its options, the conversation that it is about, and the code that it ends with.

    0  done, or yes
    1  failed, or no
    2  the command line cannot be understood
    3  there is no such conversation, entry, item or file

Nothing of the library below the settings is imported before a command runs.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting for this command alone; may be given several times."),
]
ConversationId = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONVERSATION]",
        help="The conversation's id; else the newest one.",
        show_default=False,
        autocompletion=conversation_ids,
    ),
]
BranchNumber = Annotated[int, typer.Option("--branch", min=0, help="The number of the branch; 0 is the first.")]
ReplyNumber = Annotated[
    int | None,
    typer.Option("--reply", metavar="NUMBER", min=1, help="The request that this reply answered.", show_default=False),
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
async def opened_conversation(target: About) -> AsyncGenerator["Conversation"]:
    """A conversation that is there: asking for one by the command line makes none."""
    from quire.cli.opening import as_options, opened
    from quire.engine import Conversation

    collect_garbage()
    async with opened(as_options(target.given)) as engine:
        _options_first(engine, target.given)
        named = await conversation_named(engine.store, target.conversation)
        await engine.store.branch(named, target.branch)
        yield Conversation(engine, named, target.branch)


def _options_first(engine: "Engine", given: Sequence[str]) -> None:
    """What a command sets holds, whatever the agent's own file says."""
    from quire.settings.sources import option_layer

    if given:
        engine.use(**option_layer(given).values)


async def conversation_named(store: Any, id: str | None) -> str:
    """The id, if there is such a conversation; without one, the newest conversation's."""
    if id is not None:
        return (await store.conversation(id)).id
    newest = await store.conversations(limit=1)
    if not newest:
        raise ConversationNotFound("There is no conversation yet; `quire chat` begins one.")
    return newest[0].id
