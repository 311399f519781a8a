"""`quire context`, the commands that change the view: compact, undo, edit, clear.

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

from quire.cli.common import AsJson, CommandTarget, branch_command, create_group, open_conversation, run_async
from quire.cli.output import (
    format_compaction,
    make_field_table,
    make_text,
    pluralize,
    print_note,
    print_result,
    show_spinner,
)
from quire.cli.platforms import IS_WINDOWS, split_command
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.log import Branch
    from quire.model import Compaction, Entry
    from quire.model.context_events import ContextEvent
    from quire.schemas.context import ActiveCompactionSchema, CompactionPlanSchema

app = create_group("")

CLEARED_SLOTS = ("messages", "summary")
"""Slots that `clear` empties."""
DEFAULT_EDITOR = "notepad" if IS_WINDOWS else "vi"
UNDO_HINT = "Nothing is deleted; undo it with `quire context undo`."


@branch_command(app, "quire context compact")
def compact(
    target: CommandTarget,
    *,
    keep: Annotated[str | None, typer.Option(metavar="TEXT", help="What the summary must preserve.")] = None,
    preview: Annotated[bool, typer.Option(help="Print the plan without compacting.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compact now, even below the threshold: archive older messages and replace them by a summary."""
    if preview:
        conversation_id, plan = run_async(_load_plan(target))
        document = {
            "conversation": conversation_id,
            "branch": target.branch,
            "plan": plan.model_dump(mode="json") if plan is not None else None,
        }
        print_result(document, lambda _: _render_plan(plan), as_json=as_json)
        return
    conversation_id, entry = run_async(_run_compaction(target, keep))
    _print_compaction(
        conversation_id, target.branch, entry, as_json=as_json, empty_message="There is nothing to compact."
    )


async def _load_plan(target: CommandTarget) -> "tuple[str, CompactionPlanSchema | None]":
    from quire.schemas.context import CompactionPlanSchema

    async with open_conversation(target) as conversation:
        return conversation.id, CompactionPlanSchema.from_plan(await conversation.plan_compaction())


def _render_plan(plan: "CompactionPlanSchema | None") -> "Iterable[RenderableType]":
    if plan is None:
        yield make_text("There is nothing to compact.")
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


async def _run_compaction(target: CommandTarget, instructions: str | None) -> "tuple[str, Entry | None]":
    async with open_conversation(target) as conversation:
        conversation.engine.subscribe(_print_failure)
        with show_spinner("Compacting"):
            return conversation.id, await conversation.compact(instructions=instructions)


def _print_failure(event: "ContextEvent") -> None:
    from quire.model.context_events import CompactionFailed

    if isinstance(event, CompactionFailed):
        print_note(f"quire: {event.detail} Using an extractive summary instead.")


def _print_compaction(
    conversation_id: str, branch: int, entry: "Entry | None", *, as_json: bool, empty_message: str
) -> None:
    """Prints the entry of a compaction and what it did, or `empty_message` if there is none."""
    from quire.model import Compaction
    from quire.schemas.entries import entry_to_schema

    body = entry.body if entry is not None else None
    line = f"{format_compaction(body)}. {UNDO_HINT}" if isinstance(body, Compaction) else empty_message
    document = {
        "conversation": conversation_id,
        "branch": branch,
        "entry": entry_to_schema(entry).model_dump(mode="json") if entry is not None else None,
    }
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


@branch_command(app, "quire context undo")
def undo(
    target: CommandTarget,
    *,
    as_json: AsJson = False,
) -> None:
    """Undo the newest compaction, summary edit or clear: the model sees what it saw before."""
    conversation_id, undone, active = run_async(_undo_compaction(target))
    line = f"Undid the compaction in entry #{undone}. "
    line += (
        f"Compaction {active.compaction.number} is active again."
        if active is not None
        else "The model sees every message again."
    )
    document = {
        "conversation": conversation_id,
        "branch": target.branch,
        "undone": undone,
        "active": active.model_dump(mode="json") if active is not None else None,
    }
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


async def _undo_compaction(target: CommandTarget) -> "tuple[str, int, ActiveCompactionSchema | None]":
    from quire.model import Restore

    async with open_conversation(target) as conversation:
        body = (await conversation.undo_compaction()).body
        undone = body.compaction if isinstance(body, Restore) else 0
        return conversation.id, undone, await load_active_compaction(conversation)


async def load_active_compaction(conversation: "Conversation") -> "ActiveCompactionSchema | None":
    from quire.schemas.context import ActiveCompactionSchema

    store = conversation.engine.store
    window = await store.read_window(conversation.id, branch=conversation.branch, max_tokens=0)
    return ActiveCompactionSchema.from_entry(window.compaction)


@branch_command(app, "quire context edit --text 'Only the tides matter now. [#2]'")
def edit(
    target: CommandTarget,
    *,
    new_text: Annotated[
        str | None, typer.Option("--text", help="The new summary; - reads standard input. Default: open $EDITOR.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Edit the summary; the old one stays in the log."""
    # Outside of any event loop: while the user writes, Ctrl-C must reach the editor or end the command.
    conversation_id, old_summary = run_async(_load_summary(target))
    new_summary = _read_new_summary(old_summary, new_text).strip()
    if not new_summary:
        raise InvalidRequest("The new summary is empty, so nothing changed; to drop it, use `quire context clear`.")
    exact = replace(target, conversation=conversation_id)
    entry = run_async(_save_summary(exact, new_summary)) if new_summary != old_summary.strip() else None
    _print_compaction(
        conversation_id, target.branch, entry, as_json=as_json, empty_message="The summary was not changed."
    )


async def _load_summary(target: CommandTarget) -> tuple[str, str]:
    async with open_conversation(target) as conversation:
        active = await load_active_compaction(conversation)
        if active is None or active.compaction.covers is None:
            raise InvalidRequest("There is no summary to edit; create one with `quire context compact`.")
        return conversation.id, active.compaction.summary or ""


async def _save_summary(target: CommandTarget, summary: str) -> "Entry":
    async with open_conversation(target) as conversation:
        return await conversation.edit_summary(summary)


def _read_new_summary(current_summary: str, new_text: str | None) -> str:
    if new_text == "-":
        return sys.stdin.read()
    if new_text is not None:
        return new_text
    return edit_in_editor(current_summary)


@branch_command(app, "quire context clear")
def clear(
    target: CommandTarget,
    *,
    as_json: AsJson = False,
) -> None:
    """Clear the view: archive all messages without a summary. Nothing is deleted; undo restores it.

    Pinned messages stay, and archived messages can still be recalled.
    """
    conversation_id, entry = run_async(_clear_view(target))
    _print_compaction(
        conversation_id, target.branch, entry, as_json=as_json, empty_message="There is nothing to clear."
    )


async def _clear_view(target: CommandTarget) -> "tuple[str, Entry | None]":
    from quire.model import Draft
    from quire.view.counted_input import count_summary

    async with open_conversation(target) as conversation:
        store, manifest = conversation.engine.store, await conversation.preview()
        branch = await store.get_branch(conversation.id, conversation.branch)
        if branch.state.active_compaction is None and not any(
            row.kind == "message" and row.span for row in manifest.decisions
        ):
            return conversation.id, None
        rest = sum(row.tokens for row in manifest.included if row.reason == "pinned" or row.slot not in CLEARED_SLOTS)
        before, strategy = manifest.full_history_tokens, manifest.policy.strategy
        body = _build_clearing_compaction(branch, before=before, after=min(before, rest), strategy=strategy)
        draft = Draft(body=body, tokens=count_summary(body, conversation.engine.message_counter))
        [entry] = await store.append(conversation.id, draft, branch=conversation.branch)
        return conversation.id, entry


def _build_clearing_compaction(branch: "Branch", *, before: int, after: int, strategy: str) -> "Compaction":
    """Builds a compaction that covers every entry and has no summary."""
    from quire.model import Compaction, Span

    state = branch.state
    return Compaction(
        number=state.compaction_count + 1,
        covers=Span(first=1, last=branch.head_seq),
        trigger="manual",
        strategy=strategy,
        tokens_before=before,
        tokens_after=after,
        supersedes=state.active_compaction.seq if state.active_compaction is not None else None,
    )


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
