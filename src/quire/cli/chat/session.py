"""The chat between two inputs: takes a line, does what it asks for, shows what happens.

It knows neither keys nor prompts. A line either is a command or goes to the model; whatever happens to it, the session
goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from quire.cli.chat.commands import COMMANDS, Call, arguments, parsed
from quire.cli.chat.completion import Choices, Named, note_choices
from quire.errors import QuireError
from quire.model.events import ContextCompacted, Event
from quire.model.turns import ReplyKept, TurnEnded, TurnFailed

if TYPE_CHECKING:
    from quire.cli.chat.screen import Screen
    from quire.cli.chat.talk import Talk
    from quire.model import Entry

Aside = Callable[[Callable[[], None]], Awaitable[None]]
"""Shows something while an input is waited for."""


async def _at_once(show: Callable[[], None]) -> None:
    show()


class Session:
    def __init__(self, talk: "Talk", screen: "Screen", *, aside: Aside = _at_once) -> None:
        self.talk, self.screen = talk, screen
        self.leaving = False
        self._aside = aside
        self._stop = asyncio.Event()
        self._busy = False
        self._compacted: list[Entry] = []
        self._asides: set[asyncio.Task[None]] = set()
        self._notes: list[Named] = []
        self._files: list[str] = []
        talk.engine.subscribe(self._hear)

    async def take(self, line: str) -> None:
        """Does what a line asks for."""
        self._stop = asyncio.Event()
        self._busy = True
        try:
            call = parsed(line)
            if call is not None:
                await self._run(call)
            elif line.strip():
                await self.turn(line)
        except QuireError as error:
            self.screen.problem(error)
        finally:
            self._busy = False
            self.screen.rest()
            self.screen.gap()
        await self._show_compacted()

    def stop(self) -> None:
        """Ends what is under way, and not the session."""
        self._stop.set()

    async def _run(self, call: Call) -> None:
        if call.command.name == "retry":
            # It asks the model, and what had come of a reply is to be kept.
            await call.command.run(self, call.given)
        elif not await _unless(self._stop, call.command.run(self, call.given)):
            self.screen.note("Stopped.")

    async def turn(self, text: str | None) -> None:
        if text is not None and "[[" in text:
            await self.refresh()
        self.screen.wait("reaches for the model")
        number = usage = None
        async with aclosing(self.talk.turn(text, stop=self._stop)) as events:
            async for event in events:
                await self._show_compacted()
                self.screen.show(event)
                if isinstance(event, ReplyKept):
                    number = event.entry.seq
                elif isinstance(event, TurnEnded | TurnFailed):
                    usage = event.usage
        await self._show_compacted()
        self.screen.meter(await self.talk.reading(number=number, usage=usage))

    def _hear(self, event: Event) -> None:
        here = self.talk.conversation
        if (event.conversation, event.branch) != (here.id, here.branch):
            return
        if isinstance(event, ContextCompacted):
            self._compacted.append(event.entry)
            if not self._busy:
                task = asyncio.get_running_loop().create_task(self._show_compacted())
                self._asides.add(task)
                task.add_done_callback(self._asides.discard)
        elif self._busy:
            self.screen.show(event)

    async def _show_compacted(self) -> None:
        while self._compacted:
            done = await self.talk.archived(self._compacted.pop(0))
            if self._busy:
                self.screen.marker(done)
            else:
                await self._aside(lambda done=done: self.screen.marker(done))

    async def refresh(self) -> None:
        """Brings the vault's index and what can be completed up to date."""
        vault = self.talk.engine.vault
        if vault is None:
            return
        async for _ in self.talk.engine.index_vault():
            pass
        await self.take_stock()

    async def take_stock(self) -> None:
        """Notes and files as they can be completed from now on."""
        vault = self.talk.engine.vault
        if vault is not None:
            found = await asyncio.to_thread(vault.root.files)
            self._files = [file.path for file in found]
            self._notes = note_choices((path, known.aliases) for path, known in sorted(vault.known.items()))

    async def choices(self) -> Choices:
        given = await arguments(self)
        return Choices(
            commands=[Named(command.name, command.does) for command in COMMANDS],
            notes=self._notes,
            files=self._files,
            arguments=lambda command: given.get(command, ()),
        )


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before somebody stopped it."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
    try:
        await working
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return False
    return True
