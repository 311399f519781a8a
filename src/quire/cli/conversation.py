"""`quire conversation`: lists, forks, renames, verifies and purges conversations."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import conversation_secrets, conversation_show
from quire.cli.common import (
    EXIT_FAILED,
    MAIN_BRANCH,
    AsJson,
    BranchNumber,
    CommandTarget,
    ConversationId,
    Limit,
    SetOptions,
    branch_command,
    command,
    complete_conversation_ids,
    create_group,
    list_conversation_ids,
    make_target,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import (
    format_local_time,
    make_table,
    make_text,
    pluralize,
    print_result,
    show_progress,
    show_spinner,
    to_one_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch, ConversationRecord, IntegrityFault

app = create_group("List, read and manage conversations.")


@command(app, "quire conversation list", name="list")
def list_(*, limit: Limit = 20, as_json: AsJson = False, overrides: SetOptions = None) -> None:
    """List conversations, the most recently used first."""
    from quire.schemas.records import BranchSchema, ConversationSchema

    conversations = run_async(_load_conversations(make_target(overrides=overrides), limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "id", "title", "updated", "entries", "branches",
            rows=[
                (each.id, to_one_line(each.title), format_local_time(each.updated_at), _count_entries(own), len(own))
                for each, own in conversations
            ],
            right_aligned=("entries", "branches"), wrapped=("title",),
        ) if conversations else make_text("There is no conversation yet; start one with `quire chat`.")  # fmt: skip

    rows = [
        ConversationSchema.from_record(each).model_dump(mode="json")
        | {
            "entries": _count_entries(own),
            "branches": [BranchSchema.from_record(branch).model_dump(mode="json") for branch in own],
        }
        for each, own in conversations
    ]
    print_result({"conversations": rows}, draw, as_json=as_json)


async def _load_conversations(target: CommandTarget, limit: int) -> "list[tuple[ConversationRecord, list[Branch]]]":
    """Loads conversations, each with its branches."""
    async with open_store(target) as store:
        records = await store.fill_titles(*await store.list_conversations(limit=limit))
        return [(each, await store.list_branches(each.id)) for each in records]


def _count_entries(branches: "Sequence[Branch]") -> int:
    return sum(branch.head_seq - branch.fork_seq for branch in branches)


@branch_command(app, "quire conversation fork --at 4 --name 'without the storm'")
def fork(
    target: CommandTarget,
    *,
    at: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="The last entry that both branches share.")],
    name: Annotated[str | None, typer.Option(help="The name of the new branch.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fork a branch that shares everything up to an entry; the old branch is unchanged."""
    from quire.schemas.records import BranchSchema

    branch = run_async(_fork_branch(target, at, name))
    document = {"conversation": branch.conversation} | BranchSchema.from_record(branch).model_dump(mode="json")
    line = f"Forked branch {branch.number} ({branch.name}) from #{at}; select it with --branch {branch.number}."
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


async def _fork_branch(target: CommandTarget, at: int, name: str | None) -> "Branch":
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        return await store.fork(conversation_id, at=at, branch=target.branch, name=name)


@command(app, "quire conversation rename 'Tides and storms'")
def rename(
    title: Annotated[str, typer.Argument(help="The new title.")],
    conversation: ConversationId = None,
    *,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Change a conversation's title."""
    conversation_id = run_async(_rename_conversation(make_target(conversation, overrides=overrides), title))
    document = {"conversation": conversation_id, "title": title}
    line = f"Renamed {conversation_id} to {to_one_line(title)!r}."
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


async def _rename_conversation(target: CommandTarget, title: str) -> str:
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        await store.rename_conversation(conversation_id, title)
        return conversation_id


@command(app, "quire conversation verify")
def verify(
    conversation: ConversationId = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Verify every conversation, memories and keys.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Verify the digests of all entries and their records; the exit code is 1 if one was changed."""
    from quire.schemas.records import IntegrityFaultSchema

    checked, faults = run_async(
        _verify_conversations(make_target(conversation, overrides=overrides), everything=everything)
    )
    rows = [
        {"conversation": conversation_id} | IntegrityFaultSchema.from_record(fault).model_dump(mode="json")
        for conversation_id, fault in faults
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        if not faults:
            yield make_text(f"Verified {pluralize(len(checked), 'conversation')}: nothing was changed.")
            return
        yield make_table(
            "conversation", "branch", "entry", "problem",
            rows=[(each or "", *_describe_position(fault), fault.problem) for each, fault in faults],
            right_aligned=("branch",), wrapped=("problem",),
        )  # fmt: skip

    print_result({"conversations": checked, "faults": rows}, draw, as_json=as_json)
    if faults:
        raise typer.Exit(EXIT_FAILED)


async def _verify_conversations(
    target: CommandTarget, *, everything: bool
) -> "tuple[list[str], list[tuple[str | None, IntegrityFault]]]":
    """The verified conversations and their faults; with `everything` also those of no conversation."""
    async with open_store(target) as store:
        if everything:
            ids = await list_conversation_ids(store)
        else:
            ids = [await resolve_conversation_id(store, target.conversation)]
        faults: list[tuple[str | None, IntegrityFault]] = []
        if everything:
            faults += [(None, fault) for fault in await store.verify_tenant()]
        with show_progress("Verifying") as progress:
            for done, each in enumerate(ids):
                progress.update(done, len(ids))
                faults += [(each, fault) for fault in await store.verify_conversation(each)]
        return ids, faults


def _describe_position(fault: "IntegrityFault") -> tuple[int | str, str]:
    branch = "" if fault.branch is None else fault.branch
    return branch, "" if fault.seq is None else f"#{fault.seq}"


@command(app, "quire conversation purge 01ke6p8kt00000000000000003 --message 3 --yes")
def purge(
    conversation: Annotated[
        str,
        typer.Argument(metavar="CONVERSATION", help="The conversation's id.", autocompletion=complete_conversation_ids),
    ],
    *,
    message: Annotated[
        list[int] | None, typer.Option(metavar="NUMBER", min=1, help="Purge only this message; repeatable.")
    ] = None,
    branch: BranchNumber = MAIN_BRANCH,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Erase messages permanently: from the log, summaries, memories and search. The digests stay.

    Erases the whole conversation, unless `--message` names messages. This cannot be undone.
    """
    subject = f"{pluralize(len(message), 'message')} of" if message else "all messages of"
    if not yes:
        _confirm(f"Permanently erase {subject} {conversation}?")
    purged = run_async(_purge_messages(make_target(conversation, branch=branch, overrides=overrides), message))
    document = {
        "conversation": conversation,
        "purged": [{"branch": number, "seq": seq} for number, seq in purged],
    }
    line = f"Erased the content of {pluralize(len(purged), 'entry')} of {conversation}."
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("cannot ask for confirmation without a terminal; pass --yes.")
    typer.confirm(question, abort=True, err=True)


async def _purge_messages(target: CommandTarget, numbers: Sequence[int] | None) -> list[tuple[int, int]]:
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        with show_spinner("Purging"):
            purged = await store.purge(conversation_id, numbers or None, branch=target.branch)
        return [(entry.branch, entry.seq) for entry in purged]


for _part in (conversation_show, conversation_secrets):
    app.add_typer(_part.app)
