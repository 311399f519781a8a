"""A source and a command of another package: chats in text files, and the longest messages of a conversation.

`pip install examples/plugin` makes `quire scan` and `quire import plain-logs` find `~/plain-logs/*.txt`, whose lines
are `user: …` and `assistant: …`, and adds `quire longest CONVERSATION`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.common import open_store, resolve_conversation_id
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

SPEAKERS = {"user": Message.user, "assistant": Message.assistant}


class PlainLogSource(StoredSource):
    name = "plain-logs"
    title = "Plain logs"
    patterns = ("*.txt",)
    not_stored = ("tool calls", "times", "models", "tokens", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env["HOME"]) / "plain-logs"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        yield SourceConversation(
            path.stem, list(read_lines(path)), title=path.stem, origin=ConversationOrigin(client=self.name)
        )


def read_lines(path: Path) -> Iterator[SourceMessage | SourceError]:
    parent = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        speaker, _, text = line.partition(": ")
        if speaker not in SPEAKERS:
            yield SourceError(f"{path.name}:{number}", "The line begins with neither `user: ` nor `assistant: `.")
            continue
        yield SourceMessage(f"line:{number}", parent, SPEAKERS[speaker](text))
        parent = f"line:{number}"


async def print_longest(
    conversation: Annotated[str, typer.Argument(help="The conversation.")],
    count: Annotated[int, typer.Option(help="Number of messages.")] = 3,
) -> None:
    """Print the longest messages of a conversation."""
    async with open_store(None) as store:
        entries = await store.read_range(await resolve_conversation_id(store, conversation))
        messages = [(entry.seq, entry.body.text) for entry in entries if isinstance(entry.body, Message)]
    for seq, text in sorted(messages, key=lambda each: -len(each[1]))[:count]:
        typer.echo(f"#{seq} {len(text)} characters: {text[:60]}")
