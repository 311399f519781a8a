"""`quire context`, what changes the view: compact, undo, edit, clear. All of it is appended; undo takes it back."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.compactions import compaction_document, compaction_said
from quire.cli.output import counted, fields, give, note, text
from quire.cli.progress import waiting
from quire.cli.running import About, AsJson, branch_command, group, opened_conversation, run
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch
    from quire.model import Compaction, Entry
    from quire.model.events import Event
    from quire.view.plans import Plan

app = group("")

CLEARED = ("messages", "summary")
"""The slots that clearing empties."""
UNDO = "Nothing is deleted; `quire context undo` brings it back."


@branch_command(app, "quire context compact")
def compact(
    target: About,
    *,
    keep: Annotated[str | None, typer.Option(metavar="TEXT", help="What the summary must keep.")] = None,
    preview: Annotated[bool, typer.Option(help="Say what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compact now, whatever the meter says: older messages are archived, a summary takes their place."""
    if preview:
        named, plan = run(_planned(target))
        give(
            {"conversation": named, "branch": target.branch, "plan": plan}, lambda _: _plan_drawn(plan), as_json=as_json
        )
        return
    named, entry = run(_compacted(target, keep))
    _tell(named, target.branch, entry, as_json=as_json, nothing="There is nothing to compact.")


async def _planned(target: About) -> tuple[str, dict[str, Any] | None]:
    async with opened_conversation(target) as conversation:
        return conversation.id, _plan(await conversation.plan())


def _plan(plan: "Plan | None") -> dict[str, Any] | None:
    if plan is None:
        return None
    covers = plan.covers
    return {
        "covers": None if covers is None else {"first": covers.first, "last": covers.last},
        "shortened": [each.message for each in plan.shortened],
        "tokens": plan.tokens,
        "target": plan.target,
        "summarize": plan.summarize,
    }


def _plan_drawn(plan: dict[str, Any] | None) -> "Iterable[RenderableType]":
    if plan is None:
        yield text("There is nothing to compact.")
        return
    covers = plan["covers"]
    yield fields(
        [
            ("would archive", f"#{covers['first']} to #{covers['last']}" if covers else "nothing"),
            ("would shorten", ", ".join(f"#{number}" for number in plan["shortened"]) or None),
            ("would free", counted(plan["tokens"], "token")),
            ("down to about", counted(plan["target"], "token")),
            ("with a summary", plan["summarize"]),
        ]
    )


async def _compacted(target: About, keep: str | None) -> "tuple[str, Entry | None]":
    async with opened_conversation(target) as conversation:
        conversation.engine.subscribe(_tell_failure)
        with waiting("Compacting"):
            return conversation.id, await conversation.compact(instructions=keep)


def _tell_failure(event: "Event") -> None:
    from quire.model.events import CompactionFailed

    if isinstance(event, CompactionFailed):
        note(f"quire: {event.detail} An extract takes its place.")


def _tell(named: str, branch: int, entry: "Entry | None", *, as_json: bool, nothing: str) -> None:
    """What a compaction did."""
    found = compaction_document(entry)
    said = nothing if found is None else f"{compaction_said(found)}. {UNDO}"
    give({"conversation": named, "branch": branch, "compaction": found}, lambda _: [text(said)], as_json=as_json)


@branch_command(app, "quire context undo")
def undo(
    target: About,
    *,
    as_json: AsJson = False,
) -> None:
    """Take the newest compaction, edit or clearing back: the model sees again what it saw before it."""
    named, undone, active = run(_undone(target))
    said = f"Took the compaction in entry #{undone} back. "
    said += f"Compaction {active} is in force again." if active else "The model sees every message again."
    document = {"conversation": named, "branch": target.branch, "undone": undone, "active": active}
    give(document, lambda _: [text(said)], as_json=as_json)


async def _undone(target: About) -> tuple[str, int, int | None]:
    from quire.model import Restore

    async with opened_conversation(target) as conversation:
        body = (await conversation.undo()).body
        state = (await conversation.engine.store.branch(conversation.id, conversation.branch)).state
        undone = body.compaction if isinstance(body, Restore) else 0
        return conversation.id, undone, state.active.number if state.active is not None else None


@branch_command(app, "quire context edit --text 'Only the tides matter now. [#2]'")
def edit(
    target: About,
    *,
    new_text: Annotated[
        str | None, typer.Option("--text", help="The new summary; - reads it from standard input. Else $EDITOR opens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put other words in place of the summary; the old one stays in the log."""
    # Outside of any event loop: while a person writes, Ctrl-C must reach the editor or end the command.
    named, present = run(_present_summary(target))
    wanted = _wanted(present, new_text).strip()
    if not wanted:
        raise InvalidRequest("The summary would be empty, so it was left as it is; `quire context clear` drops it.")
    exact = replace(target, conversation=named)
    entry = run(_edited(exact, wanted)) if wanted != present.strip() else None
    _tell(named, target.branch, entry, as_json=as_json, nothing="The summary was not changed.")


async def _present_summary(target: About) -> tuple[str, str]:
    async with opened_conversation(target) as conversation:
        store = conversation.engine.store
        window = await store.window(conversation.id, branch=conversation.branch, max_tokens=0)
        found = compaction_document(window.compaction)
        if found is None or found["covers"] is None:
            raise InvalidRequest("There is no summary to edit; `quire context compact` makes one.")
        return conversation.id, found["summary"] or ""


async def _edited(target: About, wanted: str) -> "Entry":
    async with opened_conversation(target) as conversation:
        return await conversation.edit_summary(wanted)


def _wanted(present: str, new_text: str | None) -> str:
    if new_text == "-":
        return sys.stdin.read()
    if new_text is not None:
        return new_text
    from quire.cli.editor import edited

    return edited(present)


@branch_command(app, "quire context clear")
def clear(
    target: About,
    *,
    as_json: AsJson = False,
) -> None:
    """Start the view anew: everything so far is archived, without a summary. Nothing is deleted; undo brings it back.

    Pinned messages stay, and what bears on a question may still be recalled.
    """
    named, entry = run(_cleared(target))
    _tell(named, target.branch, entry, as_json=as_json, nothing="There is nothing to clear.")


async def _cleared(target: About) -> "tuple[str, Entry | None]":
    from quire.model import Draft
    from quire.view.gather import summary_tokens

    async with opened_conversation(target) as conversation:
        store, manifest = conversation.engine.store, await conversation.preview()
        branch = await store.branch(conversation.id, conversation.branch)
        if branch.state.active is None and not any(row.what == "message" and row.span for row in manifest.decisions):
            return conversation.id, None
        kept = sum(row.tokens for row in manifest.included if row.reason == "pinned" or row.slot not in CLEARED)
        before, strategy = manifest.wanted, manifest.policy.strategy
        body = _without_summary(branch, before=before, after=min(before, kept), strategy=strategy)
        draft = Draft(body=body, tokens=summary_tokens(body, conversation.engine.meter))
        [entry] = await store.append(conversation.id, draft, branch=conversation.branch)
        return conversation.id, entry


def _without_summary(branch: "Branch", *, before: int, after: int, strategy: str) -> "Compaction":
    """A compaction of everything that simply leaves it out."""
    from quire.model import Compaction, Span

    state = branch.state
    return Compaction(
        number=state.compactions + 1,
        covers=Span(first=1, last=branch.head_seq),
        trigger="manual",
        strategy=strategy,
        tokens_before=before,
        tokens_after=after,
        supersedes=state.active.seq if state.active is not None else None,
    )
