"""`quire context`, the read commands: window, summary, memory and session items.

`show` describes the next request, or with `--reply` an earlier one, and writes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quire.cli import context_changes, context_ledger, context_stats, context_transfer
from quire.cli.common import (
    AsJson,
    CommandTarget,
    ReplyNumber,
    WithServers,
    branch_command,
    create_group,
    open_conversation,
    run_async,
)
from quire.cli.context_changes import load_active_compaction
from quire.cli.context_ledger import load_manifest
from quire.cli.context_sections import ContextSection, count_items
from quire.cli.mcp_servers import format_not_started, list_enabled_servers
from quire.cli.output import (
    format_compaction,
    format_local_time,
    make_table,
    make_text,
    print_result,
    to_one_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.model import Manifest, Priority
    from quire.schemas.context import ActiveCompactionSchema, ContextItemSchema
    from quire.schemas.entries import EntrySchema

app = create_group("Show what the model sees of a conversation, and change it.")


@branch_command(app, "quire context show")
def show(
    target: CommandTarget,
    *,
    reply: ReplyNumber = None,
    unfold: Annotated[
        list[ContextSection] | None, typer.Option(help="List what this section includes; repeatable.")
    ] = None,
    unfold_all: Annotated[bool, typer.Option("--all", help="List what every section includes.")] = False,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """Draw the context window by slot: what the next request includes, what it omits and why."""
    manifest, missing, entry = run_async(_load_window(target, reply, servers=servers))

    def draw(console: Any) -> "Iterable[RenderableType]":
        from quire.cli.context_window import format_turn, render_window

        policy = manifest.policy
        request = "the next request" if reply is None else f"the request that #{reply} answered"
        counts = "counts are exact" if manifest.exact else "counts are estimates"
        yield make_text(f"{manifest.conversation}, branch {manifest.branch}: {request}")
        yield make_text(f"{policy.model}, strategy {policy.strategy}, {counts}\n", style="dim")
        yield from render_window(
            manifest,
            console,
            unfolded=list(ContextSection) if unfold_all else unfold or (),
            is_past=reply is not None,
        )
        if entry is not None and entry.turn is not None:
            yield make_text(f"\n{format_turn(entry)}")
        if missing:
            yield make_text(f"\n{format_not_started(missing)}")

    document = {
        "conversation": manifest.conversation,
        "branch": manifest.branch,
        "reply": reply,
        "manifest": manifest.model_dump(mode="json"),
        "item_counts": count_items(manifest),
        "entry": entry.model_dump(mode="json") if entry is not None else None,
        "servers_not_started": missing,
    }
    print_result(document, draw, as_json=as_json)


async def _load_window(
    target: CommandTarget, reply: int | None, *, servers: bool
) -> "tuple[Manifest, list[str], EntrySchema | None]":
    """Loads the manifest, the servers whose tools are missing from it because they were not started, and the reply."""
    is_next = reply is None
    async with open_conversation(target, servers=servers and is_next) as conversation:
        missing = list_enabled_servers(conversation.engine.agent) if is_next and not servers else []
        manifest = await load_manifest(conversation, reply)
        if reply is None:
            return manifest, missing, None
        entry = await conversation.engine.store.get_entry(conversation.id, reply, branch=conversation.branch)
        from quire.schemas.entries import entry_to_schema

        return manifest, missing, entry_to_schema(entry)


@branch_command(app, "quire context summary")
def summary(
    target: CommandTarget,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the summary that replaces archived messages, and how it was made."""
    conversation_id, active = run_async(_load_active(target))

    def draw(_: Any) -> "Iterable[RenderableType]":
        if active is None:
            yield make_text("Nothing is compacted: the model sees every message.")
            return
        compaction = active.compaction
        yield make_text(format_compaction(compaction), style="bold")
        by = f"written by {compaction.model}" if compaction.model else "extracted without a model"
        yield make_text(f"{format_local_time(active.created_at)}, {compaction.trigger}; {by}", style="dim")
        yield make_text(f"\n{compaction.summary or 'No summary: the messages are archived without one.'}")

    document = {
        "conversation": conversation_id,
        "branch": target.branch,
        "active": active.model_dump(mode="json") if active is not None else None,
    }
    print_result(document, draw, as_json=as_json)


async def _load_active(target: CommandTarget) -> "tuple[str, ActiveCompactionSchema | None]":
    async with open_conversation(target) as conversation:
        return conversation.id, await load_active_compaction(conversation)


@branch_command(app, "quire context memory")
def memory(
    target: CommandTarget,
    *,
    as_json: AsJson = False,
) -> None:
    """Print what the next request includes from memory: the project's files and the agent's memories."""
    conversation_id, rows = run_async(_load_memory_rows(target))

    def draw(_: Any) -> "Iterable[RenderableType]":
        if not rows:
            yield make_text("No memory: there is no agent with memories, and no memory file in the vault.")
            return
        yield make_table(
            "name", "in", "why", "tokens",
            rows=[(each["name"], each["included"], each["reason"], each["tokens"]) for each in rows],
            right_aligned=("tokens",), wrapped=("name",),
        )  # fmt: skip
        for each in rows:
            if each["text"]:
                yield make_text(f"\n{each['name']}", style="bold")
                yield make_text(each["text"])

    document = {"conversation": conversation_id, "branch": target.branch, "memory": rows}
    print_result(document, draw, as_json=as_json)


async def _load_memory_rows(target: CommandTarget) -> tuple[str, list[dict[str, Any]]]:
    from quire.engine.context_gatherer import ContextGatherer

    async with open_conversation(target) as conversation:
        engine = conversation.engine
        branch = await engine.store.get_branch(conversation.id, conversation.branch)
        request_context = await ContextGatherer(engine).gather(branch, "", recent=tuple)
        texts = {block.name: block.text for block in request_context.blocks if block.kind == "memory"}
        return conversation.id, [
            {
                "name": row.name,
                "included": row.included,
                "reason": row.reason,
                "tokens": row.tokens,
                "text": texts.get(row.name or ""),
            }
            for row in (await conversation.preview()).decisions
            if row.kind == "memory"
        ]


@branch_command(app, "quire context items")
def items(
    target: CommandTarget,
    *,
    add: Annotated[list[str] | None, typer.Option(help="Add an item of the agent to the session.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Remove an item from the session.")] = None,
    pin: Annotated[
        list[int] | None, typer.Option(min=1, help="Pin this message, so that no compaction archives it.")
    ] = None,
    unpin: Annotated[list[int] | None, typer.Option(min=1, help="Unpin this message.")] = None,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """List the session's rules, references, tools and pinned messages, or change them."""
    changes = ItemChanges(add or (), remove or (), pin or (), unpin or ())
    conversation_id, session_items, pins, missing = run_async(_apply_item_changes(target, changes, servers=servers))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "type", "name", "include", "description",
            rows=[(row.type, row.name, row.session_mode, _format_item_note(row, missing)) for row in session_items],
            wrapped=("name", "description"),
        ) if session_items else make_text("The session has no items.")  # fmt: skip
        yield make_text(f"Pinned: {', '.join(f'#{number}' for number in pins) or 'nothing'}")
        if missing:
            yield make_text(format_not_started(missing))

    document = {
        "conversation": conversation_id,
        "branch": target.branch,
        "items": [each.model_dump(mode="json") for each in session_items],
        "pins": list(pins),
        "servers_not_started": missing,
    }
    print_result(document, draw, as_json=as_json)


@branch_command(app, "quire context priority 2 9")
def priority(
    target: CommandTarget,
    message: Annotated[int, typer.Argument(metavar="MESSAGE", min=1, help="The number of the message.")],
    value: Annotated[
        int, typer.Argument(metavar="PRIORITY", min=0, max=10, help="1 to 10; the default is 5. 0 resets it.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Set the priority of a message: compactions of `hybrid` archive low ones first, and preserve high ones.

    Critical is 8 to 10, important 6 and 7, normal 3 to 5, low 1 and 2.
    """
    conversation_id, priorities = run_async(_set_priority(target, message, value or None))
    document = {
        "conversation": conversation_id,
        "branch": target.branch,
        "priorities": [each.model_dump(mode="json") for each in priorities],
    }
    listed = ", ".join(f"#{each.message} has {each.priority}" for each in priorities)
    print_result(document, lambda _: [make_text(f"Priorities: {listed or 'none is set'}")], as_json=as_json)


async def _set_priority(target: CommandTarget, message: int, value: int | None) -> "tuple[str, tuple[Priority, ...]]":
    async with open_conversation(target) as conversation:
        await conversation.set_priority(message, value)
        state = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state
        return conversation.id, state.priorities


def _format_item_note(item: "ContextItemSchema", not_started: Sequence[str]) -> str:
    if item.agent_mode is not None:
        return to_one_line(item.description)
    return "(its server is not started)" if item.server in not_started else "(the agent no longer has it)"


class ItemChanges(NamedTuple):
    """Changes to a session: items by name, messages by number."""

    added: Sequence[str]
    removed: Sequence[str]
    pinned: Sequence[int]
    unpinned: Sequence[int]


async def _apply_item_changes(
    target: CommandTarget, changes: ItemChanges, *, servers: bool
) -> "tuple[str, list[ContextItemSchema], tuple[int, ...], list[str]]":
    from quire.schemas.context import ContextItemSchema

    async with open_conversation(target, servers=servers) as conversation:
        for name in changes.added:
            await conversation.add_item(name)
        for name in changes.removed:
            await conversation.remove_item(name)
        for number in changes.pinned:
            await conversation.pin(number)
        for number in changes.unpinned:
            await conversation.unpin(number)
        state = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state
        agent = conversation.engine.agent
        items = [
            ContextItemSchema.from_item(each.item, agent, session_mode=each.include)
            for each in await conversation.items()
        ]
        return conversation.id, items, state.pins, [] if servers else list_enabled_servers(agent)


for _part in (context_stats, context_changes, context_transfer, context_ledger):
    app.add_typer(_part.app)
