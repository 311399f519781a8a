"""Main loop of `quire chat`, and its session: handles one line as a slash command or as a message to the model.

The session handles neither keys nor prompts. An error in a line never ends it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.agent.approvals import ApprovalDecision, Deny
from quire.cli import paths
from quire.cli.chat.commands import COMMANDS, load_argument_items, parse_command
from quire.cli.chat.completion import CompletionItem, CompletionSources, build_note_items
from quire.cli.chat.input import InputEnded, InputInterrupted, InputReader, PipeReader, disable_echo, stop_on_interrupt
from quire.cli.chat.runtime import Attachment, ChatOptions, ChatRuntime, attach_to, open_chat
from quire.cli.chat.screen import Screen
from quire.cli.engine_setup import format_server_problem
from quire.cli.output import make_console, show_progress
from quire.context.vault.sections import find_headings
from quire.context.vault.wikilinks import ResolvedLink
from quire.errors import DocumentNotFound, MissingExtra, PathRefused, QuireError
from quire.model import Usage
from quire.model.context_events import ContextCompacted, ContextEvent
from quire.model.events import QuestionRecorded, ReplyRecorded, TurnEnded

if TYPE_CHECKING:
    from rich.console import Console

    from quire.model import Entry, ToolCallPart

RESUMED_MESSAGE_COUNT = 2
"""Last messages that are printed when a conversation is resumed."""
PrintAbovePrompt = Callable[[Callable[[], None]], Awaitable[None]]
"""Prints something while the prompt waits for input."""


async def _print_now(show: Callable[[], None]) -> None:
    show()


class ChatSession:
    def __init__(
        self, runtime: ChatRuntime, screen: Screen, *, print_above_prompt: PrintAbovePrompt = _print_now
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
        self.unrecorded_question: str | None = None
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
            if call is not None and call.command.name == "retry":
                # A retry runs a turn, which stops by itself and records the partial reply.
                await call.command.run(self, call.argument)
            elif call is not None:
                if not await _run_unless_stopped(self._stop, call.command.run(self, call.argument)):
                    self.screen.show_note("Stopped.")
            elif line.strip():
                await self.run_turn(line)
        except QuireError as error:
            self.screen.show_error(error)
        finally:
            self._busy = False
            self.screen.finish()
            self.screen.print_blank_line()
        await self._show_compactions()

    def check_model(self) -> None:
        """Creates the model while the user types the first question, and says at once if it cannot be used."""

        async def create() -> None:
            try:
                await asyncio.to_thread(lambda: self.runtime.model)
            except QuireError as error:
                # A question that was faster gets the same answer by itself.
                if not self._busy:
                    await self._print_above_prompt(lambda error=error: self.screen.show_error(error))

        self._start(create())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Stops the running turn or command, not the session."""
        self._stop.set()

    async def run_turn(self, text: str | None) -> None:
        if text is not None and "[[" in text:
            await self.refresh_vault()
        self.screen.show_status("connecting to the model")
        number, suggestion, usages = None, None, list[Usage]()
        self.unrecorded_question = text
        question = attach_to(text, self.attachments) if text is not None and self.attachments else text
        async with aclosing(self.runtime.run_turn(question, stop=self._stop)) as events:
            async for event in events:
                await self._show_compactions()
                self.screen.show(event)
                if isinstance(event, QuestionRecorded):
                    self.unrecorded_question = None
                    self.attachments.clear()
                elif isinstance(event, ReplyRecorded):
                    number = event.entry.seq
                    usages.append(event.usage)
                elif isinstance(event, TurnEnded):
                    suggestion = event.suggestion
        await self._show_compactions()
        reading = await self.runtime.read_meter(reply_seq=number, usages=usages)
        self.screen.show_meter(reading)
        if suggestion is not None:
            command = f"/{suggestion.action} {suggestion.name}"
            advice = f"Ask with @{suggestion.name}" if suggestion.action == "refer" else f"Type {command}"
            self.screen.show_note(f"{suggestion.text} {advice}.")
        # Asks once whether to compact; a shorter history, or a compaction, ends the question.
        is_proposed = reading.report.proposes_compaction
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
                self._start(self._show_compactions())
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


async def run_chat(overrides: Sequence[str], chat_options: ChatOptions) -> None:
    console = make_console(sys.stdout)
    approval_prompt = ApprovalPrompt()
    async with open_chat(overrides, chat_options, ask=approval_prompt.ask) as runtime:
        reader, screen = _create_reader(runtime, console), Screen(console)
        session = ChatSession(runtime, screen, print_above_prompt=reader.print_above_prompt)
        approval_prompt.attach(reader, session)
        await show_greeting(runtime, screen)
        screen.print_blank_line()
        if runtime.engine.vault is not None:
            with show_progress("Indexing the vault") as progress:
                async for step in runtime.engine.index_vault():
                    progress.update(step.done, step.total)
            await session.reload_completions()
        if sys.stdin.isatty():
            session.check_model()
        await run_input_loop(session, reader)


class ApprovalPrompt:
    """Asks the user to approve tool calls; the reader is attached after the runtime is open."""

    def attach(self, reader: InputReader, session: ChatSession) -> None:
        self._reader, self._session = reader, session

    async def ask(self, call: "ToolCallPart") -> ApprovalDecision:
        try:
            return await self._reader.ask_approval(call)
        except InputInterrupted:
            self._session.stop()
            return Deny()


async def run_input_loop(session: ChatSession, reader: InputReader) -> None:
    while not session.is_quitting:
        try:
            line = await reader.read(await session.load_completions())
        except InputEnded:
            return
        except InputInterrupted:
            session.screen.show_note("To quit, press Ctrl-D or type /quit.")
            continue
        with stop_on_interrupt(session.stop), disable_echo(sys.stdin):
            await session.handle_line(line)


def _create_reader(runtime: ChatRuntime, console: "Console") -> InputReader:
    if not (sys.stdin.isatty() and console.is_terminal):
        return PipeReader(sys.stdin, console)
    try:
        from quire.cli.chat.terminal import TerminalReader
    except ImportError as error:
        raise MissingExtra(extra="cli", feature="Chatting in a terminal") from error
    history = Path(paths.get_default_database_url().removeprefix("sqlite:///")).with_name("history")
    return TerminalReader(history=history, headings=lambda note: _list_headings(runtime, note))


def _list_headings(runtime: ChatRuntime, note: str) -> Sequence[str]:
    vault = runtime.engine.vault
    if vault is None:
        return ()
    destination = vault.resolve(note.partition("|")[0])
    if not isinstance(destination, ResolvedLink):
        return ()
    try:
        return [heading.text for heading in find_headings(vault.read(destination.path).text)]
    except (DocumentNotFound, PathRefused):
        return ()


async def show_greeting(runtime: ChatRuntime, screen: Screen) -> None:
    conversation, engine = runtime.conversation, runtime.engine
    for problem in runtime.server_problems:
        screen.show_note(format_server_problem(problem))
    last = await engine.store.read_tail(
        conversation.id, RESUMED_MESSAGE_COUNT, branch=conversation.branch, kinds=["message"]
    )
    if not last:
        screen.show_note(
            f"New conversation {conversation.id} with {engine.settings.model}. Type /help for the commands."
        )
        return
    screen.show_resumed(conversation.id, branch=conversation.branch, newest=last[-1])
    screen.show_history(last)
    screen.show_meter(await runtime.read_meter(reply_seq=last[-1].seq))
