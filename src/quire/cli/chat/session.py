"""Chat session: handles one input line, as a slash command or as a message to the model, and draws what happens.

It handles neither keys nor prompts. An error in a line never ends the session.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from quire.cli.attachments import Attachment, attach_to
from quire.cli.chat.commands import COMMANDS, CommandCall, load_argument_items, parse_command
from quire.cli.chat.completion import CompletionItem, CompletionSources, build_note_items
from quire.errors import QuireError
from quire.model.context_events import ContextCompacted, ContextEvent
from quire.model.events import QuestionRecorded, ReplyRecorded, TurnEnded, TurnFailed

if TYPE_CHECKING:
    from quire.cli.chat.runtime import ChatRuntime
    from quire.cli.chat.screen import Screen
    from quire.model import Entry

PrintAbovePrompt = Callable[[Callable[[], None]], Awaitable[None]]
"""Prints something while the prompt waits for input."""


async def _print_now(show: Callable[[], None]) -> None:
    show()


class ChatSession:
    def __init__(
        self, runtime: "ChatRuntime", screen: "Screen", *, print_above_prompt: PrintAbovePrompt = _print_now
    ) -> None:
        self.runtime, self.screen = runtime, screen
        self.is_quitting = False
        self.attachments: list[Attachment] = []
        """Sent with the next message."""
        self._print_above_prompt = print_above_prompt
        self._stop = asyncio.Event()
        self._busy = False
        self._pending_compactions: list[Entry] = []
        self._has_proposed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._notes: list[CompletionItem] = []
        self._files: list[str] = []
        runtime.engine.subscribe(self._handle_event)

    async def handle_line(self, line: str) -> None:
        """Runs the command in the line, or sends it to the model."""
        self._stop = asyncio.Event()
        self._busy = True
        try:
            call = parse_command(line)
            if call is not None:
                await self._run_command(call)
            elif line.strip():
                await self.run_turn(line)
        except QuireError as error:
            self.screen.show_error(error)
        finally:
            self._busy = False
            self.screen.finish()
            self.screen.print_blank_line()
        await self._show_compactions()

    def stop(self) -> None:
        """Stops the running turn or command, not the session."""
        self._stop.set()

    async def _run_command(self, call: CommandCall) -> None:
        if call.command.name == "retry":
            # A retry runs a turn, which stops by itself and records the partial reply.
            await call.command.run(self, call.argument)
        elif not await _run_unless_stopped(self._stop, call.command.run(self, call.argument)):
            self.screen.show_note("Stopped.")

    async def run_turn(self, text: str | None) -> None:
        if text is not None and "[[" in text:
            await self.refresh_vault()
        self.screen.show_status("connecting to the model")
        number = usage = None
        question = attach_to(text, self.attachments) if text is not None and self.attachments else text
        async with aclosing(self.runtime.run_turn(question, stop=self._stop)) as events:
            async for event in events:
                await self._show_compactions()
                self.screen.show(event)
                if isinstance(event, QuestionRecorded):
                    self.attachments.clear()
                elif isinstance(event, ReplyRecorded):
                    number = event.entry.seq
                elif isinstance(event, TurnEnded | TurnFailed):
                    usage = event.usage
        await self._show_compactions()
        reading = await self.runtime.read_meter(reply_seq=number, usage=usage)
        self.screen.show_meter(reading)
        await self._propose_compaction(is_proposed=reading.report.proposes_compaction)

    async def _propose_compaction(self, *, is_proposed: bool) -> None:
        """Asks once whether to compact; a shorter history, or a compaction, ends the question."""
        if is_proposed and not self._has_proposed:
            plan = await self.runtime.conversation.plan_compaction()
            freed = f" It would free about {plan.freed_tokens:,} tokens." if plan is not None else ""
            self.screen.show_note(
                "Compact the history? The oldest messages no longer fit, and requests omit them."
                f"{freed} Type /compact to compact, or continue without."
            )
        self._has_proposed = is_proposed

    def _handle_event(self, event: ContextEvent) -> None:
        conversation = self.runtime.conversation
        if (event.conversation, event.branch) != (conversation.id, conversation.branch):
            return
        if isinstance(event, ContextCompacted):
            self._pending_compactions.append(event.entry)
            if not self._busy:
                task = asyncio.get_running_loop().create_task(self._show_compactions())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        elif self._busy:
            self.screen.show(event)

    async def _show_compactions(self) -> None:
        while self._pending_compactions:
            stats = await self.runtime.load_compaction_stats(self._pending_compactions.pop(0))
            if self._busy:
                self.screen.show_compaction(stats)
            else:
                await self._print_above_prompt(lambda stats=stats: self.screen.show_compaction(stats))

    async def refresh_vault(self) -> None:
        """Updates the vault's index and the completions."""
        vault = self.runtime.engine.vault
        if vault is None:
            return
        async for _ in self.runtime.engine.index_vault():
            pass
        await self.reload_completions()

    async def reload_completions(self) -> None:
        """Reloads the notes and files for completion."""
        vault = self.runtime.engine.vault
        if vault is not None:
            files = await asyncio.to_thread(vault.root.list_files)
            self._files = [file.path for file in files]
            self._notes = build_note_items((path, known.aliases) for path, known in sorted(vault.known_files.items()))

    async def load_completions(self) -> CompletionSources:
        argument_items = await load_argument_items(self)
        return CompletionSources(
            commands=[CompletionItem(command.name, command.description) for command in COMMANDS],
            notes=self._notes,
            files=self._files,
            arguments=lambda command: argument_items.get(command, ()),
        )


async def _run_unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work until it ends or `stop` is set; returns whether it ended by itself."""
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
