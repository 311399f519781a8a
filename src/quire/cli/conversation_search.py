"""`quire conversation search`: full-text search over messages, and vector search where embeddings are configured.

Messages that are not in the index yet are indexed first, with a progress bar.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import (
    AsJson,
    CommandTarget,
    Limit,
    branch_command,
    create_group,
    list_conversation_ids,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import (
    format_local_time,
    make_table,
    make_text,
    print_result,
    show_progress,
    to_one_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Engine
    from quire.engine.search import ScoredEntry
    from quire.log import Branch
    from quire.model import Entry

app = create_group("")


@branch_command(app, "quire conversation search 'spring tide' --limit 2")
def search(
    target: CommandTarget,
    query: Annotated[str, typer.Argument(help="The search words.")],
    *,
    all_conversations: Annotated[bool, typer.Option("--all", help="Search every conversation.")] = False,
    limit: Limit = 10,
    as_json: AsJson = False,
) -> None:
    """Search messages, archived or not, the most relevant first."""
    from quire.schemas.entries import MessageHitSchema

    hits = run_async(
        _search_all_conversations(target, query, limit)
        if all_conversations
        else _search_conversation(target, query, limit)
    )

    def draw(_: Any) -> "Iterable[RenderableType]":
        columns = ("score", "conversation", "entry", "role", "when", "message")
        yield make_table(
            *(name for name in columns if all_conversations or name != "conversation"),
            rows=[_format_hit(each, score, with_conversation=all_conversations) for each, score in hits],
            right_aligned=("score", "entry"), wrapped=("message",),
        ) if hits else make_text("No message matches.")  # fmt: skip

    rows = [MessageHitSchema.from_entry(each, score=score).model_dump(mode="json") for each, score in hits]
    print_result({"query": query, "messages": rows}, draw, as_json=as_json)


def _format_hit(entry: "Entry", score: float, *, with_conversation: bool) -> tuple[Any, ...]:
    conversation = (entry.conversation,) if with_conversation else ()
    text = to_one_line(entry.message.text, 120)
    return (score, *conversation, f"#{entry.seq}", entry.role, format_local_time(entry.created_at), text)


async def _search_conversation(target: CommandTarget, query: str, limit: int) -> "list[ScoredEntry]":
    from quire.cli.engine_setup import open_engine_from_settings, to_overrides
    from quire.engine.search import search_conversation

    async with open_engine_from_settings(to_overrides(target.overrides)) as engine:
        conversation_id = await resolve_conversation_id(engine.store, target.conversation)
        branch = await engine.store.get_branch(conversation_id, target.branch)
        await _index_missing(engine, [branch])
        results = await search_conversation(
            engine, query, conversation=conversation_id, branch=branch.number, limit=limit
        )
        return results.messages


async def _search_all_conversations(target: CommandTarget, query: str, limit: int) -> "list[ScoredEntry]":
    from quire.cli.engine_setup import open_engine_from_settings, to_overrides
    from quire.engine.search import search_conversations

    async with open_engine_from_settings(to_overrides(target.overrides)) as engine:
        ids = await list_conversation_ids(engine.store)
        await _index_missing(engine, [branch for each in ids for branch in await engine.store.list_branches(each)])
        return (await search_conversations(engine, query, conversations=ids, limit=limit)).messages


async def _index_missing(engine: "Engine", branches: "list[Branch]") -> None:
    """Indexes the messages that are missing from the index."""
    with show_progress("Indexing") as progress:
        for branch in branches:
            async for done, total in engine.recall.index_cache.iter_update(branch):
                progress.update(done, total)
