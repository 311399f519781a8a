"""Slash commands of the chat. Each calls the library and prints what it did."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quire.cli.chat.completion import CompletionItem
from quire.cli.chat.runtime import Attachment, ChatRuntime, load_attachment
from quire.cli.context import draw_explanation, draw_summary
from quire.cli.context_changes import NOTHING_TO_COMPACT, load_active_compaction
from quire.cli.context_window import render_window
from quire.cli.export import export_to_file, format_export
from quire.cli.models import describe_window
from quire.cli.output import pluralize, to_one_line
from quire.cli.tool_calls import pair_calls, render_tool_result
from quire.context.items import index_agent_items
from quire.engine import Conversation
from quire.engine.compactor import Compactor
from quire.errors import ContextOverflow, InvalidRequest
from quire.ledger import find_decision

if TYPE_CHECKING:
    from quire.cli.chat.screen import Screen
    from quire.model import ContextItem

_COMMAND = re.compile(r"/(?P<name>[a-z]+)(?:\s+(?P<argument>.*))?\s*\Z", re.DOTALL)
RECENT_MESSAGE_COUNT = 20
"""Newest messages that completion offers by number."""


class CommandSession(Protocol):
    """The part of a chat session that commands use. The session imports this module, so they cannot import it."""

    is_quitting: bool
    attachments: list[Attachment]
    unrecorded_question: str | None
    """A question whose turn failed before it was recorded, as without an API key."""

    @property
    def runtime(self) -> ChatRuntime: ...

    @property
    def screen(self) -> "Screen": ...

    async def run_turn(self, text: str | None) -> None: ...


CommandHandler = Callable[[CommandSession, str], Coroutine[Any, Any, None]]


class SlashCommand(NamedTuple):
    name: str
    usage: str
    description: str
    run: CommandHandler


COMMANDS: list[SlashCommand] = []
"""All commands, in the order of the list that /help prints."""
_ALIASES = {"exit": "quit"}
"""Names of the same commands in other programs."""


def slash_command(name: str, usage: str, description: str) -> Callable[[CommandHandler], CommandHandler]:
    def add(function: CommandHandler) -> CommandHandler:
        COMMANDS.append(SlashCommand(name, usage, description, function))
        return function

    return add


class CommandCall(NamedTuple):
    command: SlashCommand
    argument: str


def parse_command(line: str) -> CommandCall | None:
    """Parses a slash command; None if the line is a message, such as one that begins with a path or a space."""
    match = _COMMAND.match(line)
    if match is None:
        return None
    name = _ALIASES.get(match["name"], match["name"])
    command = next((each for each in COMMANDS if each.name == name), None)
    if command is None:
        similar = get_close_matches(name, [each.name for each in COMMANDS], n=1)
        advice = f"did you mean /{similar[0]}?" if similar else "type /help for a list."
        raise InvalidRequest(f"There is no command /{name}; {advice} To send it as a message, put a space before it.")
    return CommandCall(command, (match["argument"] or "").strip())


@slash_command("context", "", "show the context window by slot, and what is not included")
async def _context(session: CommandSession, argument: str) -> None:
    manifest = await session.runtime.conversation.preview()
    session.screen.show_block(Group(*render_window(manifest, session.screen.console)))


@slash_command("why", "SEQ or NAME", "explain why a message or item is in the next request or not")
async def _why(session: CommandSession, argument: str) -> None:
    item = _require_argument(argument, "why SEQ or NAME")
    bare = item.removeprefix("#")
    manifest = await session.runtime.conversation.preview()
    decision = find_decision(manifest, int(bare) if bare.isdecimal() else item)
    session.screen.show_block(Group(*draw_explanation(item, decision, manifest)))


@slash_command("summary", "", "show the summary that replaces archived messages")
async def _summary(session: CommandSession, argument: str) -> None:
    session.screen.show_block(Group(*draw_summary(await load_active_compaction(session.runtime.conversation))))


@slash_command("compact", "[WHAT TO KEEP]", "archive older messages and summarize them")
async def _compact(session: CommandSession, argument: str) -> None:
    entry = await session.runtime.conversation.compact(instructions=argument or None)
    if entry is None:
        session.screen.show_note(NOTHING_TO_COMPACT)


@slash_command("undo", "", "undo the last compaction")
async def _undo(session: CommandSession, argument: str) -> None:
    runtime = session.runtime
    conversation, store = runtime.conversation, runtime.engine.store
    active = (await store.get_branch(conversation.id, conversation.branch)).state.active_compaction
    await conversation.undo_compaction()
    assert active is not None
    entry = await store.get_entry(conversation.id, active.seq, branch=conversation.branch)
    stats = await runtime.load_compaction_stats(entry)
    restored = f": {pluralize(stats.archived_messages, 'message')} restored" if stats.archived_messages else ""
    session.screen.show_note(f"Compaction {stats.number} undone{restored}.")
    report = await conversation.usage()
    if report.status == "over" and report.context_management_enabled:
        session.screen.show_note(
            f"The context has {report.total_tokens:,} tokens, so the next message compacts again (limit "
            f"{report.trigger_tokens:,}). Use a model with a larger context window, or raise `context_threshold`."
        )


@slash_command("attach", "[FILE]", "attach an image or a PDF to the next message, or list what is attached")
async def _attach(session: CommandSession, argument: str) -> None:
    if argument:
        session.attachments.append(await load_attachment(Path(argument), session.runtime.engine.store))
    if not session.attachments:
        session.screen.show_note("Nothing is attached; attach an image or a PDF with /attach FILE.")
        return
    names = ", ".join(each.name for each in session.attachments)
    session.screen.show_note(f"Attached to the next message: {names}; undo with /detach.")


@slash_command("detach", "", "remove the attachments of the next message")
async def _detach(session: CommandSession, argument: str) -> None:
    removed = pluralize(len(session.attachments), "attachment")
    session.attachments.clear()
    session.screen.show_note(f"Removed {removed} from the next message.")


@slash_command("add", "NAME", "add a rule, reference or tool of the agent to the session")
async def _add(session: CommandSession, argument: str) -> None:
    item = await session.runtime.conversation.add_item(_require_argument(argument, "add NAME"))
    session.screen.show_note(f"Added {_describe_item(item)}; every request includes it from now on.")


@slash_command("remove", "NAME", "remove an item from the session")
async def _remove(session: CommandSession, argument: str) -> None:
    item = await session.runtime.conversation.remove_item(_require_argument(argument, "remove NAME"))
    session.screen.show_note(f"Removed {_describe_item(item)}.")


@slash_command("pin", "SEQ", "pin message SEQ, so that no compaction archives it")
async def _pin(session: CommandSession, argument: str) -> None:
    number = _parse_number(argument, "pin SEQ")
    await session.runtime.conversation.pin(number)
    session.screen.show_note(f"Pinned #{number}: no compaction archives or shortens it.")


@slash_command("calls", "", "list all tool calls of the last turn")
async def _calls(session: CommandSession, argument: str) -> None:
    conversation, store = session.runtime.conversation, session.runtime.engine.store
    questions = await store.read_tail(conversation.id, 1, branch=conversation.branch, kinds=["message"], roles=["user"])
    first = questions[0].seq if questions else 1
    entries = await store.read_range(
        conversation.id, branch=conversation.branch, first=first, kinds=["message"], roles=["assistant", "tool"]
    )
    width = session.screen.console.width
    lines = [
        render_tool_result(each.call, each.result, width=width, prefix=f"#{each.seq} ") for each in pair_calls(entries)
    ]
    if lines:
        session.screen.show_block(Group(*lines))
    else:
        session.screen.show_note("The last turn has no tool calls.")


@slash_command("unpin", "SEQ", "unpin message SEQ")
async def _unpin(session: CommandSession, argument: str) -> None:
    number = _parse_number(argument, "unpin SEQ")
    conversation = session.runtime.conversation
    if number not in (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state.pins:
        raise InvalidRequest(f"#{number} is not pinned.")
    await conversation.unpin(number)
    session.screen.show_note(f"Unpinned #{number}.")


@slash_command("priority", "SEQ PRIORITY", "set the priority of message SEQ, 1 to 10; 0 resets it")
async def _priority(session: CommandSession, argument: str) -> None:
    number, _, value = argument.partition(" ")
    seq, priority = (_parse_number(each.strip(), "priority SEQ PRIORITY") for each in (number, value))
    await session.runtime.conversation.set_priority(seq, priority or None)
    session.screen.show_note(f"#{seq} has priority {priority}." if priority else f"#{seq} has the default priority.")


@slash_command("branch", "[SEQ]", "fork a branch at message SEQ, or here")
async def _branch(session: CommandSession, argument: str) -> None:
    runtime = session.runtime
    old = runtime.conversation
    head = (await runtime.engine.store.get_branch(old.id, old.branch)).head_seq
    at = _parse_number(argument, "branch [SEQ]") if argument else head
    runtime.conversation = await old.fork(at)
    session.screen.show_note(
        f"Now on branch {runtime.conversation.branch}, forked from #{at}; to go back, type /switch {old.branch}."
    )


@slash_command("switch", "[BRANCH]", "list the branches, or switch to one")
async def _switch(session: CommandSession, argument: str) -> None:
    runtime = session.runtime
    if not argument:
        store, conversation = runtime.engine.store, runtime.conversation
        table = Table(box=None, show_header=False, padding=(0, 1))
        for each in await store.list_branches(conversation.id):
            marker = "▸" if each.number == conversation.branch else ""
            newest = await store.read_tail(conversation.id, 1, branch=each.number, kinds=["message"], roles=["user"])
            question = Text(to_one_line(newest[0].message.text, 60) if newest else "", style="dim")
            start = f"from #{each.fork_seq}" if each.lineage else "from the start"
            table.add_row(marker, f"branch {each.number}", start, f"to #{each.head_seq}", question)
        session.screen.show_block(table)
        return
    number = _parse_number(argument, "switch [BRANCH]")
    branch = await runtime.engine.store.get_branch(runtime.conversation.id, number)
    runtime.conversation = Conversation(runtime.engine, runtime.conversation.id, number)
    session.screen.show_note(f"Now on branch {number}, at #{branch.head_seq}.")


@slash_command("retry", "", "ask the last question again")
async def _retry(session: CommandSession, argument: str) -> None:
    """Asks the last question again; an existing reply stays on its branch."""
    runtime = session.runtime
    if session.unrecorded_question is not None:
        await session.run_turn(session.unrecorded_question)
        return
    old, store = runtime.conversation, runtime.engine.store
    last = await store.read_tail(old.id, 1, branch=old.branch, kinds=["message"])
    questions = await store.read_tail(old.id, 1, branch=old.branch, kinds=["message"], roles=["user"])
    if not last or not questions:
        raise InvalidRequest("There is no question to retry yet.")
    if last[0].role == "assistant":
        at = questions[0].seq
        runtime.conversation = await old.fork(at)
        session.screen.show_note(
            f"Now on branch {runtime.conversation.branch}, forked from #{at}; the old reply is on /switch {old.branch}."
        )
    await session.run_turn(None)


@slash_command("model", "[NAME]", "show the model, or change it")
async def _model(session: CommandSession, argument: str) -> None:
    runtime = session.runtime
    if not argument:
        window = describe_window(runtime.engine.config)
        session.screen.show_note(f"The model is {runtime.engine.settings.model}; {window}. Change it with /model NAME.")
        return
    runtime.use_model(argument)
    session.screen.show_note(f"{argument} answers from now on; {describe_window(runtime.engine.config)}.")
    try:
        meter = await runtime.read_meter()
    except ContextOverflow:
        active = runtime.conversation
        if await Compactor(active.engine, active.id, active.branch).shorten_summary() is None:
            raise
        session.screen.show_note("The summary did not fit this window and was shortened; /undo restores it.")
        meter = await runtime.read_meter()
    session.screen.show_meter(meter)


@slash_command("export", "PATH", "export the conversation: a transcript to a .md file, else all data")
async def _export(session: CommandSession, argument: str) -> None:
    conversation, store = session.runtime.conversation, session.runtime.engine.store
    path = await asyncio.to_thread(Path(_require_argument(argument, "export PATH")).expanduser)
    if await asyncio.to_thread(path.exists):
        raise InvalidRequest(f"{path} already exists; choose another name.")
    document = await export_to_file(store, conversation.id, path, branch=conversation.branch)
    session.screen.show_note(format_export(document))


@slash_command("help", "", "show this list")
async def _help(session: CommandSession, argument: str) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for command in COMMANDS:
        table.add_row(Text(f"/{command.name} {command.usage}".strip(), style="cyan"), command.description)
    for keys, description in KEY_HELP:
        table.add_row(Text(keys, style="cyan"), description)
    session.screen.show_block(table)


@slash_command("quit", "", "quit")
async def _quit(session: CommandSession, argument: str) -> None:
    session.is_quitting = True


KEY_HELP = (
    ("[[ and @", "refer to a note or a file; Tab completes"),
    ("Alt-Enter, or \\ at a line's end", "new line"),
    ("Ctrl-C", "stop the reply"),
    ("Ctrl-D", "quit"),
)


async def load_argument_items(session: CommandSession) -> dict[str, Sequence[CompletionItem]]:
    """Loads the arguments that each command accepts now, for completion."""
    conversation, engine = session.runtime.conversation, session.runtime.engine
    store, branch = engine.store, conversation.branch
    in_session = [each.item for each in await conversation.items()]
    available = [item for item in index_agent_items(engine.agent) if item not in in_session]
    recent = await store.read_tail(conversation.id, RECENT_MESSAGE_COUNT, branch=branch, kinds=["message"])
    numbers = [
        CompletionItem(str(entry.seq), f"{entry.role}: {to_one_line(entry.message.text)}") for entry in reversed(recent)
    ]
    pins = (await store.get_branch(conversation.id, branch)).state.pins
    return {
        "add": [CompletionItem(item.name, item.type) for item in available],
        "remove": [CompletionItem(item.name, item.type) for item in in_session],
        "why": [*numbers, *(CompletionItem(item.name, item.type) for item in in_session)],
        "pin": numbers,
        "unpin": [CompletionItem(str(number)) for number in pins],
        "priority": numbers,
        "branch": numbers,
        "switch": [CompletionItem(str(each.number), each.name) for each in await store.list_branches(conversation.id)],
        "model": [CompletionItem(engine.settings.model)],
    }


def _describe_item(item: "ContextItem") -> str:
    return f"the {item.type} {item.name}"


def _require_argument(argument: str, usage: str) -> str:
    if not argument:
        raise InvalidRequest(f"The argument is missing; usage: /{usage}.")
    return argument


def _parse_number(argument: str, usage: str) -> int:
    text = argument.removeprefix("#")
    if not text.isdecimal():
        raise InvalidRequest(
            f"{argument!r} is not a number; usage: /{usage}. The line below each reply has its number."
        )
    return int(text)
