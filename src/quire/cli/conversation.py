"""`quire conversation`: the conversations that there are, forked, renamed, checked, purged."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import conversation_search, conversation_show
from quire.cli.completing import conversation_ids
from quire.cli.output import counted, give, moment, one_line, table, text, timestamp
from quire.cli.progress import progress, waiting
from quire.cli.running import (
    FAILED,
    MAIN,
    About,
    AsJson,
    BranchNumber,
    ConversationId,
    Given,
    Limit,
    about,
    all_conversations,
    branch_command,
    command,
    conversation_named,
    group,
    opened_store,
    run,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch, Conversation, Fault

app = group("List, read, search and look after conversations.")


@command(app, "quire conversation list", name="list")
def list_(*, limit: Limit = 20, as_json: AsJson = False, given: Given = None) -> None:
    """List conversations, the one used last first."""
    found = run(_listed(about(given=given), limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "id", "title", "used", "entries", "branches",
            rows=[
                (each.id, one_line(each.title), moment(each.used_at), entries, branches)
                for each, entries, branches in found
            ],
            right=("entries", "branches"), wide=("title",),
        ) if found else text("There is no conversation yet; `quire chat` begins one.")  # fmt: skip

    listed = [
        {
            "id": each.id,
            "title": each.title,
            "entries": entries,
            "branches": branches,
            "created_at": timestamp(each.created_at),
            "used_at": timestamp(each.used_at),
        }
        for each, entries, branches in found
    ]
    give({"conversations": listed}, draw, as_json=as_json)


async def _listed(target: About, limit: int) -> "list[tuple[Conversation, int, int]]":
    """Conversations, each with the number of its entries and of its branches."""
    async with opened_store(target) as store:
        found: list[tuple[Conversation, int, int]] = []
        for each in await store.titled(*await store.conversations(limit=limit)):
            branches = await store.branches(each.id)
            found.append((each, sum(branch.head_seq - branch.fork_seq for branch in branches), len(branches)))
        return found


@branch_command(app, "quire conversation fork --at 4 --name 'without the storm'")
def fork(
    target: About,
    *,
    at: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="The last entry that both lines share.")],
    name: Annotated[str | None, typer.Option(help="What to call the new branch.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin another line that shares everything up to an entry; the old one stays as it is."""
    made = run(_forked(target, at, name))
    document = {
        "conversation": made.conversation,
        "branch": made.number,
        "name": made.name,
        "from": {"branch": target.branch, "number": at},
    }
    said = f"Branch {made.number} ({made.name}) goes on from #{at}; reach it with --branch {made.number}."
    give(document, lambda _: [text(said)], as_json=as_json)


async def _forked(target: About, at: int, name: str | None) -> "Branch":
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        return await store.fork(named, at=at, branch=target.branch, name=name)


@command(app, "quire conversation rename 'Tides and storms'")
def rename(
    title: Annotated[str, typer.Argument(help="The new title.")],
    conversation: ConversationId = None,
    *,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Give a conversation another title."""
    named = run(_renamed(about(conversation, given=given), title))
    document = {"conversation": named, "title": title}
    give(document, lambda _: [text(f"{named} is now called {one_line(title)!r}.")], as_json=as_json)


async def _renamed(target: About, title: str) -> str:
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        await store.rename(named, title)
        return named


@command(app, "quire conversation verify")
def verify(
    conversation: ConversationId = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every conversation, not only one.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Check every entry against the chain of digests; the exit code is 1 if one is not as it was written."""
    checked, faults = run(_verified(about(conversation, given=given), everything=everything))
    listed = [
        {"conversation": named, "branch": fault.branch, "number": fault.seq, "problem": fault.problem}
        for named, fault in faults
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        if not faults:
            yield text(f"Every entry of {counted(len(checked), 'conversation')} is as it was written.")
            return
        yield table(
            "conversation", "branch", "entry", "problem",
            rows=[(named, fault.branch, f"#{fault.seq}", fault.problem) for named, fault in faults],
            right=("branch",), wide=("problem",),
        )  # fmt: skip

    give({"conversations": checked, "faults": listed}, draw, as_json=as_json)
    if faults:
        raise typer.Exit(FAILED)


async def _verified(target: About, *, everything: bool) -> "tuple[list[str], list[tuple[str, Fault]]]":
    async with opened_store(target) as store:
        if everything:
            wanted = await all_conversations(store)
        else:
            wanted = [await conversation_named(store, target.conversation)]
        found: list[tuple[str, Fault]] = []
        with progress("Verifying") as so_far:
            for done, each in enumerate(wanted):
                so_far.at(done, len(wanted))
                found += [(each, fault) for fault in await store.verify(each)]
        return wanted, found


@command(app, "quire conversation purge 01ke6p8kt00000000000000003 --message 3 --yes")
def purge(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.", autocompletion=conversation_ids)
    ],
    *,
    message: Annotated[
        list[int] | None, typer.Option(metavar="NUMBER", min=1, help="Only this message; may be given several times.")
    ] = None,
    branch: BranchNumber = MAIN,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Remove what was said, for good: from the log, summaries, memories and search. The digests stay.

    The whole conversation, unless messages are named. This cannot be undone.
    """
    which = f"{counted(len(message), 'message')} of" if message else "all that was said in"
    if not yes:
        _confirm(f"Remove {which} {conversation} for good?")
    gone = run(_purged(about(conversation, branch=branch, given=given), message))
    document = {"conversation": conversation, "purged": [{"branch": each[0], "number": each[1]} for each in gone]}
    said = f"Removed the content of {counted(len(gone), 'entry')} of {conversation}."
    give(document, lambda _: [text(said)], as_json=as_json)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to ask; say --yes.")
    typer.confirm(question, abort=True, err=True)


async def _purged(target: About, numbers: Sequence[int] | None) -> list[tuple[int, int]]:
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        with waiting("Purging"):
            gone = await store.purge(named, numbers or None, branch=target.branch)
        return [(entry.branch, entry.seq) for entry in gone]


for _part in (conversation_show, conversation_search):
    app.add_typer(_part.app)
