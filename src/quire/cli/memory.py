"""`quire memory`: imports, searches, lists and retires an agent's memories.

Memories are stored in the agent's namespace; without an agent in `default`, which no request reads.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import memory_relevance
from quire.cli.common import (
    AsJson,
    CommandTarget,
    Limit,
    SetOptions,
    command,
    complete_agent_names,
    create_group,
    make_target,
    open_store,
    run_async,
)
from quire.cli.output import (
    format_local_time,
    make_table,
    make_text,
    pluralize,
    print_note,
    print_result,
    show_progress,
    to_one_line,
)
from quire.cli.paths import find_agent_file
from quire.errors import DocumentNotFound, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Memory, SearchHit

app = create_group("Manage an agent's memories.")
app.add_typer(memory_relevance.app)

DEFAULT_NAMESPACE = "default"
"""Namespace of memories without an agent."""
MAX_IMPORT_BYTES = 200_000
"""Maximum size of an imported file: some hundred statements."""
MAX_COMPARED_MEMORIES = 5_000
"""Existing memories that an import is deduplicated against."""

_HEADING = re.compile(r"(#{1,6})\s+(.+)$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$")
_FENCE = re.compile(r"\s*(```|~~~)")

MemoryAgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="An agent's name or file, or a namespace; default: the agent in the settings.",
        show_default=False,
        autocompletion=complete_agent_names,
    ),
]


def _dump_memory(memory: "Memory") -> dict[str, Any]:
    from quire.schemas.records import MemorySchema

    return MemorySchema.from_record(memory).model_dump(mode="json")


def _format_source(memory: "Memory") -> str:
    """Formats the source or the cited message; the end of a conversation's id distinguishes it."""
    if memory.citation is None:
        return memory.source or ""
    return f"#{memory.citation.seq} of …{memory.citation.conversation[-6:]}"


@command(app, "quire memory import @preferences.md", name="import")
def import_(
    path: Annotated[str, typer.Argument(metavar="@PATH", help="A text or Markdown file; the @ is optional.")],
    *,
    agent: MemoryAgentOption = None,
    replace: Annotated[bool, typer.Option(help="Retire memories from this file that are no longer in it.")] = False,
    preview: Annotated[bool, typer.Option(help="Print what would be imported without importing.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Import a file's statements as memories: one for each list item and paragraph, prefixed by its heading."""
    source = path.removeprefix("@")
    statements = split_statements(_read_file(Path(source).expanduser()))
    if not statements:
        raise InvalidRequest(f"{source} has no statement to import: write list items or paragraphs.")
    target = make_target(overrides=overrides)
    namespace = resolve_namespace(agent, target)
    added, known, retired = run_async(
        _import_statements(target, namespace, source, statements, replace=replace, preview=preview)
    )

    def draw(_: Any) -> "Iterable[RenderableType]":
        verb = "Would import" if preview else "Imported"
        yield make_text(
            f"{verb} {pluralize(len(added), 'statement')} of {source} for {namespace}; {known:,} known already."
        )
        if retired:
            yield make_text(f"{'Would retire' if preview else 'Retired'} {pluralize(len(retired), 'memory')}.")
        if added:
            yield make_table("statement", rows=[(to_one_line(each),) for each in added], wrapped=("statement",))

    document = {"namespace": namespace, "source": source, "added": added, "known": known, "retired": retired}
    print_result(document | {"preview": preview}, draw, as_json=as_json)
    if namespace == DEFAULT_NAMESPACE and agent is None:
        print_note(
            "No agent is set, so no request will include these: use --agent, or run `quire config set agent FILE`."
        )


def _read_file(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_IMPORT_BYTES:
            raise InvalidRequest(
                f"{path} is larger than {MAX_IMPORT_BYTES:,} bytes; split it, or link to it as a reference."
            )
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise DocumentNotFound(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as text: {error}.") from error


async def _import_statements(
    target: CommandTarget, namespace: str, source: str, statements: Sequence[str], *, replace: bool, preview: bool
) -> tuple[list[str], int, list[str]]:
    """Returns the texts that were added, the number of known ones, and the ids of retired memories."""
    from quire.context.memory import validate_new_memory

    async with open_store(target) as store:
        existing = await store.list_memories(namespace, limit=MAX_COMPARED_MEMORIES)
        texts = [memory.text for memory in existing]
        added: list[str] = []
        with show_progress("Importing") as progress:
            for done, statement in enumerate(statements, start=1):
                try:
                    text = validate_new_memory(statement, existing=[*texts, *added])
                except InvalidRequest:
                    continue
                if not preview:
                    await store.add_memory(namespace, text, source=source)
                added.append(text)
                progress.update(done, len(statements))
        stale = [memory for memory in existing if memory.source == source and memory.text not in statements]
        retired = [memory.id for memory in stale] if replace else []
        for memory_id in retired if not preview else ():
            await store.retire_memory(memory_id)
        return added, len(statements) - len(added), retired


@command(app, "quire memory search 'spring tide'")
def search(
    query: Annotated[str, typer.Argument(help="The search words.")],
    *,
    agent: MemoryAgentOption = None,
    limit: Limit = 10,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Search memories by words, and by vectors where embeddings are configured."""
    target = make_target(overrides=overrides)
    namespace = resolve_namespace(agent, target)
    hits = run_async(_search_memories(target, namespace, query, limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "score", "id", "memory", "from",
            rows=[(hit.score, memory.id, to_one_line(memory.text), _format_source(memory)) for hit, memory in hits],
            right_aligned=("score",), wrapped=("memory", "from"),
        ) if hits else make_text(f"No memory of {namespace} matches.")  # fmt: skip

    rows = [_dump_memory(memory) | {"score": hit.score} for hit, memory in hits]
    print_result({"namespace": namespace, "query": query, "memories": rows}, draw, as_json=as_json)


async def _search_memories(
    target: CommandTarget, namespace: str, query: str, limit: int
) -> "list[tuple[SearchHit, Memory]]":
    from quire.cli.engine_setup import build_embedder, load_cli_settings, to_overrides
    from quire.engine.embeddings import embed_query
    from quire.log import memory_scope

    embedder = await build_embedder(load_cli_settings(to_overrides(target.overrides)).settings)
    async with open_store(target) as store:
        query_vector = await embed_query(query, embedder)
        hits = await store.search(query, scopes=[memory_scope(namespace)], limit=limit, **query_vector)
        return [(hit, await store.get_memory(hit.key)) for hit in hits]


@command(app, "quire memory list", name="list")
def list_(
    *,
    agent: MemoryAgentOption = None,
    retired: Annotated[bool, typer.Option(help="Include retired memories.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """List an agent's memories, the newest first."""
    target = make_target(overrides=overrides)
    namespace = resolve_namespace(agent, target)
    memories = run_async(_load_memories(target, namespace, limit=limit, retired=retired))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "id", "memory", "from", "created", *(["retired"] if retired else []),
            rows=[_format_row(each)[: 5 if retired else 4] for each in memories],
            wrapped=("memory", "from"),
        ) if memories else make_text(f"{namespace} has no memories.")  # fmt: skip

    document = {"namespace": namespace, "memories": [_dump_memory(each) for each in memories]}
    print_result(document, draw, as_json=as_json)


def _format_row(memory: "Memory") -> tuple[str, ...]:
    times = format_local_time(memory.created_at), format_local_time(memory.retired_at)
    return memory.id, to_one_line(memory.text), _format_source(memory), *times


async def _load_memories(target: CommandTarget, namespace: str, *, limit: int, retired: bool) -> "list[Memory]":
    async with open_store(target) as store:
        return await store.list_memories(namespace, limit=limit, include_retired=retired)


@command(app, "quire memory retire 01ke6p4ym00000000000000001")
def retire(
    memory: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of memories, as `list` prints them.")],
    *,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Retire memories: requests no longer include them. They stay in the store."""
    retired = run_async(_retire_memories(make_target(overrides=overrides), memory))
    lines = [make_text(f"Retired {each.id}: {to_one_line(each.text, 60)}") for each in retired]
    print_result({"memories": [_dump_memory(each) for each in retired]}, lambda _: lines, as_json=as_json)


async def _retire_memories(target: CommandTarget, ids: Sequence[str]) -> "list[Memory]":
    async with open_store(target) as store:
        for each in ids:  # Retire all or none: a missing id fails here.
            await store.get_memory(each)
        return [await store.retire_memory(each) for each in ids]


def split_statements(text: str) -> list[str]:
    """Splits Markdown into statements, in order and deduplicated."""
    return list(dict.fromkeys(_iterate_statements(_strip_front_matter(text.replace("\r\n", "\n")))))


def _strip_front_matter(text: str) -> str:
    if not text.startswith("---\n"):
        return text
    _, closed, rest = text[4:].partition("\n---\n")
    return rest if closed else text


def _iterate_statements(text: str) -> Iterator[str]:
    heading, lines, fence = "", list[str](), ""

    def flush() -> Iterator[str]:
        statement = " ".join(" ".join(lines).split())
        lines.clear()
        if statement:
            yield f"{heading}: {statement}" if heading else statement

    for line in [*text.split("\n"), ""]:
        fence_match = _FENCE.match(line)
        if fence or fence_match:
            yield from flush()
            fence = _update_fence(fence, fence_match)
        elif match := _HEADING.match(line):
            yield from flush()
            heading = match[2].rstrip().rstrip("#").rstrip() if len(match[1]) > 1 else ""
        elif match := _ITEM.match(line):
            yield from flush()
            lines.append(match[1])
        elif not line.strip() or line.lstrip().startswith("|"):
            yield from flush()
        else:
            lines.append(line)


def _update_fence(fence: str, mark: "re.Match[str] | None") -> str:
    if mark is None:
        return fence
    if not fence:
        return mark[1]
    return "" if mark[1] == fence else fence


def resolve_namespace(agent: str | None, target: CommandTarget) -> str:
    """Returns the namespace of the agent with this name or file; a name without an agent is itself a namespace."""
    from quire.cli.engine_setup import load_cli_settings, to_overrides
    from quire.context.agent_loader import load_agent

    name = agent or load_cli_settings(to_overrides(target.overrides)).settings.agent
    if name is None:
        return DEFAULT_NAMESPACE
    try:
        loaded = load_agent(find_agent_file(name))
    except DocumentNotFound:
        if agent is None or name.endswith(".toml"):
            raise
        return name
    return loaded.memory.namespace or loaded.name
