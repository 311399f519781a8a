"""`quire search`: finds messages in all conversations, by words, and by meaning where embeddings are configured."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quire.cli.common import Limit, SetOptions, complete_conversation_ids, resolve_conversation_id
from quire.cli.output import Result, format_local_time, make_text, print_note, show_progress, to_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.engine.search import MessageHit

HIGHLIGHT_STYLE = "bold yellow"

_AGE = re.compile(r"(\d{1,5})([hdw])")
_AGE_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, *, end_of_day: bool) -> int:
    """Parses `2026-01-31`, `2026-01-31T14:00` in local time, or an age such as `12h`, `7d` or `4w`, to microseconds.

    A date without a time is the beginning of that day, or its end with `end_of_day`.
    """
    try:
        if age := _AGE.fullmatch(text):
            moment = datetime.now().astimezone() - timedelta(**{_AGE_UNITS[age[2]]: int(age[1])})
        else:
            moment = datetime.fromisoformat(text).astimezone()
            if end_of_day and len(text) <= len("2026-01-31"):
                moment += timedelta(days=1)
        return max(0, int(moment.timestamp() * 1_000_000))
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-01-31, 2026-01-31T14:00, 12h, 7d or 4w.") from error


def parse_since(text: str) -> int:
    return parse_time(text, end_of_day=False)


def parse_until(text: str) -> int:
    return parse_time(text, end_of_day=True)


async def command(
    query: Annotated[str, typer.Argument(help="The search words.")],
    conversations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONVERSATION...",
            help="IDs, their first characters, or titles. Default: all conversations.",
            autocompletion=complete_conversation_ids,
        ),
    ] = None,
    *,
    project: Annotated[str | None, typer.Option(help="Only conversations of this project, such as its folder.")] = None,
    source: Annotated[str | None, typer.Option(help="Only conversations of this client, such as claude-code.")] = None,
    role: Annotated[
        Literal["user", "assistant", "tool"] | None, typer.Option(help="Only messages of this role.")
    ] = None,
    person: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only messages of the speaker with this name.")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="TIME", parser=parse_since, help="Only messages from this date, time or age (7d) on."),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="TIME", parser=parse_until, help="Only messages before this time or age, or up to this date."
        ),
    ] = None,
    order: Annotated[Literal["relevance", "newest", "oldest"], typer.Option(help="What is first.")] = "relevance",
    limit: Limit = 10,
    overrides: SetOptions = None,
) -> Result:
    """Search the messages of all conversations, archived or not, the most relevant first.

    Messages that are not in the index yet are indexed first.
    """
    from quire.cli.engine_setup import open_engine_from_settings
    from quire.engine.message_index import BULK_BATCH_ENTRIES, iter_indexing
    from quire.engine.search import MessageFilter, search_messages
    from quire.schemas.search import MessageHitSchema

    async with open_engine_from_settings(overrides) as engine:
        ids = [await resolve_conversation_id(engine.store, each) for each in conversations or ()]
        where = MessageFilter(
            conversations=tuple(ids) if ids else None,
            project=project,
            source=source,
            role=role,
            person=person,
            since=since,
            until=until,
        )
        with show_progress("Indexing messages") as progress:
            done = 0
            async for count in iter_indexing(
                engine, conversations=where.conversations, batch_entries=BULK_BATCH_ENTRIES
            ):
                done += count
                progress.update(done)
        result = await search_messages(engine, query, where=where, order=order, limit=limit)
    if not result.complete:
        print_note("Some messages are still being indexed; search again for all results.")

    def draw(_: "Console") -> "Iterable[RenderableType]":
        if not result.messages:
            yield make_text("No message matches.")
        for hit in result.messages:
            yield from _draw_hit(hit)

    hits = [MessageHitSchema.model_validate(each) for each in result.messages]
    return Result({"query": query, "messages": hits, "complete": result.complete}, draw)


def _draw_hit(hit: "MessageHit") -> "Iterable[RenderableType]":
    """Two paragraphs: where the message is, and its excerpt."""
    from rich.padding import Padding
    from rich.text import Text

    entry, record = hit.entry, hit.conversation
    branch = f" --branch {entry.branch}" if entry.branch else ""
    speaker = entry.message.name or entry.role
    heading = Text(f"{hit.score:.2f}  ")
    heading.append(to_one_line(record.title, 60), style="bold")
    heading.append(f"  {record.id}{branch} #{entry.seq}  {to_one_line(str(speaker), 40)}  ")
    heading.append(format_local_time(entry.created_at))
    excerpt = make_text(hit.excerpt)
    for start, end in hit.highlights:
        excerpt.stylize(HIGHLIGHT_STYLE, start, end)
    yield heading
    yield Padding(excerpt, (0, 0, 0, 6))
    for topic in hit.topics:
        yield Padding(make_text(f"topic, by a model: {topic.label}: {topic.text}"), (0, 0, 0, 6))
