"""Reads the chat history of Aider: a Markdown file in the folder of a repository, with all of its sessions.

A session begins with a heading that has its local time. Lines with `#### ` are the user's, lines with `> ` are
printed by Aider, and everything else is the reply. Edits are text. There are no tool calls.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.source_fields import add_usage, parse_time, read_cost, read_title
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

MAX_LINE_CHARS = 1_000_000
"""A longer line is read in pieces."""
_FILE_NAME = ".aider.chat.history.md"
_SESSION_START = "# aider chat started at "
_USER_MARK = "#### "
_OUTPUT_MARK = "> "
_EMPTY_INPUT = "<blank>"
_FENCES = ("```", "~~~")
_MODEL = re.compile(r"(?:Main model|Model): (\S{1,200})")
_TOKENS = re.compile(
    r"Tokens: (?P<sent>[\d.,]{1,12}k?) sent"
    r"(?:, (?P<write>[\d.,]{1,12}k?) cache write)?(?:, (?P<read>[\d.,]{1,12}k?) cache hit)?"
    r", (?P<received>[\d.,]{1,12}k?) received\.(?: Cost: \$(?P<cost>[\d.]{1,12}) message)?"
)


class _Turn(NamedTuple):
    """What the user said and the reply to it."""

    prompt: list[str]
    reply: list[str]
    output: list[str]


class AiderSource(StoredSource):
    name = "aider"
    title = "Aider"
    patterns = (_FILE_NAME, f"*/{_FILE_NAME}")
    not_stored = ("sub-agents", "tool calls", "tool results", "times")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        """The histories of the current folder and of repositories in the home folder."""
        yield from (Path(own) for name in ("AIDER_CHAT_HISTORY_FILE",) if (own := env.get(name)))
        yield Path(env.get("PWD") or os.curdir) / _FILE_NAME
        yield find_home(env) / _FILE_NAME
        yield from sorted(find_home(env).glob(f"*/{_FILE_NAME}"))

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        project = str(path.resolve().parent)
        with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
            starts: list[str] = []
            lines: list[str] = []
            for line in iter(lambda: stream.readline(MAX_LINE_CHARS), ""):
                if line.startswith(_SESSION_START):
                    if starts:
                        yield self._build_conversation(project, starts, lines)
                    starts.append(line.removeprefix(_SESSION_START).strip())
                    lines = []
                else:
                    lines.append(line.rstrip("\r\n"))
            if starts:
                yield self._build_conversation(project, starts, lines)

    def _build_conversation(self, project: str, starts: list[str], lines: list[str]) -> SourceConversation:
        """The session that began last; `starts` has the times of those before it, too, which may be the same."""
        start, number = starts[-1], starts.count(starts[-1])
        id_ = f"{sha256(project.encode(errors='replace')).hexdigest()[:16]}/{start}/{number}"
        try:
            created_at = parse_time(datetime.fromisoformat(start).astimezone().isoformat())
        except ValueError:
            created_at = None
        turns = list(_split_turns(lines))
        return SourceConversation(
            id=id_,
            messages=_read_messages(turns),
            title=read_title(next((" ".join(turn.prompt) for turn in turns if turn.prompt), "")),
            origin=ConversationOrigin(client=self.name, session=id_, project=project),
            created_at=created_at,
            dropped=("program output",),
        )


def _split_turns(lines: list[str]) -> Iterator[_Turn]:
    turn, fence = _Turn([], [], []), ""
    for line in lines:
        marker = line.lstrip()[:3]
        if fence:
            # What a code block contains is the reply, whatever its lines begin with.
            turn.reply.append(line)
            fence = "" if line.strip() == fence else fence
        elif line.startswith(_USER_MARK):
            if turn.reply or turn.output:
                yield turn
                turn = _Turn([], [], [])
            text = line.removeprefix(_USER_MARK).removesuffix("  ")
            turn.prompt.append("" if text == _EMPTY_INPUT else text)
        elif line.startswith(_OUTPUT_MARK):
            turn.output.append(line.removeprefix(_OUTPUT_MARK).strip())
        else:
            if turn.prompt and marker in _FENCES:
                fence = marker
            if line.strip() or turn.reply:
                turn.reply.append(line)
    yield turn


def _read_messages(turns: list[_Turn]) -> Iterator[SourceMessage | SourceError]:
    links, model = MessageLinks(), None
    for index, turn in enumerate(turns):
        printed = "\n".join(turn.output)
        if match := _MODEL.search(printed):
            model = match[1]
        messages: list[Message] = []
        if prompt := "\n".join(turn.prompt).strip():
            messages.append(Message.user(prompt))
        if reply := "\n".join(turn.reply).strip():
            messages.append(Message.assistant(reply))
        tokens = _TOKENS.search(printed)
        counts = {name: _parse_count(tokens[name]) for name in ("sent", "write", "read", "received")} if tokens else {}
        usage = add_usage(
            model,
            # The input that Aider prints includes what was read from the cache and not what was written to it.
            uncached=max(counts.get("sent", 0) - counts.get("read", 0), 0),
            cache_read=counts.get("read"),
            cache_write=counts.get("write"),
            output=counts.get("received"),
        )
        cost = read_cost(float(tokens["cost"].rstrip("."))) if tokens and tokens["cost"] else None
        yield from links.add(f"turn:{index}", messages, after=links.last, usage=usage, cost_usd=cost)


def _parse_count(text: str | None) -> int:
    """A number as Aider prints it: `706`, `1.2k`."""
    if not text:
        return 0
    thousand = 1_000 if text.endswith("k") else 1
    try:
        return round(float(text.rstrip("k").replace(",", "")) * thousand)
    except ValueError:
        return 0
