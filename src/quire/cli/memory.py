"""`quire memory`: what an agent remembers, from files and from conversations.

Memories are kept under the agent's shelf; without an agent, under `default`, where no request looks.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import memory_relevance
from quire.cli.completing import agent_names
from quire.cli.output import counted, give, moment, note, one_line, table, text, timestamp
from quire.cli.progress import progress
from quire.cli.running import About, AsJson, Given, Limit, about, command, group, opened_store, run
from quire.cli.shelves import DEFAULT_SHELF, shelf_named
from quire.errors import DocumentNotFound, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Hit, Memory, SqlStore

app = group("Look after what an agent remembers.")
app.add_typer(memory_relevance.app)

LARGEST = 200_000
"""Bytes of a file whose statements are imported: some hundred of them."""
KNOWN = 5_000
"""Memories that are compared, so that none is kept twice."""

AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="Whose memories: an agent by name or file, or the name of a shelf; else the agent in the settings.",
        show_default=False,
        autocompletion=agent_names,
    ),
]


def memory_document(memory: "Memory") -> dict[str, Any]:
    cites = memory.cites
    return {
        "id": memory.id,
        "text": memory.text,
        "source": memory.source,
        "cites": None
        if cites is None
        else {"conversation": cites.conversation, "branch": cites.branch, "number": cites.seq},
        "created_at": timestamp(memory.created_at),
        "retired_at": timestamp(memory.retired_at),
        "replaced_by": memory.replaced_by,
    }


def _from(memory: "Memory") -> str:
    """Its source, or the message that it cites; of a long id, the end tells conversations apart."""
    if memory.cites is None:
        return memory.source or ""
    return f"#{memory.cites.seq} of …{memory.cites.conversation[-6:]}"


@command(app, "quire memory import @preferences.md", name="import")
def import_(
    path: Annotated[str, typer.Argument(metavar="@PATH", help="A text or Markdown file; the @ may be left out.")],
    *,
    agent: AgentName = None,
    replace: Annotated[
        bool, typer.Option(help="Retire what came from this file before and is no longer in it.")
    ] = False,
    preview: Annotated[bool, typer.Option(help="Say what would be remembered, and do nothing.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Remember a file's statements, each by itself: its list items and paragraphs, under their headings."""
    from quire.cli.statements import statements

    source = path.removeprefix("@")
    wanted = statements(_read(Path(source).expanduser()))
    if not wanted:
        raise InvalidRequest(f"{source} has no statement to remember: write list items or paragraphs.")
    target = about(given=given)
    shelf = shelf_named(agent, target, os.environ)
    added, known, retired = run(_imported(target, shelf, source, wanted, replace=replace, preview=preview))

    def draw(_: Any) -> "Iterable[RenderableType]":
        verb = "Would remember" if preview else "Remembered"
        yield text(f"{verb} {counted(len(added), 'statement')} of {source} for {shelf}; {known:,} known already.")
        if retired:
            yield text(f"{'Would retire' if preview else 'Retired'} {counted(len(retired), 'memory')}.")
        if added:
            yield table("statement", rows=[(one_line(each),) for each in added], wide=("statement",))

    document = {"shelf": shelf, "source": source, "added": added, "known": known, "retired": retired}
    give(document | {"preview": preview}, draw, as_json=as_json)
    if shelf == DEFAULT_SHELF and agent is None:
        note("No agent is set, so no request brings these in: name one with --agent, or `quire config set agent FILE`.")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise InvalidRequest(f"{path} is larger than {LARGEST:,} bytes; split it, or link to it as a reference.")
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise DocumentNotFound(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as text: {error}.") from error


async def _imported(
    target: About, shelf: str, source: str, wanted: Sequence[str], *, replace: bool, preview: bool
) -> tuple[list[str], int, list[str]]:
    """What was added, how much was known, and the ids of what was retired."""
    from quire.context.memory import check_new

    async with opened_store(target) as store:
        there = await store.memories(shelf, limit=KNOWN)
        texts = [memory.text for memory in there]
        added: list[str] = []
        with progress("Remembering") as so_far:
            for done, statement in enumerate(wanted, start=1):
                try:
                    kept = check_new(statement, known=[*texts, *added], recalled=())
                except InvalidRequest:
                    continue
                if not preview:
                    await store.remember(shelf, kept, source=source)
                added.append(kept)
                so_far.at(done, len(wanted))
        gone = [each.id for each in there if each.source == source and each.text not in wanted] if replace else []
        for memory in gone if not preview else ():
            await store.retire(memory)
        return added, len(wanted) - len(added), gone


@command(app, "quire memory search 'spring tide'")
def search(
    query: Annotated[str, typer.Argument(help="What to look for; any words.")],
    *,
    agent: AgentName = None,
    limit: Limit = 10,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Find memories by their words, and by meaning where embeddings are set."""
    target = about(given=given)
    shelf = shelf_named(agent, target, os.environ)
    found = run(_searched(target, shelf, query, limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "score", "id", "memory", "from",
            rows=[(hit.score, memory.id, one_line(memory.text), _from(memory)) for hit, memory in found],
            right=("score",), wide=("memory", "from"),
        ) if found else text(f"{shelf} remembers nothing like it.")  # fmt: skip

    listed = [memory_document(memory) | {"score": round(hit.score, 4)} for hit, memory in found]
    give({"shelf": shelf, "query": query, "memories": listed}, draw, as_json=as_json)


async def _searched(target: About, shelf: str, query: str, limit: int) -> "list[tuple[Hit, Memory]]":
    from quire.cli.opening import as_options, embedder_from, settings_from
    from quire.engine.meaning import meaning_of
    from quire.log import memory_scope

    embedder = await embedder_from(settings_from(as_options(target.given)).settings)
    async with opened_store(target) as store:
        meaning = await meaning_of(query, embedder)
        hits = await store.search(query, scopes=[memory_scope(shelf)], limit=limit, **meaning)
        return [(hit, await store.memory(hit.key)) for hit in hits]


@command(app, "quire memory list", name="list")
def list_(
    *,
    agent: AgentName = None,
    retired: Annotated[bool, typer.Option(help="Those that are out of use as well.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """List what an agent remembers, the newest first."""
    target = about(given=given)
    shelf = shelf_named(agent, target, os.environ)
    found = run(_listed(target, shelf, limit=limit, retired=retired))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "id", "memory", "from", "since", *(["retired"] if retired else []),
            rows=[_row(each)[: 5 if retired else 4] for each in found],
            wide=("memory", "from"),
        ) if found else text(f"{shelf} remembers nothing.")  # fmt: skip

    give({"shelf": shelf, "memories": [memory_document(each) for each in found]}, draw, as_json=as_json)


def _row(memory: "Memory") -> tuple[str, ...]:
    times = moment(memory.created_at), moment(memory.retired_at)
    return memory.id, one_line(memory.text), _from(memory), *times


async def _listed(target: About, shelf: str, *, limit: int, retired: bool) -> "list[Memory]":
    async with opened_store(target) as store:
        return await store.memories(shelf, limit=limit, retired=retired)


@command(app, "quire memory retire 01ke6p4ym00000000000000001")
def retire(
    memory: Annotated[list[str], typer.Argument(metavar="ID...", help="Memories by their ids, as `list` shows them.")],
    *,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Take memories out of use: no request brings them in any more. They stay on record."""
    gone = run(_retired(about(given=given), memory))
    said = [text(f"Retired {each.id}: {one_line(each.text, 60)}") for each in gone]
    give({"memories": [memory_document(each) for each in gone]}, lambda _: said, as_json=as_json)


async def _retired(target: About, ids: Sequence[str]) -> "list[Memory]":
    async with opened_store(target) as store:
        for each in ids:  # All are there, or none is retired.
            await store.memory(each)
        return [await _retire(store, each) for each in ids]


async def _retire(store: "SqlStore", id: str) -> "Memory":
    return await store.retire(id)
