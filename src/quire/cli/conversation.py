"""`quire conversation`: lists, forks, edits, verifies and purges conversations, and finds secrets in them."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from quire.cli.output import (
    NO_CONVERSATION,
    WIDE_COLUMNS,
    Result,
    format_local_time,
    make_table,
    make_text,
    pluralize,
    show_progress,
    show_spinner,
    to_one_line,
)
from quire.errors import InvalidRequest
from quire.plugins import load_plugins
from quire.rows.branches import choose_branch_used_last

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.engine.shared_transcript import SecretLocation
    from quire.log.types import IntegrityFault, TenantCheck, ValuePurge
    from quire.store import SqlStore

app = create_group("List, fork, edit, verify and purge conversations.")


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
    from quire.schemas.records import BranchSchema, ConversationSchema

    documents: list[dict[str, Any]] = []
    async with open_store(overrides) as store:
        records = await store.list_conversations(limit=limit, main_only=not everything, tag=tag)
        for record in await store.fill_titles(*records):
            branches = await store.list_branches(record.id)
            documents.append(
                {
                    **dict(ConversationSchema.model_validate(record)),
                    "entries": sum(branch.head_seq - branch.fork_seq for branch in branches),
                    "branches": [BranchSchema.model_validate(branch) for branch in branches],
                    "branch_used_last": choose_branch_used_last(branches).number,
                }
            )

    def draw(console: "Console") -> "Iterable[RenderableType]":
        if not documents:
            yield make_text(NO_CONVERSATION)
            return
        counts = ("entries", "branches") if console.width >= WIDE_COLUMNS else ()
        rows = [
            (
                each["id"],
                to_one_line(" ".join([each["title"], *(f"[{tag}]" for tag in each["tags"])])),
                format_local_time(each["updated_at"]),
                *((each["entries"], len(each["branches"])) if counts else ()),
            )
            for each in documents
        ]
        yield make_table("id", "title", "updated", *counts, rows=rows, right_aligned=counts, wrapped=("title",))

    return Result({"conversations": documents}, draw)


@command(app, "quire conversation fork 4 --name 'without the storm'")
async def fork(
    target: CommandTarget,
    at: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="The last entry that both branches share.")],
    *,
    name: Annotated[str | None, typer.Option(help="The name of the new branch.")] = None,
) -> Result:
    """Fork a branch that shares everything up to an entry. The old branch is unchanged."""
    from quire.schemas.records import BranchSchema

    async with open_store(target.overrides) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        source = await find_branch(store, conversation_id, target.branch)
        branch = await store.fork(conversation_id, at=at, branch=source.number, name=name)
    document = {"conversation": conversation_id, **dict(BranchSchema.model_validate(branch))}
    return Result(
        document, f"Forked branch {branch.number} ({branch.name}) from #{at}; select it with --branch {branch.number}."
    )


@command(app, "quire conversation edit --title 'Tides and storms'")
async def edit(
    conversation: ConversationName = None,
    *,
    title: Annotated[str | None, typer.Option(help="The new title.")] = None,
    tags: Annotated[str | None, typer.Option(help="All tags, separated by commas; an empty text removes them.")] = None,
    overrides: SetOptions = None,
) -> Result:
    """Change a conversation's title or tags."""
    if title is None and tags is None:
        raise typer.BadParameter("pass --title or --tags.")
    async with open_store(overrides) as store:
        conversation_id = await resolve_conversation_id(store, conversation)
        if title is not None:
            await store.rename_conversation(conversation_id, title)
        if tags is not None:
            await store.set_tags(conversation_id, tags.split(","))
        record = await store.get_conversation(conversation_id)
    document = {"conversation": conversation_id, "title": record.title, "tags": record.tags}
    listed = ", ".join(record.tags) or "none"
    return Result(document, f"{conversation_id} is {to_one_line(record.title)!r}; tags: {listed}.")


@command(app, "quire conversation verify")
async def verify(
    conversation: ConversationName = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Verify also memories, keys and the audit trail.")] = False,
    tenant: TenantOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Verify the digests of all entries and their records. The exit code is 1 if one was changed.

    With `--all`, it prints the number and digest of the last entry of the audit trail. Note them in another place, and
    compare them later: that also shows whether someone with access to the whole database wrote a new trail.
    """
    async with open_store(overrides, tenant=tenant) as store:
        own = store
        if everything:
            ids = await list_conversation_ids(own)
        else:
            ids = [await resolve_conversation_id(own, conversation)]
        faults = await _find_faults(own, ids, with_tenant=everything)
        checks = load_plugins("quire.checks").values() if everything else ()
        checked: list[TenantCheck] = [await check(store) for check in checks]
    faults += [(None, fault) for each in checked for fault in each.faults]
    notes = [each.note for each in checked if each.note is not None]
    located = [{"conversation": each, **fault._asdict()} for each, fault in faults]
    document = {"conversations": ids, "faults": located, "notes": notes}
    text = " ".join([f"Verified {pluralize(len(ids), 'conversation')}: nothing was changed.", *notes])
    verified = make_text(text)
    return Result(
        document, lambda _: _draw_faults(faults) if faults else [verified], exit_code=EXIT_FAILED if faults else 0
    )


async def _find_faults(
    store: "SqlStore", ids: list[str], *, with_tenant: bool
) -> "list[tuple[str | None, IntegrityFault]]":
    """Rows of these conversations that were changed; also memories and keys, which belong to no conversation."""
    found = await store.verify_tenant() if with_tenant else []
    faults: list[tuple[str | None, IntegrityFault]] = [(None, each) for each in found]
    with show_progress("Verifying") as progress:
        for done, checked in enumerate(ids):
            progress.update(done, len(ids))
            faults += [(checked, each) for each in await store.verify_conversation(checked)]
    return faults


def _draw_faults(faults: "Iterable[tuple[str | None, IntegrityFault]]") -> "Iterable[RenderableType]":
    rows = [
        (
            conversation or "",
            "" if each.branch is None else each.branch,
            "" if each.seq is None else f"#{each.seq}",
            each.problem,
        )
        for conversation, each in faults
    ]
    columns = ("conversation", "branch", "entry", "problem")
    yield make_table(*columns, rows=rows, right_aligned=("branch",), wrapped=("problem",))


@command(app, "quire conversation purge 01ke6p8kt00000000000000003 --message 3 --yes")
def purge(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION",
            help="A conversation ID or its first characters, a title, or an agent's session ID.",
            show_default=False,
            autocompletion=complete_conversation_ids,
        ),
    ] = None,
    *,
    value_from: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Erase the text in this file everywhere. - prompts, or reads it."),
    ] = None,
    message: Annotated[
        list[int] | None, typer.Option(metavar="SEQ", min=1, help="Purge only this message. Repeatable.")
    ] = None,
    branch: BranchNumber = None,
    yes: Yes = False,
    overrides: SetOptions = None,
) -> Result:
    """Erase messages permanently: from the log, summaries, memories and search. The digests stay.

    Erases the whole conversation, unless `--message` names messages. With `--value-from`, erases one text, such as a
    leaked key, wherever it is. It is never an argument, which other users of the machine could see and a shell would
    remember. This cannot be undone.
    """
    if (conversation is None) == (value_from is None):
        raise typer.BadParameter("name a conversation, or a text with --value-from.")
    if conversation is None:
        return _purge_value(value_from or "-", yes=yes, overrides=overrides)
    return _purge_conversation(conversation, message, branch, yes=yes, overrides=overrides)


def _purge_conversation(
    conversation: str,
    message: list[int] | None,
    branch: int | None,
    *,
    yes: bool,
    overrides: Sequence[str] | None,
) -> Result:
    async def resolve() -> str:
        async with open_store(overrides) as store:
            return await resolve_conversation_id(store, conversation)

    async def erase() -> list[dict[str, int]]:
        async with open_store(overrides) as store:
            with show_spinner("Purging"):
                named = await find_branch(store, conversation_id, branch)
                purged = await store.purge(conversation_id, message or None, branch=named.number)
            return [{"branch": entry.branch, "seq": entry.seq} for entry in purged]

    conversation_id = run_async(resolve())
    if not yes:
        subject = f"{pluralize(len(message), 'message')} of" if message else "all messages of"
        confirm(f"Permanently erase {subject} {conversation_id}?")
    purged = run_async(erase())
    return Result(
        {"conversation": conversation_id, "purged": purged},
        f"Erased the content of {pluralize(len(purged), 'entry')} of {conversation_id}.",
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

    found: list[SecretLocation] = []
    async with open_store(overrides) as store:
        if everything:
            ids = await list_conversation_ids(store)
        else:
            ids = [await resolve_conversation_id(store, each) for each in conversations or [None]]
        with show_progress("Searching") as progress:
            for done, each in enumerate(ids):
                progress.update(done, len(ids))
                found += [hit async for hit in find_conversation_secrets(store, each)]
    document = {"conversations": len(ids), "secrets": [each._asdict() for each in found]}
    return Result(document, lambda _: _draw_secrets(found, pluralize(len(ids), "conversation")))


def _draw_secrets(found: "Sequence[SecretLocation]", scope: str) -> "Iterable[RenderableType]":
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
        "`quire conversation purge --value-from -` erases one everywhere."
    )


def _purge_value(source: str, *, yes: bool, overrides: Sequence[str] | None) -> Result:
    async def count() -> dict[str, int]:
        async with open_store(overrides) as store:
            with show_spinner("Searching"):
                return await store.find_value(value)

    async def erase() -> "ValuePurge":
        async with open_store(overrides) as store:
            with show_spinner("Purging"):
                return await store.purge_value(value)

    if source != "-":
        try:
            value = Path(source).read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{source} cannot be read: {error}.") from error
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
    places = [{"conversation": each[0], "branch": each[1], "seq": each[2]} for each in purged.entries]
    document = {"purged": places, "rows": purged.rows, "remaining": purged.remaining}
    return Result(document, "\n".join(lines))
