"""`quire memory`: imports, searches, lists and retires an agent's memories, and shows which ones a request includes.

Memories are stored in the agent's namespace; without an agent in `default`, which no request reads.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import (
    CommandTarget,
    SetOptions,
    command,
    complete_agent_names,
    create_group,
    open_conversation,
    open_store,
)
from quire.cli.output import (
    Result,
    format_local_time,
    make_table,
    make_text,
    pluralize,
    print_note,
    show_progress,
    to_one_line,
)
from quire.cli.paths import find_agent_file
from quire.errors import DocumentNotFound, InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.schemas.records import MemorySchema

app = create_group("Manage an agent's memories.")

DEFAULT_NAMESPACE = "default"
"""Namespace of memories without an agent."""
MAX_IMPORT_BYTES = 200_000
"""Maximum size of an imported file: some hundred statements."""
MAX_COMPARED_MEMORIES = 5_000
"""Existing memories that an import is deduplicated against."""

MAX_FOUND_MEMORIES = 50
MAX_LISTED_MEMORIES = 200

_HEADING = re.compile(r"(#{1,6})\s+(.+)$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$")
_FENCE = re.compile(r"\s*(```|~~~)")

MemoryAgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="An agent's name or file, or a namespace. Default: the agent in the settings.",
        show_default=False,
        autocompletion=complete_agent_names,
    ),
]


def _format_source(memory: "MemorySchema") -> str:
    """Formats the source or the cited message; the end of a conversation's id distinguishes it."""
    if memory.citation is None:
        return memory.source or ""
    return f"#{memory.citation.seq} of …{memory.citation.conversation[-6:]}"


@command(app, "quire memory import @preferences.md", name="import")
async def import_(
    path: Annotated[str, typer.Argument(metavar="@PATH", help="A text or Markdown file. The @ is optional.")],
    *,
    agent: MemoryAgentOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Retire memories that are no longer in the file.")] = False,
    overrides: SetOptions = None,
) -> Result:
    """Import a file's statements as memories: one for each list item and paragraph, prefixed by its heading."""
    from quire.context.memory import validate_new_memory

    source = path.removeprefix("@")
    statements = split_statements(_read_file(source))
    if not statements:
        raise InvalidRequest(f"{source} has no statement to import: write list items or paragraphs.")
    namespace = resolve_namespace(agent, overrides)
    added: list[str] = []
    async with open_store(overrides) as store:
        existing = await store.memories.list(namespace, limit=MAX_COMPARED_MEMORIES)
        texts = [memory.text for memory in existing]
        with show_progress("Importing") as progress:
            for done, statement in enumerate(statements, start=1):
                try:
                    text = validate_new_memory(statement, existing=[*texts, *added])
                except InvalidRequest:
                    continue
                await store.memories.add(namespace, text, source=source)
                added.append(text)
                progress.update(done, len(statements))
        stale = [memory for memory in existing if memory.source == source and memory.text not in statements]
        retired = [memory.id for memory in stale] if replace else []
        for memory_id in retired:
            await store.memories.retire(memory_id)
    known = len(statements) - len(added)
    document = {
        "namespace": namespace,
        "source": source,
        "added": added,
        "known": known,
        "retired": retired,
    }

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_text(
            f"Imported {pluralize(len(added), 'statement')} of {source} for {namespace}; {known:,} known already."
        )
        if retired:
            yield make_text(f"Retired {pluralize(len(retired), 'memory')}.")
        if added:
            yield make_table("statement", rows=[(to_one_line(each),) for each in added], wrapped=("statement",))

    if namespace == DEFAULT_NAMESPACE and agent is None:
        print_note(
            "No agent is set, so no request will include these: use --agent, or run `quire config set agent FILE`."
        )
    return Result(document, draw)


def _read_file(source: str) -> str:
    path = Path(source).expanduser()
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


@command(app, "quire memory search 'spring tide'")
async def search(
    query: Annotated[
        str | None,
        typer.Argument(help="The search words. Default: all, the newest first.", show_default=False),
    ] = None,
    *,
    agent: MemoryAgentOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Search an agent's memories by words, and by vectors where embeddings are configured; or list them."""
    from quire.cli.engine_setup import build_embedder, load_cli_settings
    from quire.engine.embeddings import search_passages
    from quire.index.types import memory_scope
    from quire.schemas.records import FoundMemorySchema, MemorySchema

    namespace = resolve_namespace(agent, overrides)
    if query is None:
        return await _list_memories(namespace, overrides)
    embedder = await build_embedder(load_cli_settings(overrides).settings)
    async with open_store(overrides) as store:
        hits = await search_passages(store, embedder, query, scope=memory_scope(namespace), limit=MAX_FOUND_MEMORIES)
        found = [
            FoundMemorySchema(**dict(MemorySchema.model_validate(await store.memories.get(hit.key))), score=hit.score)
            for hit in hits
        ]

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_table(
            "score", "id", "memory", "from",
            rows=[(each.score, each.id, to_one_line(each.text), _format_source(each)) for each in found],
            right_aligned=("score",), wrapped=("memory", "from"),
        ) if found else make_text(f"No memory of {namespace} matches.")  # fmt: skip

    return Result({"namespace": namespace, "query": query, "memories": found}, draw)


async def _list_memories(namespace: str, overrides: Sequence[str] | None) -> Result:
    from quire.schemas.records import MemorySchema

    async with open_store(overrides) as store:
        records = await store.memories.list(namespace, limit=MAX_LISTED_MEMORIES)
    memories = [MemorySchema.model_validate(each) for each in records]

    def draw(_: "Console") -> "Iterable[RenderableType]":
        columns = ("id", "memory", "from", "created")
        rows = [
            (each.id, to_one_line(each.text), _format_source(each), format_local_time(each.created_at))
            for each in memories
        ]
        yield (
            make_table(*columns, rows=rows, wrapped=("memory", "from"))
            if rows
            else make_text(f"{namespace} has no memories.")
        )

    return Result({"namespace": namespace, "memories": memories}, draw)


@command(app, "quire memory retire 01ke6p4ym00000000000000001")
async def retire(
    memory: Annotated[list[str], typer.Argument(metavar="ID...", help="Memory IDs, as `search` prints them.")],
    *,
    overrides: SetOptions = None,
) -> Result:
    """Retire memories: requests no longer include them. They stay in the store."""
    from quire.schemas.records import MemorySchema

    async with open_store(overrides) as store:
        for each in memory:  # Retire all or none: a missing id fails here.
            await store.memories.get(each)
        retired = [MemorySchema.model_validate(await store.memories.retire(each)) for each in memory]
    lines = [f"Retired {each.id}: {to_one_line(each.text, 60)}" for each in retired]
    return Result({"memories": retired}, "\n".join(lines))


async def _read_no_texts() -> tuple[str, ...]:
    return ()


@command(app, "quire memory relevance")
async def relevance(
    target: CommandTarget,
    *,
    question: Annotated[
        str | None, typer.Option("--for", metavar="TEXT", help="The question. Default: the newest user message.")
    ] = None,
) -> Result:
    """Show what the next request would include from memory: project files, and memories with their scores."""
    from quire.context.memory import MEMORIES_BLOCK_NAME
    from quire.engine.context_gatherer import ContextGatherer, memory_namespace

    async with open_conversation(target) as conversation:
        engine, store = conversation.engine, conversation.engine.store
        if question is None:
            newest = await store.read_tail(
                conversation.id, 1, branch=conversation.branch, kinds=["message"], roles=["user"]
            )
            question = newest[0].message.text if newest else ""
        enabled = engine.agent.memory.enabled and engine.settings.memory_integration
        decisions = (await conversation.preview(question)).decisions
        branch = await store.get_branch(conversation.id, conversation.branch)
        gathered = await ContextGatherer(engine).gather(branch, "", recent=_read_no_texts)
        records = (
            await store.memories.list(memory_namespace(engine.agent), limit=MAX_LISTED_MEMORIES) if enabled else []
        )
    texts = {block.name: block.text for block in gathered.blocks if block.kind == "memory"}
    memories: list[dict[str, Any]] = []
    for record in records:
        # Memories of the stable prefix share one block, in which each has its id.
        is_stable = f"[{record.id}" in texts.get(MEMORIES_BLOCK_NAME, "")
        place = (MEMORIES_BLOCK_NAME, "memory") if is_stable else (record.id, "recall")
        row = next((each for each in decisions if (each.name, each.slot) == place), None)
        memories.append(
            {
                "id": record.id,
                "text": record.text,
                "included": row is not None and row.included,
                "reason": row.reason if row is not None else "not_selected",
                "score": row.score if row is not None else None,
            }
        )
    document: dict[str, Any] = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "question": question,
        "enabled": enabled,
        "blocks": [
            {
                "name": row.name,
                "included": row.included,
                "reason": row.reason,
                "tokens": row.tokens,
                "text": texts.get(row.name or ""),
            }
            for row in decisions
            if row.kind == "memory" and row.slot != "recall"
        ],
        "memories": sorted(memories, key=lambda each: (not each["included"], -(each["score"] or 0))),
    }
    return Result(document, lambda _: _draw_relevance(document))


def _draw_relevance(document: dict[str, Any]) -> "Iterable[RenderableType]":
    yield make_text(f"For: {to_one_line(document['question'], 80) or '(no question yet)'}")
    if document["blocks"]:
        rows = [(each["name"], each["included"], each["reason"], each["tokens"]) for each in document["blocks"]]
        yield make_table("name", "in", "why", "tokens", rows=rows, right_aligned=("tokens",), wrapped=("name",))
    for each in document["blocks"]:
        if each["text"]:
            yield make_text(f"\n{each['name']}", style="bold")
            yield make_text(each["text"])
    if not document["enabled"]:
        yield make_text("There is no agent, or its memory is off; set one with `quire config set agent FILE`.")
        return
    yield make_text("")
    yield make_table(
        "in", "score", "why", "id", "memory",
        rows=[
            (each["included"], each["score"], each["reason"].replace("_", " "), each["id"], to_one_line(each["text"]))
            for each in document["memories"]
        ],
        right_aligned=("score",), wrapped=("memory",),
    ) if document["memories"] else make_text("There are no memories yet.")  # fmt: skip


def split_statements(text: str) -> list[str]:
    """Splits Markdown into statements, in order and deduplicated."""
    text = text.replace("\r\n", "\n")
    if text.startswith("---\n"):
        _, closed, rest = text[4:].partition("\n---\n")
        text = rest if closed else text  # Without its front matter.
    return list(dict.fromkeys(_iterate_statements(text)))


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
            if fence_match is not None:
                fence = fence_match[1] if not fence else "" if fence_match[1] == fence else fence
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


def resolve_namespace(agent: str | None, overrides: Sequence[str] | None) -> str:
    """Returns the namespace of the agent with this name or file; a name without an agent is itself a namespace."""
    from quire.cli.engine_setup import load_cli_settings
    from quire.context.agent_loader import load_agent

    name = agent or load_cli_settings(overrides).settings.agent
    if name is None:
        return DEFAULT_NAMESPACE
    try:
        loaded = load_agent(find_agent_file(name))
    except DocumentNotFound:
        if agent is None or name.endswith(".toml"):
            raise
        return name
    return loaded.memory.namespace or loaded.name
