"""The commands that begin with a slash. Each does one thing by the library, and says what it did."""

import re
from collections.abc import Callable, Coroutine, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quire.cli.chat.completion import Named
from quire.cli.chat.export import export
from quire.cli.output import counted, one_line
from quire.cli.window import drawn
from quire.context.items import available
from quire.engine import Conversation
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from quire.cli.chat.session import Session
    from quire.model import ContextItem

Run = Callable[["Session", str], Coroutine[Any, Any, None]]

_COMMAND = re.compile(r"/(?P<name>[a-z]+)(?:\s+(?P<given>.*))?\s*\Z", re.DOTALL)
RECENT = 20
"""So many of the newest messages are offered by number."""


class Command(NamedTuple):
    name: str
    takes: str
    does: str
    run: Run


class Call(NamedTuple):
    command: Command
    given: str


def parsed(line: str) -> Call | None:
    """The command in a line; None if it is a message, such as one that begins with a path or with a blank."""
    found = _COMMAND.match(line)
    if found is None:
        return None
    name = found["name"]
    command = next((each for each in COMMANDS if each.name == name), None)
    if command is None:
        near = get_close_matches(name, [each.name for each in COMMANDS], n=1)
        instead = f"did you mean /{near[0]}?" if near else "/help lists those that there are."
        raise InvalidRequest(f"There is no command /{name}; {instead} A blank before it makes it a message.")
    return Call(command, (found["given"] or "").strip())


async def _context(session: "Session", given: str) -> None:
    """What the meter shows, by slot."""
    manifest = await session.talk.conversation.preview()
    session.screen.put(Group(*drawn(manifest, session.screen.console)))


async def _compact(session: "Session", given: str) -> None:
    entry = await session.talk.conversation.compact(instructions=given or None)
    if entry is None:
        session.screen.note("There is nothing to compact.")


async def _undo(session: "Session", given: str) -> None:
    talk = session.talk
    branch = await talk.engine.store.branch(talk.conversation.id, talk.conversation.branch)
    active = branch.state.active
    await talk.conversation.undo()
    assert active is not None
    entry = await talk.engine.store.entry(talk.conversation.id, active.seq, branch=talk.conversation.branch)
    done = await talk.archived(entry)
    seen = f": {counted(done.messages, 'message')} seen again" if done.messages else ""
    session.screen.note(f"Compaction #{done.number} is taken back{seen}.")
    report = await talk.conversation.usage()
    if report.status == "over":
        session.screen.note(
            f"That is {report.total:,} tokens: above {report.trigger:,} the next message compacts again. "
            "A model with a larger window, or a higher `context_threshold`, gives it room."
        )


async def _add(session: "Session", given: str) -> None:
    item = await session.talk.conversation.add(_needed(given, "add NAME"))
    session.screen.note(f"Added {_shown(item)}; it is in every request from now on.")


async def _remove(session: "Session", given: str) -> None:
    item = await session.talk.conversation.remove(_needed(given, "remove NAME"))
    session.screen.note(f"Removed {_shown(item)}.")


async def _pin(session: "Session", given: str) -> None:
    number = _number(given, "pin N")
    await session.talk.conversation.pin(number)
    session.screen.note(f"Pinned #{number}: it stays in view, word for word, whatever is compacted.")


async def _unpin(session: "Session", given: str) -> None:
    number = _number(given, "unpin N")
    here = session.talk.conversation
    if number not in (await here.engine.store.branch(here.id, here.branch)).state.pins:
        raise InvalidRequest(f"#{number} is not pinned.")
    await session.talk.conversation.unpin(number)
    session.screen.note(f"#{number} is not pinned any more.")


async def _branch(session: "Session", given: str) -> None:
    talk = session.talk
    here = talk.conversation
    head = (await talk.engine.store.branch(here.id, here.branch)).head_seq
    at = _number(given, "branch [N]") if given else head
    talk.conversation = await here.fork(at)
    session.screen.note(
        f"Branch {talk.conversation.branch}, from #{at} on; /switch {here.branch} goes back to where you were."
    )


async def _switch(session: "Session", given: str) -> None:
    talk = session.talk
    if not given:
        session.screen.put(await _branches(session))
        return
    number = _number(given, "switch [BRANCH]")
    branch = await talk.engine.store.branch(talk.conversation.id, number)
    talk.conversation = Conversation(talk.engine, talk.conversation.id, number)
    session.screen.note(f"Branch {number}, at #{branch.head_seq}.")


async def _branches(session: "Session") -> Table:
    talk = session.talk
    table = Table(box=None, show_header=False, padding=(0, 1))
    for branch in await talk.engine.store.branches(talk.conversation.id):
        here = "▸" if branch.number == talk.conversation.branch else ""
        newest = await talk.engine.store.tail(
            talk.conversation.id, 1, branch=branch.number, kinds=["message"], roles=["user"]
        )
        last = one_line(newest[0].message.text, 60) if newest else ""
        begins = f"from #{branch.fork_seq}" if branch.lineage else "from the beginning"
        table.add_row(here, f"branch {branch.number}", begins, f"to #{branch.head_seq}", Text(last, style="dim"))
    return table


async def _model(session: "Session", given: str) -> None:
    talk = session.talk
    if not given:
        session.screen.note(f"{talk.engine.settings.model} answers; /model NAME chooses another.")
        return
    talk.use_model(given)
    window = talk.engine.policy.window
    session.screen.note(f"{given} answers from now on; its window is taken to be {window:,} tokens.")
    session.screen.meter(await talk.reading())


async def _retry(session: "Session", given: str) -> None:
    """A reply that is there stays on its branch."""
    talk = session.talk
    here = talk.conversation
    last = await talk.engine.store.tail(here.id, 1, branch=here.branch, kinds=["message"])
    asked = await talk.engine.store.tail(here.id, 1, branch=here.branch, kinds=["message"], roles=["user"])
    if not last or not asked:
        raise InvalidRequest("Nothing was asked yet.")
    if last[0].role == "assistant":
        talk.conversation = await here.fork(asked[0].seq)
        session.screen.note(
            f"Branch {talk.conversation.branch}, from #{asked[0].seq} on; /switch {here.branch} has the reply before."
        )
    await session.turn(None)


async def _export(session: "Session", given: str) -> None:
    talk = session.talk
    path = await export(talk.engine.store, talk.conversation, _needed(given, "export PATH"))
    session.screen.note(f"Wrote {path}.")


async def _help(session: "Session", given: str) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for command in COMMANDS:
        table.add_row(Text(f"/{command.name} {command.takes}".strip(), style="cyan"), command.does)
    for keys, does in KEYS:
        table.add_row(Text(keys, style="cyan"), does)
    session.screen.put(table)


async def _quit(session: "Session", given: str) -> None:
    session.leaving = True


COMMANDS = (
    Command("context", "", "what the window holds, by slot, and what is left out", _context),
    Command("compact", "[WHAT TO KEEP]", "archive the older part behind a summary", _compact),
    Command("undo", "", "take the last compaction back", _undo),
    Command("add", "NAME", "bring a rule, a reference or a tool of the agent's into the session", _add),
    Command("remove", "NAME", "take one out", _remove),
    Command("pin", "N", "keep message N in view, whatever is compacted", _pin),
    Command("unpin", "N", "let it be compacted again", _unpin),
    Command("branch", "[N]", "go another way from message N, or from here", _branch),
    Command("switch", "[BRANCH]", "list the branches, or go to one", _switch),
    Command("retry", "", "ask again for a reply to what was asked last", _retry),
    Command("model", "[NAME]", "say which model answers, or choose another", _model),
    Command("export", "PATH", "write the conversation: readable to a .md file, whole to any other", _export),
    Command("help", "", "this list", _help),
    Command("quit", "", "leave", _quit),
)
KEYS = (
    ("[[ and @", "a note or a file that the message refers to; Tab completes"),
    ("Alt-Enter, or \\ at a line's end", "another line"),
    ("Ctrl-C", "stop the reply"),
    ("Ctrl-D", "leave"),
)


async def arguments(session: "Session") -> dict[str, Sequence[Named]]:
    """What each command can be given now, for completion."""
    talk, store = session.talk, session.talk.engine.store
    named, branch = talk.conversation.id, talk.conversation.branch
    inside = [each.item for each in await talk.conversation.items()]
    outside = [item for item in available(talk.engine.agent) if item not in inside]
    recent = await store.tail(named, RECENT, branch=branch, kinds=["message"])
    numbers = [Named(str(entry.seq), f"{entry.role}: {one_line(entry.message.text)}") for entry in reversed(recent)]
    pins = (await store.branch(named, branch)).state.pins
    return {
        "add": [Named(item.name, item.type) for item in outside],
        "remove": [Named(item.name, item.type) for item in inside],
        "pin": numbers,
        "unpin": [Named(str(number)) for number in pins],
        "branch": numbers,
        "switch": [Named(str(each.number), each.name) for each in await store.branches(named)],
        "model": [Named(talk.engine.settings.model)],
    }


def _shown(item: "ContextItem") -> str:
    return f"the {item.type} {item.name}"


def _needed(given: str, usage: str) -> str:
    if not given:
        raise InvalidRequest(f"Something is missing: /{usage}.")
    return given


def _number(given: str, usage: str) -> int:
    text = given.removeprefix("#")
    if not text.isdecimal():
        raise InvalidRequest(f"{given or 'Nothing'!r} is no number: /{usage}. The numbers stand below each reply.")
    return int(text)
