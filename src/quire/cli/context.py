"""`quire context`, what only looks: the window, its summary, its memory, its numbers, its items.

`show` and `why` are about the next request, unless a reply names an earlier one; nothing is changed by asking.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import context_changes, context_ledger, context_stats, context_transfer
from quire.cli.compactions import compaction_document, compaction_said
from quire.cli.manifests import manifest_of
from quire.cli.output import give, moment, one_line, table, text
from quire.cli.running import (
    MAIN,
    About,
    AsJson,
    BranchNumber,
    ConversationId,
    Given,
    ReplyNumber,
    about,
    command,
    group,
    opened_conversation,
    run,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.context.items import InSession
    from quire.model import Entry, Manifest

app = group("See what the model sees of a conversation, and change it.")


@command(app, "quire context show")
def show(
    conversation: ConversationId = None,
    *,
    branch: BranchNumber = MAIN,
    reply: ReplyNumber = None,
    all_rows: Annotated[bool, typer.Option("--all", help="List what is in the request as well.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Draw the window by slot: what the next request holds, what it leaves out and why."""
    manifest = run(_shown(about(conversation, branch=branch, given=given), reply))

    def draw(console: Any) -> "Iterable[RenderableType]":
        from quire.cli.window import drawn

        policy = manifest.policy
        asked = "the next request" if reply is None else f"the request that #{reply} answered"
        counts = "counts are exact" if manifest.exact else "counts are estimates"
        yield text(f"{manifest.conversation}, branch {manifest.branch}: {asked}")
        yield text(f"{policy.model}, strategy {policy.strategy}, {counts}\n", style="dim")
        yield from drawn(manifest, console, all_rows=all_rows)

    give(_window(manifest, reply), draw, as_json=as_json)


async def _shown(target: About, reply: int | None) -> "Manifest":
    async with opened_conversation(target) as conversation:
        return await manifest_of(conversation, reply)


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


@command(app, "quire context summary")
def summary(
    conversation: ConversationId = None,
    *,
    branch: BranchNumber = MAIN,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Print the summary that stands in place of archived messages, and how it came about."""
    named, entry = run(_active(about(conversation, branch=branch, given=given)))
    found = compaction_document(entry)

    def draw(_: Any) -> "Iterable[RenderableType]":
        if found is None:
            yield text("Nothing is compacted: the model sees every message.")
            return
        yield text(compaction_said(found), style="bold")
        by = f"written by {found['model']}" if found["model"] else "extracts, made without a model"
        yield text(f"{moment(entry.at if entry else None)}, {found['trigger']}; {by}", style="dim")
        yield text(f"\n{found['summary'] or 'Without a summary: the messages are left out.'}")

    give({"conversation": named, "branch": branch, "compaction": found}, draw, as_json=as_json)


async def _active(target: About) -> "tuple[str, Entry | None]":
    async with opened_conversation(target) as conversation:
        store = conversation.engine.store
        window = await store.window(conversation.id, branch=conversation.branch, max_tokens=0)
        return conversation.id, window.compaction


@command(app, "quire context memory")
def memory(
    conversation: ConversationId = None,
    *,
    branch: BranchNumber = MAIN,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Print what the next request carries from memory: the project's files, and what the agent remembers."""
    named, found = run(_remembered(about(conversation, branch=branch, given=given)))

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

    give({"conversation": named, "branch": branch, "memory": found}, draw, as_json=as_json)


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


@command(app, "quire context items")
def items(
    conversation: ConversationId = None,
    *,
    branch: BranchNumber = MAIN,
    add: Annotated[list[str] | None, typer.Option(help="Bring an item of the agent's into the session.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Take an item out of the session.")] = None,
    pin: Annotated[list[int] | None, typer.Option(min=1, help="Keep this message in view, word for word.")] = None,
    unpin: Annotated[list[int] | None, typer.Option(min=1, help="Keep it no longer.")] = None,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """List the rules, references and tools of the session, and the pinned messages; or change them."""
    target = about(conversation, branch=branch, given=given)
    named, found, pins = run(_items(target, add or [], remove or [], pin or [], unpin or []))
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
            rows=[(row["type"], row["name"], row["include"], _note(row)) for row in listed],
            wide=("name", "description"),
        ) if listed else text("The session has no items.")  # fmt: skip
        yield text(f"Pinned: {', '.join(f'#{number}' for number in pins) or 'nothing'}")

    give({"conversation": named, "branch": branch, "items": listed, "pins": list(pins)}, draw, as_json=as_json)


def _note(row: dict[str, Any]) -> str:
    return one_line(row["description"]) if row["known"] else "(the agent has it no longer)"


def _description(each: "InSession") -> str:
    from quire.model.agents import OfferedTool

    if each.known is None:
        return ""
    if isinstance(each.known, OfferedTool):
        return each.known.definition.description or ""
    return each.known.description


async def _items(
    target: About, added: list[str], removed: list[str], pinned: list[int], unpinned: list[int]
) -> "tuple[str, list[InSession], tuple[int, ...]]":
    async with opened_conversation(target) as conversation:
        for name in added:
            await conversation.add(name)
        for name in removed:
            await conversation.remove(name)
        for number in pinned:
            await conversation.pin(number)
        for number in unpinned:
            await conversation.unpin(number)
        state = (await conversation.engine.store.branch(conversation.id, conversation.branch)).state
        return conversation.id, await conversation.items(), state.pins


for _part in (context_stats, context_changes, context_transfer, context_ledger):
    app.add_typer(_part.app)
