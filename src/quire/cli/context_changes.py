"""`quire context`, the commands that change the view: compact, undo and edit.

Each appends an entry to the log, so `undo` can revert it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import CommandTarget, command, create_group, name_conversation, open_conversation, run_async
from quire.cli.output import (
    Result,
    format_compaction,
    make_field_table,
    make_text,
    pluralize,
    print_note,
    show_spinner,
)
from quire.cli.platforms import IS_WINDOWS, split_command
from quire.errors import InvalidRequest, format_usd

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.model import Entry
    from quire.model.context_events import ContextEvent
    from quire.schemas.context import ActiveCompactionSchema, EditEffectSchema
    from quire.view.compaction_plan import CompactionPlan

app = create_group("")

CLEARED_SLOTS = ("messages", "summary")
"""Slots that `clear` empties."""
DEFAULT_EDITOR = "notepad" if IS_WINDOWS else "vi"
NOTHING_TO_COMPACT = "Nothing is compacted: that would free no tokens."
UNDO_HINT = "Nothing is deleted; undo it with `quire context undo`."


@command(app, "quire context compact")
async def compact(
    target: CommandTarget,
    *,
    keep: Annotated[str | None, typer.Option(metavar="TEXT", help="What the summary must preserve.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Print the plan without compacting.")] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Archive all messages but pinned ones, without a summary.")
    ] = False,
) -> Result:
    """Compact now, even below the threshold: archive older messages and replace them by a summary.

    Nothing is deleted: undo restores it.
    """
    if clear:
        return await _clear(target)
    from quire.model.context_events import CompactionFailed
    from quire.schemas.context import CompactionPlanSchema

    def print_failure(event: "ContextEvent") -> None:
        if isinstance(event, CompactionFailed):
            print_note(f"quire: {event.detail} Using an extractive summary instead.")

    async with open_conversation(target, edits=not preview) as conversation:
        if preview:
            plan = await conversation.plan_compaction()
            document = {
                "conversation": conversation.id,
                "branch": conversation.branch,
                "plan": CompactionPlanSchema.model_validate(plan) if plan is not None else None,
            }
            return Result(document, lambda _: _draw_plan(plan))
        conversation.engine.subscribe(print_failure)
        with show_spinner("Compacting"):
            entry = await conversation.compact(instructions=keep)
        return await _describe_compaction(conversation, entry, empty_message=NOTHING_TO_COMPACT)


def _draw_plan(plan: "CompactionPlan | None") -> "Iterable[RenderableType]":
    if plan is None:
        yield make_text(NOTHING_TO_COMPACT)
        return
    covers = plan.covers
    yield make_field_table(
        [
            ("would archive", f"#{covers.first} to #{covers.last}" if covers else "nothing"),
            ("would preserve", ", ".join(f"#{number}" for number in plan.preserved) or None),
            ("would shorten", ", ".join(f"#{each.message}" for each in plan.truncations) or None),
            ("would free", pluralize(plan.freed_tokens, "token")),
            ("down to about", pluralize(plan.target_tokens, "token")),
            ("with a summary", plan.needs_summary),
        ]
    )


async def _describe_compaction(conversation: "Conversation", entry: "Entry | None", *, empty_message: str) -> Result:
    """The entry of a compaction and what it did, or `empty_message` if there is none."""
    from quire.model import Compaction
    from quire.schemas.entries import entry_to_schema

    body = entry.body if entry is not None else None
    line = empty_message
    if isinstance(body, Compaction):
        line = f"{await name_conversation(conversation)}\n{format_compaction(body)}. {UNDO_HINT}"
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "entry": entry_to_schema(entry) if entry is not None else None,
    }
    return Result(document, line)


@command(app, "quire context undo")
async def undo(
    target: CommandTarget,
    *,
    redo: Annotated[
        bool, typer.Option("--redo", help="Redo the compaction that was undone last, unless one was made since.")
    ] = False,
) -> Result:
    """Undo the newest compaction, summary edit or clear: the model sees what it saw before."""
    if redo:
        return await _redo(target)
    from quire.model import Restore

    async with open_conversation(target, edits=True) as conversation:
        edited = await name_conversation(conversation)
        body = (await conversation.undo_compaction()).body
        active = await load_active_compaction(conversation)
        waiting = await load_waiting_edits(conversation)
    undone = body.compaction if isinstance(body, Restore) else 0
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "active": active,
        "waiting": waiting,
        "undone": undone,
    }
    now = "The model sees every message again."
    if waiting is not None and waiting.compaction is not None:
        now = "The agent's list has its summary until then."
    elif active is not None:
        now = f"Compaction {active.compaction.number} is active again."
    lines = [edited, f"Undid the compaction in entry #{undone}. {now}", *format_waiting_edits(waiting)]
    return Result(document, "\n".join(lines))


async def _redo(target: CommandTarget) -> Result:
    async with open_conversation(target, edits=True) as conversation:
        edited = await name_conversation(conversation)
        entry = await conversation.redo_compaction()
        active = await load_active_compaction(conversation)
        waiting = await load_waiting_edits(conversation)
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "active": active,
        "waiting": waiting,
    }
    lines = [edited, f"The compaction is active again, as entry #{entry.seq}.", *format_waiting_edits(waiting)]
    return Result(document, "\n".join(lines))


async def load_waiting_edits(conversation: "Conversation") -> "EditEffectSchema | None":
    """Edits that an agent's own list does not have yet."""
    if not await conversation.engine.store.list_manifests(conversation.id, branch=conversation.branch, limit=1):
        # Nothing was sent. The imports below take a tenth of a second.
        return None
    from quire.proxy.edit_effects import load_effect
    from quire.schemas.context import EditEffectSchema

    effect = await load_effect(conversation)
    return EditEffectSchema.model_validate(effect) if effect is not None else None


def format_waiting_edits(waiting: "EditEffectSchema | None") -> "Iterable[str]":
    """What edits do to an agent's next request, when, and at what price."""
    if waiting is None:
        return
    changes = [
        f"{sign}{count:,}" for count, sign in ((waiting.added_tokens, "+"), (waiting.removed_tokens, "−")) if count
    ]
    if (back := waiting.restored) is not None:
        rest = "" if back.messages == back.all_messages else "; the summary stays for the rest"
        yield (
            f"Planned: {back.messages:,} of {pluralize(back.all_messages, 'message')} and {back.results:,} of "
            f"{pluralize(back.all_results, 'tool result')} come back{rest}. `quire context show` counts them once the "
            "request was sent."
        )
    if waiting.thinking_blocks:
        blocks = pluralize(waiting.thinking_blocks, "block")
        yield f"{blocks} of signed reasoning go too: a signature holds only for the list that it was made for."
    if changes:
        yield f"Next request: {' '.join(changes)} tokens, about {waiting.prompt_tokens:,} in all before your message."
    written = ""
    if waiting.rewritten_tokens:
        written = f"{pluralize(waiting.rewritten_tokens, 'token')} written to the prompt cache again"
        if waiting.cost_usd is not None and waiting.unedited_cost_usd is not None:
            written += (
                f", {format_usd(waiting.cost_usd)} for the input instead of {format_usd(waiting.unedited_cost_usd)}"
            )
    match waiting.moment:
        case "next_request":
            yield "It takes effect with the next request."
        case "next_turn":
            yield "It takes effect with your next message" + (f": {written}." if written else ".")
        case "cold_cache":
            yield (
                "It takes effect at your next message after the prompt cache has expired "
                f"(in {waiting.cold_in_seconds} s). With --now: {written}."
            )


async def load_active_compaction(conversation: "Conversation") -> "ActiveCompactionSchema | None":
    from quire.schemas.context import ActiveCompactionSchema

    store = conversation.engine.store
    window = await store.read_window(conversation.id, branch=conversation.branch, max_tokens=0)
    entry = window.compaction
    return ActiveCompactionSchema.model_validate(entry) if entry is not None else None


@command(app, "quire context edit --text 'Only the tides matter now. [#2]'")
def edit(
    target: CommandTarget,
    *,
    new_text: Annotated[
        str | None, typer.Option("--text", help="The new summary. - reads standard input. Default: open $EDITOR.")
    ] = None,
) -> Result:
    """Edit the summary. The old one stays in the log."""

    async def load_summary() -> tuple[str, str]:
        async with open_conversation(target, edits=True) as conversation:
            active = await load_active_compaction(conversation)
            if active is None or active.compaction.covers is None:
                raise InvalidRequest("There is no summary to edit; create one with `quire context compact`.")
            return conversation.id, active.compaction.summary or ""

    async def save_summary(conversation_id: str, summary: str, *, changed: bool) -> Result:
        async with open_conversation(replace(target, conversation=conversation_id)) as conversation:
            entry = await conversation.edit_summary(summary) if changed else None
            return await _describe_compaction(conversation, entry, empty_message="The summary was not changed.")

    # Outside of any event loop: while the user writes, Ctrl-C must reach the editor or end the command.
    conversation_id, old_summary = run_async(load_summary())
    if new_text is None:
        new_summary = edit_in_editor(old_summary).strip()
    else:
        new_summary = (sys.stdin.read() if new_text == "-" else new_text).strip()
    if not new_summary:
        raise InvalidRequest(
            "The new summary is empty, so nothing changed; to drop it, use `quire context compact --clear`."
        )
    return run_async(save_summary(conversation_id, new_summary, changed=new_summary != old_summary.strip()))


async def _clear(target: CommandTarget) -> Result:
    """Archives all messages without a summary. Pinned ones stay, and archived ones can still be recalled."""
    from quire.model import Compaction, Draft, Span
    from quire.view.counted_input import count_summary

    async with open_conversation(target, edits=True) as conversation:
        store, manifest = conversation.engine.store, await conversation.preview()
        branch = await store.get_branch(conversation.id, conversation.branch)
        active, entry = branch.state.active_compaction, None
        if active is not None or any(row.kind == "message" and row.span for row in manifest.decisions):
            rest = sum(
                row.tokens for row in manifest.included if row.reason == "pinned" or row.slot not in CLEARED_SLOTS
            )
            body = Compaction(
                number=branch.state.compaction_count + 1,
                covers=Span(first=1, last=branch.head_seq),
                trigger="manual",
                strategy=manifest.policy.strategy,
                tokens_before=manifest.full_history_tokens,
                tokens_after=min(manifest.full_history_tokens, rest),
                supersedes=active.seq if active is not None else None,
            )
            draft = Draft(body=body, tokens=count_summary(body, conversation.engine.message_counter))
            [entry] = await store.append(conversation.id, draft, branch=conversation.branch)
        return await _describe_compaction(conversation, entry, empty_message="There is nothing to clear.")


def edit_in_editor(text: str) -> str:
    """Lets the user edit the text in `$VISUAL` or `$EDITOR`, which may have options."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or DEFAULT_EDITOR
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.md"
        file.write_text(text, "utf-8")
        try:
            process = subprocess.run([*split_command(editor), str(file)], check=False)  # noqa: S603 (the user's editor)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"Cannot start the editor {editor!r}: {error}. Set $EDITOR, or use --text.") from error
        if process.returncode:
            raise InvalidRequest(f"The editor {editor!r} exited with {process.returncode}; nothing was changed.")
        return file.read_text("utf-8")
