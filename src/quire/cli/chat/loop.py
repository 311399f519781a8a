"""Main loop of `quire chat`: opens a conversation, handles lines until the user quits, and closes it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.agent.approvals import ApprovalDecision, Deny
from quire.cli import paths
from quire.cli.chat.input import InputEnded, InputInterrupted, InputReader, PipeReader, disable_echo, stop_on_interrupt
from quire.cli.chat.runtime import ChatOptions, ChatRuntime, open_chat
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import ChatSession
from quire.cli.mcp_servers import format_server_problem
from quire.cli.output import make_console, show_progress
from quire.context.vault.sections import find_headings
from quire.context.vault.wikilinks import ResolvedLink
from quire.errors import DocumentNotFound, MissingExtra, PathRefused

if TYPE_CHECKING:
    from rich.console import Console

    from quire.cli.engine_setup import SettingOverrides
    from quire.model import ToolCallPart

RESUMED_MESSAGE_COUNT = 2
"""Last messages that are printed when a conversation is resumed."""


async def run_chat(overrides: "SettingOverrides", chat_options: ChatOptions) -> None:
    console = make_console(sys.stdout)
    approval_prompt = _ApprovalPrompt()
    async with open_chat(overrides, chat_options, ask=approval_prompt.ask) as runtime:
        reader, screen = _create_reader(runtime, console), Screen(console)
        session = ChatSession(runtime, screen, print_above_prompt=reader.print_above_prompt)
        approval_prompt.attach(reader, session)
        await _show_greeting(runtime, screen)
        screen.print_blank_line()
        await _index_vault(runtime, session)
        await run_input_loop(session, reader)


class _ApprovalPrompt:
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
    return TerminalReader(history=_get_history_path(), headings=lambda note: _list_headings(runtime, note))


def _get_history_path() -> Path:
    """Returns the history file, next to the default database."""
    return Path(paths.get_default_database_url().removeprefix("sqlite:///")).with_name("history")


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


async def _show_greeting(runtime: ChatRuntime, screen: Screen) -> None:
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


async def _index_vault(runtime: ChatRuntime, session: ChatSession) -> None:
    """Indexes the vault's notes for search and completion."""
    if runtime.engine.vault is None:
        return
    with show_progress("Indexing the vault") as progress:
        async for step in runtime.engine.index_vault():
            progress.update(step.done, step.total)
    await session.reload_completions()
