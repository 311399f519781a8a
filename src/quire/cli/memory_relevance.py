"""`quire memory relevance`: the memories that a request would include, with their scores."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import AsJson, CommandTarget, branch_command, create_group, open_conversation, run_async
from quire.cli.output import make_table, make_text, print_result, to_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.log import Memory
    from quire.model import Manifest

app = create_group("")

MAX_LISTED_MEMORIES = 200
"""Memories that the table lists."""


@branch_command(app, "quire memory relevance")
def relevance(
    target: CommandTarget,
    *,
    question: Annotated[
        str | None, typer.Option("--for", metavar="TEXT", help="The question; default: the newest user message.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which memories the next request would include, with their scores."""
    conversation_id, text, rows = run_async(_score_memories(target, question))

    def draw(_: Any) -> "Iterable[RenderableType]":
        if rows is None:
            yield make_text("There is no agent, or its memory is off; set one with `quire config set agent FILE`.")
            return
        yield make_text(f"For: {to_one_line(text, 80) or '(no question yet)'}")
        yield make_table(
            "in", "score", "why", "id", "memory",
            rows=map(_format_row, rows), right_aligned=("score",), wrapped=("memory",),
        ) if rows else make_text("There are no memories yet.")  # fmt: skip

    document = {"conversation": conversation_id, "branch": target.branch, "question": text, "memories": rows or []}
    print_result(document | {"enabled": rows is not None}, draw, as_json=as_json)


def _format_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["included"], row["score"], row["reason"].replace("_", " "), row["id"], to_one_line(row["text"])


async def _score_memories(target: CommandTarget, question: str | None) -> tuple[str, str, list[dict[str, Any]] | None]:
    from quire.engine.context_gatherer import memory_namespace

    async with open_conversation(target) as conversation:
        engine = conversation.engine
        text = question if question is not None else await _load_newest_question(conversation)
        if not (engine.agent.memory.enabled and engine.settings.memory_integration):
            return conversation.id, text, None
        manifest = await conversation.preview(text)
        memories = await engine.store.list_memories(memory_namespace(engine.agent), limit=MAX_LISTED_MEMORIES)
        started_at = (await engine.store.get_conversation(conversation.id)).created_at
        rows = [_build_row(each, manifest, stable=each.created_at <= started_at) for each in memories]
        return conversation.id, text, sorted(rows, key=lambda row: (not row["included"], -(row["score"] or 0)))


async def _load_newest_question(conversation: "Conversation") -> str:
    store = conversation.engine.store
    newest = await store.read_tail(conversation.id, 1, branch=conversation.branch, kinds=["message"], roles=["user"])
    return newest[0].message.text if newest else ""


def _build_row(memory: "Memory", manifest: "Manifest", *, stable: bool) -> dict[str, Any]:
    """Finds the memory's decision: memories older than the conversation share one block in the stable prefix."""
    from quire.context.memory import MEMORIES_BLOCK_NAME

    name, slot = (MEMORIES_BLOCK_NAME, "memory") if stable else (memory.id, "recall")
    row = next((each for each in manifest.decisions if each.name == name and each.slot == slot), None)
    return {
        "id": memory.id,
        "text": memory.text,
        "included": row is not None and row.included,
        "reason": row.reason if row is not None else "not_selected",
        "score": row.score if row is not None else None,
    }
