"""`quire conversation`: lists, forks, renames, tags, verifies and purges conversations, and finds secrets in them."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli import conversation_show
from quire.cli.common import (
    EXIT_FAILED,
    BranchNumber,
    CommandTarget,
    ConversationName,
    Limit,
    SetOptions,
    TenantOption,
    Yes,
    command,
    complete_conversation_ids,
    confirm,
    create_group,
    find_branch,
    list_conversation_ids,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.conversation_list import draw_conversations
from quire.cli.output import (
    Result,
    make_table,
    make_text,
    pluralize,
    print_note,
    show_progress,
    show_spinner,
    to_one_line,
)
from quire.errors import IntegrityViolation, InvalidRequest
from quire.rows.branches import choose_branch_used_last
from quire.rows.conversations import ConversationListRow

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log.types import ValuePurge
    from quire.schemas.records import FoundSecretsSchema, LocatedFaultSchema
    from quire.store import SqlStore
    from quire.store.archives import OffloadResult

DAY_MICROSECONDS = 86_400_000_000
CONCURRENT_MOVES = 8
"""Conversations that are moved to the object storage at the same time."""

app = create_group("List, read and manage conversations.")


@command(app, "quire conversation list", name="list")
async def list_(
    *,
    limit: Limit = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list sub-agents, and agents' calls for titles and the like.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="Only conversations with this tag.", show_default=False)] = None,
    overrides: SetOptions = None,
) -> Result:
    """List conversations, the most recently used first."""
    # `quire.cli.quick_reads` prints the same list from SQLite without these imports.
    from quire.schemas.records import (
        BranchSchema,
        ConversationListSchema,
        ConversationSchema,
        ListedConversationSchema,
    )

    documents: list[ListedConversationSchema] = []
    async with open_store(overrides) as store:
        records = await store.list_conversations(limit=limit, main_only=not everything, tag=tag)
        for record in await store.fill_titles(*records):
            branches = await store.list_branches(record.id)
            documents.append(
                ListedConversationSchema(
                    **dict(ConversationSchema.from_record(record)),
                    entries=sum(branch.head_seq - branch.fork_seq for branch in branches),
                    branches=[BranchSchema.from_record(branch) for branch in branches],
                    branch_used_last=choose_branch_used_last(branches).number,
                )
            )
    listed = [
        ConversationListRow(each.id, each.title, tuple(each.tags), each.updated_at, each.entries, len(each.branches))
        for each in documents
    ]
    return Result(ConversationListSchema(conversations=documents), lambda console: draw_conversations(listed, console))


@command(app, "quire conversation fork --at 4 --name 'without the storm'")
async def fork(
    target: CommandTarget,
    *,
    at: Annotated[int, typer.Option(metavar="SEQ", min=0, help="The last entry that both branches share.")],
    name: Annotated[str | None, typer.Option(help="The name of the new branch.")] = None,
) -> Result:
    """Fork a branch that shares everything up to an entry. The old branch is unchanged."""
    from quire.schemas.records import BranchSchema, ForkedBranchSchema

    async with open_store(target.overrides) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        source = await find_branch(store, conversation_id, target.branch)
        branch = await store.fork(conversation_id, at=at, branch=source.number, name=name)
    document = ForkedBranchSchema(conversation=conversation_id, **dict(BranchSchema.from_record(branch)))
    return Result(
        document, f"Forked branch {branch.number} ({branch.name}) from #{at}; select it with --branch {branch.number}."
    )


@command(app, "quire conversation rename 'Tides and storms'")
async def rename(
    title: Annotated[str, typer.Argument(help="The new title.")],
    conversation: ConversationName = None,
    *,
    overrides: SetOptions = None,
) -> Result:
    """Change a conversation's title."""
    from quire.schemas.records import NamedConversationSchema

    async with open_store(overrides) as store:
        conversation_id = await resolve_conversation_id(store, conversation)
        await store.rename_conversation(conversation_id, title)
    document = NamedConversationSchema(conversation=conversation_id, title=title)
    return Result(document, f"Renamed {conversation_id} to {to_one_line(title)!r}.")


@command(app, "quire conversation tag mill,release")
async def tag(
    tags: Annotated[str, typer.Argument(help="All tags, separated by commas; an empty text removes them.")],
    conversation: ConversationName = None,
    *,
    overrides: SetOptions = None,
) -> Result:
    """Replace a conversation's tags."""
    from quire.schemas.records import TaggedConversationSchema

    async with open_store(overrides) as store:
        conversation_id = await resolve_conversation_id(store, conversation)
        stored = await store.set_tags(conversation_id, tags.split(","))
    document = TaggedConversationSchema(conversation=conversation_id, tags=stored)
    return Result(document, f"Tags of {conversation_id}: {', '.join(stored) or 'none'}.")


@command(app, "quire conversation verify")
async def verify(
    conversation: ConversationName = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Verify every conversation, memories and keys.")] = False,
    tenant: TenantOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Verify the digests of all entries and their records. The exit code is 1 if one was changed."""
    from quire.schemas.records import VerifiedConversationsSchema

    async with open_store(overrides, tenant=tenant) as store:
        own = store.lagging()
        if everything:
            ids = await list_conversation_ids(own)
        else:
            ids = [await resolve_conversation_id(own, conversation)]
        faults = await find_faults(own, ids, with_tenant=everything)
    document = VerifiedConversationsSchema(conversations=ids, faults=faults)
    verified = make_text(f"Verified {pluralize(len(ids), 'conversation')}: nothing was changed.")
    return Result(
        document, lambda _: draw_faults(faults) if faults else [verified], exit_code=EXIT_FAILED if faults else 0
    )


async def find_faults(store: "SqlStore", ids: list[str], *, with_tenant: bool) -> "list[LocatedFaultSchema]":
    """Rows of these conversations that were changed; also memories and keys, which belong to no conversation."""
    from quire.schemas.records import LocatedFaultSchema

    found = await store.verify_tenant() if with_tenant else []
    faults = [LocatedFaultSchema(conversation=None, **each._asdict()) for each in found]
    with show_progress("Verifying") as progress:
        for done, checked in enumerate(ids):
            progress.update(done, len(ids))
            found = await store.verify_conversation(checked)
            faults += [LocatedFaultSchema(conversation=checked, **each._asdict()) for each in found]
    return faults


def draw_faults(faults: "Iterable[LocatedFaultSchema]") -> "Iterable[RenderableType]":
    rows = [
        (
            each.conversation or "",
            "" if each.branch is None else each.branch,
            "" if each.seq is None else f"#{each.seq}",
            each.problem,
        )
        for each in faults
    ]
    columns = ("conversation", "branch", "entry", "problem")
    yield make_table(*columns, rows=rows, right_aligned=("branch",), wrapped=("problem",))


@command(app, "quire conversation purge 01ke6p8kt00000000000000003 --message 3 --yes")
def purge(
    conversation: Annotated[
        str,
        typer.Argument(
            metavar="CONVERSATION",
            help="A conversation ID or its first characters, a title, or an agent's session ID.",
            autocompletion=complete_conversation_ids,
        ),
    ],
    *,
    message: Annotated[
        list[int] | None, typer.Option(metavar="SEQ", min=1, help="Purge only this message. Repeatable.")
    ] = None,
    branch: BranchNumber = None,
    yes: Yes = False,
    overrides: SetOptions = None,
) -> Result:
    """Erase messages permanently: from the log, summaries, memories and search. The digests stay.

    Erases the whole conversation, unless `--message` names messages. This cannot be undone.
    """
    from quire.schemas.records import PurgedConversationSchema, PurgedEntrySchema

    async def resolve() -> str:
        async with open_store(overrides) as store:
            return await resolve_conversation_id(store, conversation)

    async def erase() -> list[PurgedEntrySchema]:
        async with open_store(overrides) as store:
            with show_spinner("Purging"):
                named = await find_branch(store, conversation_id, branch)
                purged = await store.purge(conversation_id, message or None, branch=named.number)
            return [PurgedEntrySchema(branch=entry.branch, seq=entry.seq) for entry in purged]

    conversation_id = run_async(resolve())
    if not yes:
        subject = f"{pluralize(len(message), 'message')} of" if message else "all messages of"
        confirm(f"Permanently erase {subject} {conversation_id}?")
    purged = run_async(erase())
    return Result(
        PurgedConversationSchema(conversation=conversation_id, purged=purged),
        f"Erased the content of {pluralize(len(purged), 'entry')} of {conversation_id}.",
    )


@command(app, "quire conversation offload --unused-days 90 --set object_storage_url=file:///tmp/objects")
async def offload(
    *,
    unused_days: Annotated[int, typer.Option("--unused-days", min=1, help="Days without use.")],
    tenant: TenantOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Move conversations to the object storage now. They stay listed and searchable, and come back when opened.

    A worker does the same every day with the setting `offload_after_days`. A conversation that was changed, or has
    messages that are not indexed yet, stays.
    """
    from quire.model.ids import now
    from quire.schemas.records import OffloadedConversationsSchema

    moved: list[OffloadResult] = []
    changed: list[str] = []
    async with open_store(overrides, tenant=tenant) as store:
        store.offloading.get_storage()
        ids = await store.offloading.list_unused(before=now() - unused_days * DAY_MICROSECONDS)
        slots = asyncio.Semaphore(CONCURRENT_MOVES)

        async def move(conversation_id: str) -> None:
            async with slots:
                try:
                    result = await store.offloading.offload(conversation_id)
                except IntegrityViolation:
                    changed.append(conversation_id)
                else:
                    moved.extend([result] if result is not None else [])

        with show_progress("Moving") as progress:
            for done, moving in enumerate(asyncio.as_completed(map(move, ids))):
                progress.update(done, len(ids))
                await moving
    row_bytes, object_bytes = sum(each.row_bytes for each in moved), sum(each.object_bytes for each in moved)
    document = OffloadedConversationsSchema(
        conversations=[each.conversation for each in moved],
        unmoved=len(ids) - len(moved),
        changed=sorted(changed),
        row_bytes=row_bytes,
        object_bytes=object_bytes,
    )
    if changed:
        print_note(
            f"Rows of {pluralize(len(changed), 'conversation')} were changed. `quire conversation verify` says which."
        )
    stayed = f" {pluralize(document.unmoved, 'conversation')} stayed." if document.unmoved else ""
    return Result(
        document,
        f"Moved {pluralize(len(moved), 'conversation')}: {row_bytes:,} bytes of text and bodies, "
        f"as {object_bytes:,} bytes of objects.{stayed}",
    )


@command(app, "quire conversation secrets --all")
async def secrets(
    conversations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONVERSATION...",
            help="IDs, their first characters, or titles. Default: the most recently used.",
            autocompletion=complete_conversation_ids,
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Search every conversation.")] = False,
    overrides: SetOptions = None,
) -> Result:
    """List where keys, tokens and passwords of known formats are, without printing them."""
    from quire.engine.shared_transcript import find_conversation_secrets
    from quire.schemas.records import FoundSecretsSchema, SecretSchema

    found: list[SecretSchema] = []
    async with open_store(overrides) as store:
        if everything:
            ids = await list_conversation_ids(store)
        else:
            ids = [await resolve_conversation_id(store, each) for each in conversations or [None]]
        with show_progress("Searching") as progress:
            for done, each in enumerate(ids):
                progress.update(done, len(ids))
                found += [SecretSchema(**hit._asdict()) async for hit in find_conversation_secrets(store, each)]
    document = FoundSecretsSchema(conversations=len(ids), secrets=found)
    return Result(document, lambda _: _draw_secrets(document))


def _draw_secrets(document: "FoundSecretsSchema") -> "Iterable[RenderableType]":
    scope, found = pluralize(document.conversations, "conversation"), document.secrets
    if not found:
        yield make_text(f"No secret of a known format in {scope}.")
        return
    yield make_table(
        "conversation", "branch", "entry", "kind", "secret",
        rows=[(each.conversation, each.branch, f"#{each.seq}", each.kind, each.mask) for each in found],
        right_aligned=("branch",), wrapped=("kind", "secret"),
    )  # fmt: skip
    yield make_text(
        f"{pluralize(len(found), 'secret')} in {scope}. Revoke each where it was issued; "
        "`quire conversation purge-value` erases one everywhere."
    )


@command(app, "quire conversation purge-value --file leaked-key.txt --yes", name="purge-value")
def purge_value(
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the value from this file.", show_default=False)
    ] = None,
    yes: Yes = False,
    overrides: SetOptions = None,
) -> Result:
    """Erase one text, such as a leaked key, permanently: every message, summary, memory and file that contains it.

    The value is read from a prompt without echo, from standard input or from a file. It is never an argument, which
    other users of the machine could see and a shell would remember. This cannot be undone.
    """
    from quire.schemas.records import PurgedValueSchema

    async def count() -> dict[str, int]:
        async with open_store(overrides) as store:
            with show_spinner("Searching"):
                return await store.find_value(value)

    async def erase() -> "ValuePurge":
        async with open_store(overrides) as store:
            with show_spinner("Purging"):
                return await store.purge_value(value)

    if file is not None:
        try:
            value = file.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{file} cannot be read: {error}.") from error
    elif sys.stdin.isatty():
        value = typer.prompt("Value to erase", hide_input=True, err=True)
    else:
        value = sys.stdin.read().strip("\r\n")
    if not yes:
        places = ", ".join(f"{count} in {table}" for table, count in sorted(run_async(count()).items())) or "none"
        confirm(f"Permanently erase every row that contains this value ({places})?")
    purged = run_async(erase())
    entries, conversations = len(purged.entries), len({entry[0] for entry in purged.entries})
    lines = [f"Erased {pluralize(entries, 'entry')} of {pluralize(conversations, 'conversation')}."]
    if purged.rows:
        lines.append(f"Other rows: {', '.join(f'{count} of {table}' for table, count in sorted(purged.rows.items()))}.")
    if purged.remaining:
        lines.append(f"The value is still part of ids in: {', '.join(purged.remaining)}. Ids cannot be changed.")
    return Result(PurgedValueSchema.from_purge(purged), "\n".join(lines))


app.add_typer(conversation_show.app)
