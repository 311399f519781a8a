"""`quire memory relevance`: which memories a request would bring in, and with which score."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.output import give, one_line, table, text
from quire.cli.running import About, AsJson, branch_command, group, opened_conversation, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.log import Memory
    from quire.model import Manifest

app = group("")

SHOWN = 200


@branch_command(app, "quire memory relevance")
def relevance(
    target: About,
    *,
    question: Annotated[
        str | None, typer.Option("--for", metavar="TEXT", help="The question; else the newest that the user asked.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which memories the next request would bring in, with their scores."""
    named, asked, found = run(_relevance(target, question))

    def draw(_: Any) -> "Iterable[RenderableType]":
        if found is None:
            yield text("This agent keeps no memories, or there is no agent: `quire config set agent FILE` names one.")
            return
        yield text(f"For: {one_line(asked, 80) or '(nothing is asked yet)'}")
        yield table(
            "in", "score", "why", "id", "memory",
            rows=[
                (each["included"], each["score"], each["reason"].replace("_", " "), each["id"], one_line(each["text"]))
                for each in found
            ],
            right=("score",), wide=("memory",),
        ) if found else text("It remembers nothing yet.")  # fmt: skip

    document = {"conversation": named, "branch": target.branch, "question": asked, "memories": found or []}
    give(document | {"enabled": found is not None}, draw, as_json=as_json)


async def _relevance(target: About, question: str | None) -> tuple[str, str, list[dict[str, Any]] | None]:
    from quire.engine.surroundings import memory_shelf

    async with opened_conversation(target) as conversation:
        engine = conversation.engine
        asked = question if question is not None else await _newest_question(conversation)
        if not (engine.agent.memory.enabled and engine.settings.memory_integration):
            return conversation.id, asked, None
        manifest = await conversation.preview(asked)
        known = await engine.store.memories(memory_shelf(engine.agent), limit=SHOWN)
        began = (await engine.store.conversation(conversation.id)).created_at
        listed = [_row(each, manifest, lasting=each.created_at <= began) for each in known]
        return conversation.id, asked, sorted(listed, key=lambda row: (not row["included"], -(row["score"] or 0)))


async def _newest_question(conversation: "Conversation") -> str:
    store = conversation.engine.store
    said = await store.tail(conversation.id, 1, branch=conversation.branch, kinds=["message"], roles=["user"])
    return said[0].message.text if said else ""


def _row(memory: "Memory", manifest: "Manifest", *, lasting: bool) -> dict[str, Any]:
    """A memory that was there when the conversation began stands in the stable part, with all others of the kind."""
    from quire.context.memory import ENTRIES

    name, slot = (ENTRIES, "memory") if lasting else (memory.id, "recall")
    row = next((each for each in manifest.decisions if each.name == name and each.slot == slot), None)
    return {
        "id": memory.id,
        "text": memory.text,
        "included": row is not None and row.included,
        "reason": row.reason if row is not None else "not_called_for",
        "score": row.score if row is not None else None,
    }
