"""`quire chat` from beginning to end: opens a conversation, reads lines until somebody leaves, closes it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.agent.approvals import Deny, Verdict
from quire.cli import places
from quire.cli.chat.interrupting import interruptible, silent
from quire.cli.chat.reading import Interrupted, Left, PipeReader, Reader
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import Session
from quire.cli.chat.talk import Talk, Wanted, opened_talk
from quire.cli.output import console_on
from quire.cli.progress import progress
from quire.cli.servers import trouble_said
from quire.context.vault.resolve import Resolved
from quire.context.vault.sections import headings
from quire.errors import DocumentNotFound, MissingExtra, PathRefused

if TYPE_CHECKING:
    from rich.console import Console

    from quire.cli.opening import Options
    from quire.model import ToolCallPart

SHOWN = 2
"""So many of the last messages are shown when a conversation is resumed."""


async def chat(options: "Options", wanted: Wanted) -> None:
    console = console_on(sys.stdout)
    desk = _Desk()
    async with opened_talk(options, wanted, ask=desk.ask) as talk:
        reader, screen = _reader(talk, console), Screen(console)
        session = Session(talk, screen, aside=reader.aside)
        desk.open(reader, session)
        await _greet(talk, screen)
        screen.gap()
        await _index(talk, session)
        await converse(session, reader)


class _Desk:
    """Where leave to run a tool is asked for, once there is somebody to ask."""

    def open(self, reader: Reader, session: Session) -> None:
        self._reader, self._session = reader, session

    async def ask(self, call: "ToolCallPart") -> Verdict:
        try:
            return await self._reader.allow(call)
        except Interrupted:
            self._session.stop()
            return Deny()


async def converse(session: Session, reader: Reader) -> None:
    while not session.leaving:
        try:
            line = await reader.read(await session.choices())
        except Left:
            return
        except Interrupted:
            session.screen.note("Ctrl-D or /quit leaves.")
            continue
        with interruptible(session.stop), silent(sys.stdin):
            await session.take(line)


def _reader(talk: Talk, console: "Console") -> Reader:
    if not (sys.stdin.isatty() and console.is_terminal):
        return PipeReader(sys.stdin, console)
    try:
        from quire.cli.chat.terminal import TerminalReader
    except ImportError as error:
        raise MissingExtra(extra="cli", needed_for="Chatting in a terminal") from error
    return TerminalReader(history=_history_file(), headings=lambda note: _headings(talk, note))


def _history_file() -> Path:
    """Beside the usual database."""
    return Path(places.default_database(os.environ).removeprefix("sqlite:///")).with_name("history")


def _headings(talk: Talk, note: str) -> Sequence[str]:
    vault = talk.engine.vault
    if vault is None:
        return ()
    destination = vault.resolve(note.partition("|")[0])
    if not isinstance(destination, Resolved):
        return ()
    try:
        return [heading.text for heading in headings(vault.read(destination.path).text)]
    except (DocumentNotFound, PathRefused):
        return ()


async def _greet(talk: Talk, screen: Screen) -> None:
    conversation, engine = talk.conversation, talk.engine
    for trouble in talk.troubles:
        screen.note(trouble_said(trouble))
    last = await engine.store.tail(conversation.id, SHOWN, branch=conversation.branch, kinds=["message"])
    if not last:
        screen.note(
            f"A new conversation, {conversation.id}, with {engine.settings.model}. /help says what can be done."
        )
        return
    screen.resumed(conversation.id, branch=conversation.branch, newest=last[-1])
    screen.past(last)
    screen.meter(await talk.reading(number=last[-1].seq))


async def _index(talk: Talk, session: Session) -> None:
    """The vault's notes, so that they can be found and completed."""
    if talk.engine.vault is None:
        return
    with progress("Indexing the vault") as shown:
        async for step in talk.engine.index_vault():
            shown.at(step.done, step.total)
    await session.take_stock()
