"""Shared parts of the commands: parameters, exit codes, shell completion, and opening a store or a conversation.

Every `quire --help` imports this module, so it imports neither settings nor the engine at the top.
"""

import asyncio
import gc
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from quire.cli.output import NO_CONVERSATION, Result, print_note, print_result, show_spinner, to_one_line
from quire.errors import ConversationNotFound, InvalidRequest, NotFound, QuireError
from quire.rows.branches import choose_branch_used_last

if TYPE_CHECKING:
    from quire.engine import Conversation
    from quire.log import Branch, ConversationRecord
    from quire.store import SqlStore

EXIT_FAILED = 1
EXIT_NOT_FOUND = 3
CONVERSATION_PAGE_SIZE = 100
"""Conversations that one read lists."""
MAX_NAMED_CONVERSATIONS = 10_000
"""Newest conversations among which a title or the beginning of an id is searched."""
MAX_COMPLETIONS = 50
"""Conversation ids that the shell completion offers."""
MAX_SUGGESTED_IDS = 3
RUNNING_SECONDS = 900
"""An agent that sent a request within this time counts as running."""
MAX_TITLE_CHARS = 60

_VALUE_NAMES: dict[type, str] = {int: "N", float: "N", Path: "PATH"}

T = TypeVar("T")
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


def complete_conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    """Completes ids of recent conversations, with titles. A completion never fails, it may be empty."""

    async def find() -> list[tuple[str, str]]:
        from quire.cli.engine_setup import load_cli_settings, resolve_database_url
        from quire.db.tenant_keys import TenantKeys
        from quire.store import SqlStore

        settings = load_cli_settings().settings
        url, keys = resolve_database_url(settings), TenantKeys.from_settings(settings.encryption, os.environ)
        if url.startswith("sqlite:///") and not await asyncio.to_thread(Path(url.removeprefix("sqlite:///")).exists):
            return []  # Opening a missing database would create it.
        async with SqlStore.open(url, keys=keys) as store:
            recent = await store.fill_titles(*await store.list_conversations(limit=MAX_COMPLETIONS, main_only=True))
        return [(each.id, each.title) for each in recent if each.id.startswith(incomplete)]

    try:
        return asyncio.run(find())
    except (QuireError, OSError):
        return []


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
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting for this command. Repeatable."),
]
ConversationName = Annotated[
    str | None,
    typer.Argument(
        metavar="CONVERSATION",
        help="A conversation ID or its first characters, a title, or an agent's session ID. Default: the most recent.",
        show_default=False,
        autocompletion=complete_conversation_ids,
    ),
]
BranchNumber = Annotated[
    int | None,
    typer.Option(
        "--branch",
        min=0,
        help="The branch number, 0 for the main branch. Default: the branch used last.",
        show_default=False,
    ),
]
ReplyNumber = Annotated[
    int | None,
    typer.Option("--reply", metavar="SEQ", min=1, help="The request that this reply answered.", show_default=False),
]
WithServers = Annotated[bool, typer.Option("--servers", help="Start the agent's MCP servers to include their tools.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant. Default: the setting `tenant`.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def _show_no_type(ctx: Any) -> None:
    """Typer calls it with the context."""


def _name_values(params: list[Any]) -> list[Any]:
    """Help shows names for values, such as `N`, and no types of Python."""
    for each in params:
        if isinstance(each, TyperArgument):
            vars(each)["display_type_rich"] = _show_no_type
        elif each.metavar is None and each.type_descriptor.is_choice:
            each.metavar = "|".join(map(str, each.type_descriptor.choices))
        elif each.metavar is None:
            each.metavar = "" if each.is_flag else _VALUE_NAMES.get(each.type_descriptor.annotation, "TEXT")
    return params


class PlainCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _name_values(super().get_params(ctx))


class PlainGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _name_values(super().get_params(ctx))


def create_group(help: str) -> typer.Typer:
    return typer.Typer(help=help, cls=PlainGroup, no_args_is_help=True, add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """The conversation and branch of a command, and its setting overrides."""

    conversation: str | None = None
    branch: int | None = None
    """None for the branch used last."""
    overrides: Sequence[str] | None = None


def command(
    app: typer.Typer, example: str, *, name: str | None = None, context_settings: dict[str, Any] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Adds a command with an example, which its help shows, docs/commands.md prints and the tests run.

    The function may be a coroutine. If it returns a `Result`, the command takes `--json` and prints it. If its first
    parameter is a `CommandTarget`, the command takes `[CONVERSATION]` after its own arguments, `--branch` and `--set`.
    """

    def add(function: CommandFunction) -> CommandFunction:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())
        has_target = bool(own) and own[0].annotation is CommandTarget
        has_json = signature.return_annotation in (Result, Result | None)
        arguments = [each for each in own[has_target:] if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
        options = [each for each in own if each.kind is Parameter.KEYWORD_ONLY and each.name != "overrides"]
        if has_target:
            arguments.append(_make_parameter("conversation", ConversationName, None))
            options.insert(0, _make_parameter("branch", BranchNumber, None))
        if has_json:
            options.append(_make_parameter("as_json", AsJson, default=False))
        if has_target or "overrides" in signature.parameters:
            options.append(_make_parameter("overrides", SetOptions, None))

        def run(**values: Any) -> None:
            as_json = has_json and values.pop("as_json")
            targets = (
                [CommandTarget(**{each: values.pop(each) for each in ("conversation", "branch", "overrides")})]
                if has_target
                else []
            )
            outcome: Any = function(*targets, **values)
            if inspect.iscoroutine(outcome):
                outcome = asyncio.run(outcome)
            if isinstance(outcome, Result):
                print_result(outcome, as_json=as_json)
                if outcome.exit_code:
                    raise typer.Exit(outcome.exit_code)

        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*arguments, *options)]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        app.command(name, cls=PlainCommand, epilog=f"Example: {example}", context_settings=context_settings)(run)
        return function

    return add


def _make_parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def enable_garbage_collection() -> None:
    """Turns garbage collection on, which `main` turns off for the imports; the imported objects stay exempt."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def to_exit_code(error: QuireError) -> int:
    return EXIT_NOT_FOUND if isinstance(error, NotFound) else EXIT_FAILED


def confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("cannot ask for confirmation without a terminal; pass --yes.")
    typer.confirm(question, abort=True, err=True)


@asynccontextmanager
async def open_store(
    overrides: Sequence[str] | None = None, *, tenant: str | None = None
) -> AsyncGenerator["SqlStore"]:
    """Opens the log alone, for commands that need no model, agent or vault. Without a tenant, it is the one of the
    settings."""
    from quire.cli.engine_setup import load_cli_settings, resolve_database_url
    from quire.db.tenant_keys import TenantKeys
    from quire.store import SqlStore

    enable_garbage_collection()
    settings = load_cli_settings(overrides).settings
    keys = TenantKeys.from_settings(settings.encryption, os.environ)
    async with SqlStore.open(
        resolve_database_url(settings),
        tenant=tenant if tenant is not None else settings.tenant,
        masking=settings.tenant_masking,
        keys=keys,
        object_storage=settings.object_storage_url,
    ) as store:
        yield store


@asynccontextmanager
async def open_conversation(
    target: CommandTarget, *, servers: bool = False, edits: bool = False
) -> AsyncGenerator["Conversation"]:
    """Opens an existing conversation, or raises `ConversationNotFound`: these commands create none.

    With `servers`, the agent's MCP servers are started; their problems are printed to standard error. A command that
    `edits` prompts for one if several agents are running.
    """
    from quire.cli.engine_setup import format_server_problem, open_engine_from_settings, start_servers
    from quire.engine import Conversation

    enable_garbage_collection()
    async with open_engine_from_settings(target.overrides) as engine, AsyncExitStack() as stack:
        if servers:
            with show_spinner("Starting the servers"):
                started = await start_servers(engine, stack)
            for problem in started.problems:
                print_note(format_server_problem(problem))
            engine = started.engine
        name = target.conversation
        if edits and name is None:
            name = await _choose_running_agent(engine.store)
        conversation_id = await resolve_conversation_id(engine.store, name)
        if edits:
            await _refuse_copy(engine.store, await engine.store.get_conversation(conversation_id))
        branch = await find_branch(engine.store, conversation_id, target.branch)
        yield Conversation(engine, conversation_id, branch.number)


async def _find_recorded(store: "SqlStore", record: "ConversationRecord") -> "ConversationRecord | None":
    """What the gateway recorded of an imported session, which is the conversation that the agent continues."""
    if not record.is_imported or record.origin is None or record.origin.session is None:
        return None
    records = await store.list_session(record.origin.session)
    return next((each for each in records if each.is_main and not each.is_imported), None)


async def _refuse_copy(store: "SqlStore", record: "ConversationRecord") -> None:
    recorded = await _find_recorded(store, record)
    if recorded is not None and record.origin is not None:
        raise InvalidRequest(
            f"{record.id} was imported, and nothing was changed. The agent's requests are in {recorded.id}, whose "
            f"messages may have other numbers. `quire import {record.origin.client} --dry-run` says whether an import "
            "would merge them."
        )


async def _choose_running_agent(store: "SqlStore") -> str | None:
    """The conversation that an edit without a name means, if several agents have been running, else None. Asks on a
    terminal; raises `InvalidRequest` elsewhere."""
    from quire.model.ids import now

    since = now() - RUNNING_SECONDS * 1_000_000
    recent = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE, main_only=True)
    running = [
        each
        for each in recent
        if each.owner is not None and each.updated_at > since and await _find_recorded(store, each) is None
    ]
    if len(running) < 2:
        return None
    lines = [f"{number}. {_name_record(each)}" for number, each in enumerate(await store.fill_titles(*running), 1)]
    question = f"{len(running)} agents were running in the last {RUNNING_SECONDS // 60} minutes."
    if not sys.stdin.isatty():
        raise InvalidRequest("\n".join([f"{question} Name the conversation to change:", *lines]))
    print_note("\n".join([question, *lines]))
    number: int = typer.prompt("Which one", type=int, err=True)
    if not 1 <= number <= len(running):
        raise InvalidRequest(f"There is no number {number}, so nothing was changed.")
    return running[number - 1].id


def _name_record(record: "ConversationRecord") -> str:
    agent = f"{record.owner}, " if record.owner is not None else ""
    return f"“{to_one_line(record.title, MAX_TITLE_CHARS)}” ({agent}{record.id})"


async def name_conversation(conversation: "Conversation") -> str:
    """The conversation that a command changed, and the agent whose it is."""
    store = conversation.engine.store
    [record] = await store.fill_titles(await store.get_conversation(conversation.id))
    return f"In {_name_record(record)}:"


async def resolve_conversation_id(store: "SqlStore", name: str | None) -> str:
    """Finds a conversation by id, by the id of an agent's session, by title or by the beginning of its id.

    Without a name, it is the most recently used main conversation, never a sub-agent's or a call for a title.
    """
    if name is None:
        recent = await store.list_conversations(limit=1, main_only=True)
        if not recent:
            raise ConversationNotFound(NO_CONVERSATION)
        return recent[0].id
    with suppress(ConversationNotFound):
        return (await store.get_conversation(name)).id
    of_session = sorted(
        (each for each in await store.list_session(name) if each.is_main), key=lambda each: each.is_imported
    )
    found = of_session[:1] or await find_conversations(store, name)
    if not found:
        raise ConversationNotFound(f"There is no conversation {name!r}; run `quire conversation list` to see them.")
    if len(found) > 1:
        ids = ", ".join(each.id for each in found[:MAX_SUGGESTED_IDS])
        more = " and others" if len(found) > MAX_SUGGESTED_IDS else ""
        raise InvalidRequest(f"{name!r} names {len(found)} conversations: {ids}{more}. Write more of the id.")
    return found[0].id


async def find_branch(store: "SqlStore", conversation_id: str, number: int | None) -> "Branch":
    """The branch of this number. Without one, the branch used last."""
    if number is not None:
        return await store.get_branch(conversation_id, number)
    return choose_branch_used_last(await store.list_branches(conversation_id))


async def find_conversations(store: "SqlStore", name: str) -> "list[ConversationRecord]":
    """The conversations of this title; if there is none, those whose id begins with the name.

    Main conversations come before an agent's calls for their titles, which begin with the same words.
    """
    by_title: list[ConversationRecord] = []
    by_prefix: list[ConversationRecord] = []
    read = 0
    page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE) if name.strip() else []
    while page and read < MAX_NAMED_CONVERSATIONS:
        read += len(page)
        for each in await store.fill_titles(*page):
            if each.title.casefold() == name.casefold():
                by_title.append(each)
            elif each.id.startswith(name):
                by_prefix.append(each)
        page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE, before=page[-1])
    main = [each for each in by_title if each.is_main]
    return main or by_title or by_prefix


async def list_conversation_ids(store: "SqlStore") -> list[str]:
    """Lists the ids of all conversations, the most recently used first, by cursor pagination."""
    ids: list[str] = []
    page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE)
    while page:
        ids += [each.id for each in page]
        page = await store.list_conversations(limit=CONVERSATION_PAGE_SIZE, before=page[-1])
    return ids
