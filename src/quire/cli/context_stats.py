"""`quire context stats`: a conversation in numbers, added up from its log."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.cli.output import fields, give, moment, text, timestamp
from quire.cli.progress import progress
from quire.cli.running import About, AsJson, branch_command, conversation_named, group, opened_store, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch, SqlStore
    from quire.model import Entry

app = group("")

PAGE = 2_000


@dataclass(slots=True)
class Tally:
    """What a branch's entries add up to."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    roles: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    purged: int = 0
    replies: int = 0
    last_at: int | None = None

    def take(self, entry: "Entry") -> None:
        self.kinds[entry.kind] += 1
        self.last_at = entry.at
        self.purged += entry.purged_at is not None
        if entry.kind != "message":
            return
        self.roles[entry.role or ""] += 1
        self.tokens["stored"] += entry.tokens or 0
        usage = entry.notes.usage if entry.raw_notes else None
        if usage is not None:
            self.replies += 1
            self.tokens["input"] += usage.input_tokens
            self.tokens["output"] += usage.output_tokens
            self.tokens["cache_read"] += usage.cache_read_tokens


@branch_command(app, "quire context stats")
def stats(
    target: About,
    *,
    as_json: AsJson = False,
) -> None:
    """Add up a conversation: messages, tokens, compactions, what its replies used and cost."""
    found = run(_stats(target))

    def draw(_: Any) -> "Iterable[RenderableType]":
        tokens, messages, log = found["tokens"], found["messages"], found["entries"]
        yield text(f"{found['conversation']}, branch {found['branch']}", style="bold")
        yield fields(
            [
                ("begun", moment(found["at"][0])),
                ("last entry", moment(found["at"][1])),
                ("entries", sum(log.values())),
                ("messages", ", ".join(f"{count:,} {role}" for role, count in messages.items()) or "none"),
                ("archived", f"entries up to #{found['archived_up_to']:,}" if found["archived_up_to"] else "nothing"),
                ("compactions", found["compactions"]),
                ("pins", found["pins"]),
                ("branches", found["branches"]),
                ("purged", found["purged"] or None),
                ("tokens of all messages", tokens["stored"]),
                ("replies with usage", found["replies"]),
                ("input tokens", tokens["input"]),
                ("of these from cache", tokens["cache_read"]),
                ("output tokens", tokens["output"]),
                ("cost", f"${found['spent']:.4f}"),
            ]
        )

    shown = {name: value for name, value in found.items() if name != "at"}
    times = {"begun_at": timestamp(found["at"][0]), "last_at": timestamp(found["at"][1])}
    give(shown | times, draw, as_json=as_json)


async def _stats(target: About) -> dict[str, Any]:
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        branch = await store.branch(named, target.branch)
        tally = await _tally(store, branch)
        active = branch.state.active
        return {
            "conversation": named,
            "branch": branch.number,
            "at": ((await store.conversation(named)).created_at, tally.last_at),
            "entries": dict(sorted(tally.kinds.items())),
            "messages": dict(sorted(tally.roles.items())),
            "archived_up_to": active.covers.last if active is not None and active.covers is not None else None,
            "compactions": branch.state.compactions,
            "pins": len(branch.state.pins),
            "branches": len(await store.branches(named)),
            "purged": tally.purged,
            "replies": tally.replies,
            "tokens": {name: tally.tokens[name] for name in ("stored", "input", "output", "cache_read")},
            "spent": await store.spent(named),
        }


async def _tally(store: "SqlStore", branch: "Branch") -> Tally:
    tally = Tally()
    with progress("Reading the log") as so_far:
        for first in range(1, branch.head_seq + 1, PAGE):
            last = first + PAGE - 1
            for entry in await store.range(branch.conversation, branch=branch.number, first=first, last=last):
                tally.take(entry)
            so_far.at(min(last, branch.head_seq), branch.head_seq)
    return tally
