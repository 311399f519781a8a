"""`quire context`, what only looks: the window, its summary, its memory, its numbers, its items.

`show` and `why` are about the next request, unless a reply names an earlier one; nothing is changed by asking.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quire.cli import context_changes, context_ledger, context_stats, context_transfer
from quire.cli.compactions import compaction_document, compaction_said
from quire.cli.manifests import manifest_of
from quire.cli.output import give, moment, one_line, table, text
from quire.cli.running import (
    About,
    AsJson,
    ReplyNumber,
    WithServers,
    branch_command,
    group,
    opened_conversation,
    run,
)
from quire.cli.servers import enabled_servers, not_started_said

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.context.items import InSession
    from quire.model import Entry, Manifest

app = group("See what the model sees of a conversation, and change it.")


@branch_command(app, "quire context show")
def show(
    target: About,
    *,
    reply: ReplyNumber = None,
    all_rows: Annotated[bool, typer.Option("--all", help="List what is in the request as well.")] = False,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """Draw the window by slot: what the next request holds, what it leaves out and why."""
    manifest, missing = run(_shown(target, reply, servers=servers))

    def draw(console: Any) -> "Iterable[RenderableType]":
        from quire.cli.window import drawn

        policy = manifest.policy
        asked = "the next request" if reply is None else f"the request that #{reply} answered"
        counts = "counts are exact" if manifest.exact else "counts are estimates"
        yield text(f"{manifest.conversation}, branch {manifest.branch}: {asked}")
        yield text(f"{policy.model}, strategy {policy.strategy}, {counts}\n", style="dim")
        yield from drawn(manifest, console, all_rows=all_rows)
        if missing:
            yield text(f"\n{not_started_said(missing)}")

    give(_window(manifest, reply) | {"servers_not_started": missing}, draw, as_json=as_json)


async def _shown(target: About, reply: int | None, *, servers: bool) -> "tuple[Manifest, list[str]]":
    """The record, and the servers whose tools are not in it because they were not started."""
    next_one = reply is None
    async with opened_conversation(target, servers=servers and next_one) as conversation:
        missing = enabled_servers(conversation.engine.agent) if next_one and not servers else []
        return await manifest_of(conversation, reply), missing


def _window(manifest: "Manifest", reply: int | None) -> dict[str, Any]:
    policy = manifest.policy
    return {
        "conversation": manifest.conversation,
        "branch": manifest.branch,
        "reply": reply,
        "model": policy.model,
        "strategy": policy.strategy,
        "exact": manifest.exact,
        "window": policy.window,
        "reserved": policy.reserved_response_tokens,
        "trigger": manifest.trigger,
        "total": manifest.total,
        "wanted": manifest.wanted,
        "slots": [use.model_dump(mode="json", exclude_none=True) for use in manifest.slots],
        "included": [row.model_dump(mode="json", exclude_none=True) for row in manifest.included],
        "left_out": [row.model_dump(mode="json", exclude_none=True) for row in manifest.left_out],
    }


@branch_command(app, "quire context summary")
def summary(
    target: About,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the summary that stands in place of archived messages, and how it came about."""
    named, entry = run(_active(target))
    found = compaction_document(entry)

    def draw(_: Any) -> "Iterable[RenderableType]":
        if found is None:
            yield text("Nothing is compacted: the model sees every message.")
            return
        yield text(compaction_said(found), style="bold")
        by = f"written by {found['model']}" if found["model"] else "extracts, made without a model"
        yield text(f"{moment(entry.at if entry else None)}, {found['trigger']}; {by}", style="dim")
        yield text(f"\n{found['summary'] or 'Without a summary: the messages are left out.'}")

    give({"conversation": named, "branch": target.branch, "compaction": found}, draw, as_json=as_json)


async def _active(target: About) -> "tuple[str, Entry | None]":
    async with opened_conversation(target) as conversation:
        store = conversation.engine.store
        window = await store.window(conversation.id, branch=conversation.branch, max_tokens=0)
        return conversation.id, window.compaction


@branch_command(app, "quire context memory")
def memory(
    target: About,
    *,
    as_json: AsJson = False,
) -> None:
    """Print what the next request carries from memory: the project's files, and what the agent remembers."""
    named, found = run(_remembered(target))

    def draw(_: Any) -> "Iterable[RenderableType]":
        if not found:
            yield text("Nothing from memory: there is no agent with memories, and no memory file in the vault.")
            return
        yield table(
            "name", "in", "why", "tokens",
            rows=[(each["name"], each["included"], each["reason"], each["tokens"]) for each in found],
            right=("tokens",), wide=("name",),
        )  # fmt: skip
        for each in found:
            if each["text"]:
                yield text(f"\n{each['name']}", style="bold")
                yield text(each["text"])

    give({"conversation": named, "branch": target.branch, "memory": found}, draw, as_json=as_json)


async def _remembered(target: About) -> tuple[str, list[dict[str, Any]]]:
    async with opened_conversation(target) as conversation:
        engine = conversation.engine
        branch = await engine.store.branch(conversation.id, conversation.branch)
        around = await engine.gatherer.around(branch, "", recent=tuple)
        texts = {block.name: block.text for block in around.blocks if block.what == "memory"}
        return conversation.id, [
            {
                "name": row.name,
                "included": row.included,
                "reason": row.reason,
                "tokens": row.tokens,
                "text": texts.get(row.name or ""),
            }
            for row in (await conversation.preview()).decisions
            if row.what == "memory"
        ]


@branch_command(app, "quire context items")
def items(
    target: About,
    *,
    add: Annotated[list[str] | None, typer.Option(help="Bring an item of the agent's into the session.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Take an item out of the session.")] = None,
    pin: Annotated[list[int] | None, typer.Option(min=1, help="Keep this message in view, word for word.")] = None,
    unpin: Annotated[list[int] | None, typer.Option(min=1, help="Keep it no longer.")] = None,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """List the rules, references and tools of the session, and the pinned messages; or change them."""
    changes = Changes(add or (), remove or (), pin or (), unpin or ())
    named, found, pins, missing = run(_items(target, changes, servers=servers))
    listed = [
        {
            "type": each.item.type,
            "name": each.item.name,
            "server": each.item.server,
            "include": each.include,
            "known": each.known is not None,
            "description": _description(each),
        }
        for each in found
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "type", "name", "came in", "description",
            rows=[(row["type"], row["name"], row["include"], _note(row, missing)) for row in listed],
            wide=("name", "description"),
        ) if listed else text("The session has no items.")  # fmt: skip
        yield text(f"Pinned: {', '.join(f'#{number}' for number in pins) or 'nothing'}")
        if missing:
            yield text(not_started_said(missing))

    document = {"conversation": named, "branch": target.branch, "items": listed, "pins": list(pins)}
    give(document | {"servers_not_started": missing}, draw, as_json=as_json)


def _note(row: dict[str, Any], not_started: Sequence[str]) -> str:
    if row["known"]:
        return one_line(row["description"])
    return "(its server is not started)" if row["server"] in not_started else "(the agent has it no longer)"


def _description(each: "InSession") -> str:
    from quire.model.agents import OfferedTool

    if each.known is None:
        return ""
    if isinstance(each.known, OfferedTool):
        return each.known.definition.description or ""
    return each.known.description


class Changes(NamedTuple):
    """What is to change in a session: items by name, messages by number."""

    added: Sequence[str]
    removed: Sequence[str]
    pinned: Sequence[int]
    unpinned: Sequence[int]


async def _items(
    target: About, changes: Changes, *, servers: bool
) -> "tuple[str, list[InSession], tuple[int, ...], list[str]]":
    async with opened_conversation(target, servers=servers) as conversation:
        for name in changes.added:
            await conversation.add(name)
        for name in changes.removed:
            await conversation.remove(name)
        for number in changes.pinned:
            await conversation.pin(number)
        for number in changes.unpinned:
            await conversation.unpin(number)
        state = (await conversation.engine.store.branch(conversation.id, conversation.branch)).state
        missing = [] if servers else enabled_servers(conversation.engine.agent)
        return conversation.id, await conversation.items(), state.pins, missing


for _part in (context_stats, context_changes, context_transfer, context_ledger):
    app.add_typer(_part.app)
