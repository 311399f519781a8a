"""`quire conversation search`: messages by their words, and by meaning where embeddings are set.

What is not in the index yet is put there first, with a progress bar: the log can always say what is missing.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.output import give, moment, one_line, table, text, timestamp
from quire.cli.progress import progress
from quire.cli.running import About, AsJson, Limit, all_conversations, branch_command, conversation_named, group, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Engine
    from quire.engine.searching import MessageFound
    from quire.log import Branch

app = group("")


@branch_command(app, "quire conversation search 'spring tide' --limit 2")
def search(
    target: About,
    query: Annotated[str, typer.Argument(help="What to look for; any words.")],
    *,
    everywhere: Annotated[bool, typer.Option("--all", help="In every conversation, not only in one.")] = False,
    limit: Limit = 10,
    as_json: AsJson = False,
) -> None:
    """Find messages, archived or not, the most relevant first."""
    found = run(_everywhere(target, query, limit) if everywhere else _searched(target, query, limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        place = [(each.entry.conversation,) if everywhere else () for each in found]
        yield table(
            "score", *(["conversation"] if everywhere else []), "entry", "role", "when", "message",
            rows=[
                (score, *where, f"#{each.seq}", each.role, moment(each.at), one_line(each.message.text, 120))
                for where, (each, score) in zip(place, found, strict=True)
            ],
            right=("score", "entry"), wide=("message",),
        ) if found else text("No message bears on this.")  # fmt: skip

    listed = [
        {
            "conversation": each.conversation,
            "branch": each.branch,
            "number": each.seq,
            "role": each.role,
            "at": timestamp(each.at),
            "score": round(score, 4),
            "text": each.message.text,
        }
        for each, score in found
    ]
    give({"query": query, "messages": listed}, draw, as_json=as_json)


async def _searched(target: About, query: str, limit: int) -> "list[MessageFound]":
    from quire.cli.opening import as_options, opened
    from quire.engine.searching import search_conversation

    async with opened(as_options(target.given)) as engine:
        named = await conversation_named(engine.store, target.conversation)
        await _index(engine, [await engine.store.branch(named, target.branch)])
        found = await search_conversation(engine, query, conversation=named, branch=target.branch, limit=limit)
        return found.messages


async def _everywhere(target: About, query: str, limit: int) -> "list[MessageFound]":
    from quire.cli.opening import as_options, opened
    from quire.engine.searching import search_conversations

    async with opened(as_options(target.given)) as engine:
        known = await all_conversations(engine.store)
        await _index(engine, [branch for each in known for branch in await engine.store.branches(each)])
        return (await search_conversations(engine, query, among=known, limit=limit)).messages


async def _index(engine: "Engine", branches: "list[Branch]") -> None:
    """Makes what is missing from the index."""
    with progress("Indexing") as so_far:
        for branch in branches:
            async for done, total in engine.recaller.archives.filling(branch):
                so_far.at(done, total)
