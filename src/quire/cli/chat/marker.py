"""What a compaction did, as people are told of it, and the mark that says so in the midst of a chat."""

from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.rule import Rule
from rich.text import Text

from quire.cli.output import counted
from quire.model import Compaction

if TYPE_CHECKING:
    from quire.log import Store
    from quire.model import Entry


class Archived(NamedTuple):
    number: int
    messages: int
    """Newly archived: those before belong to the compaction before."""
    tokens: int
    """Freed."""
    shortened: int = 0
    """Messages of which only a part is shown from now on."""
    extracted: bool = False
    """The summary was made without a model."""
    failures: tuple[str, ...] = ()


async def archived(store: "Store", entry: "Entry") -> Archived:
    body = entry.body
    assert isinstance(body, Compaction)
    before = None
    if body.supersedes is not None:
        below = (await store.entry(entry.conversation, body.supersedes, branch=entry.branch)).body
        before = below if isinstance(below, Compaction) else None
    first = before.covers.last + 1 if before is not None and before.covers is not None else 1
    last = body.covers.last if body.covers is not None else 0
    messages = (
        await store.range(entry.conversation, branch=entry.branch, first=first, last=last, kinds=["message"])
        if last >= first
        else []
    )
    known = {each.message for each in (before.shortened or ())} if before is not None else set[int]()
    return Archived(
        number=body.number,
        messages=len(messages),
        tokens=max(0, body.tokens_before - body.tokens_after),
        shortened=sum(each.message not in known for each in body.shortened or ()),
        extracted=body.summary is not None and body.model is None,
        failures=body.failures or (),
    )


def told(done: Archived) -> str:
    what = [f"{counted(done.messages, 'message')} archived"] if done.messages else []
    what += [f"{counted(done.shortened, 'long message')} shortened"] if done.shortened else []
    back = "them" if done.messages + done.shortened != 1 else "it"
    return f"{', '.join(what) or 'Summary renewed'}, {done.tokens:,} tokens freed; /undo brings {back} back"


def marker(done: Archived) -> Group:
    title = Text(f"Context compacted #{done.number}", style="bold yellow")
    failed = [Text(f"A summary failed ({each}); the next way was taken.", style="dim") for each in done.failures]
    line = Text(told(done), style="yellow", justify="center")
    return Group(Rule(title, style="yellow"), line, *failed, Rule(style="yellow"))
