"""`quire context replay`, `diff` and `why`: requests built again, compared, and explained, from their records."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.manifests import manifest_of
from quire.cli.output import fields, give, print_json, table, text
from quire.cli.running import (
    FAILED,
    About,
    AsJson,
    ReplyNumber,
    WithServers,
    branch_command,
    group,
    opened_conversation,
    run,
)
from quire.errors import EntryNotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.ledger import Change, Replay
    from quire.model import Decision

app = group("")


async def _newest(conversation: "Conversation", many: int) -> list[int]:
    """The replies to the newest requests, oldest first."""
    store = conversation.engine.store
    found = [seq for seq, _ in await store.manifests(conversation.id, branch=conversation.branch, limit=many)]
    if len(found) < many:
        there = "no request" if not found else "only one request"
        raise EntryNotFound(f"{conversation.id} has {there} on record; requests are kept with their replies.")
    return found


@branch_command(app, "quire context replay")
def replay(
    target: About,
    *,
    reply: ReplyNumber = None,
    request: Annotated[bool, typer.Option("--request", help="Print the request itself, as it was sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a request again from its record and compare it to the byte; the newest, unless a reply names another.

    The exit code is 1 if it does not come out as it was.
    """
    named, number, made = run(_replayed(target, reply))
    payload = made.pages.payload() if made.pages is not None else None
    found = {
        "conversation": named,
        "branch": target.branch,
        "reply": number,
        "matches": made.matches,
        "recorded": made.manifest.digest,
        "rebuilt": made.pages.digest if made.pages is not None else None,
        "missing": list(made.missing),
        "request": payload,
    }

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield text(f"The request that #{number} answered {'comes out as it was' if made.matches else 'DIFFERS'}.")
        yield fields(
            [
                ("recorded", found["recorded"]),
                ("rebuilt", found["rebuilt"] or "it cannot be"),
                ("gone", ", ".join(made.missing) or None),
                ("tokens", made.manifest.total),
            ]
        )

    if request and not as_json:
        print_json(payload or {})
    else:
        give(found, draw, as_json=as_json)
    if not made.matches:
        raise typer.Exit(FAILED)


async def _replayed(target: About, reply: int | None) -> "tuple[str, int, Replay]":
    async with opened_conversation(target) as conversation:
        number = reply if reply is not None else (await _newest(conversation, 1))[0]
        return conversation.id, number, await conversation.replay(number)


@branch_command(app, "quire context diff")
def diff(
    target: About,
    *,
    before: Annotated[
        int | None, typer.Option("--from", metavar="NUMBER", min=1, help="The reply to the earlier request.")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", metavar="NUMBER", min=1, help="The reply to the later request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed from one request to another; from the last but one to the last, unless replies are named."""
    named, (first, second), changes = run(_compared(target, before, after))
    listed = [
        {
            "what": each.what,
            "name": each.name,
            "span": None if each.span is None else {"first": each.span.first, "last": each.span.last},
            "before": _fate(each.before),
            "after": _fate(each.after),
        }
        for each in changes
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield text(f"From the request that #{first} answered to the one that #{second} answered")
        yield table(
            "what", "which", "before", "after",
            rows=[(each.what, _which(each), _said(each.before), _said(each.after)) for each in changes],
            wide=("which", "before", "after"),
        ) if changes else text("Nothing changed.")  # fmt: skip

    document = {"conversation": named, "branch": target.branch, "from": first, "to": second, "changes": listed}
    give(document, draw, as_json=as_json)


async def _compared(
    target: About, before: int | None, after: int | None
) -> "tuple[str, tuple[int, int], list[Change]]":
    async with opened_conversation(target) as conversation:
        if before is None or after is None:
            earlier, later = await _newest(conversation, 2)
            before, after = before or earlier, after or later
        return conversation.id, (before, after), await conversation.diff(before, after)


def _fate(decision: "Decision | None") -> dict[str, Any] | None:
    return None if decision is None else decision.model_dump(mode="json", exclude_none=True)


def _which(change: "Change") -> str:
    if change.name is not None or change.span is None:
        return change.name or ""
    first, last = change.span.first, change.span.last
    return f"#{first}" if first == last else f"#{first} to #{last}"


def _said(decision: "Decision | None") -> str:
    from quire.cli.window import why_said

    if decision is None:
        return "-"
    return f"{'in' if decision.included else 'out'}: {why_said(decision)}"


@branch_command(app, "quire context why 2")
def why(
    target: About,
    item: Annotated[str, typer.Argument(help="A message by its number, or an item by its name.")],
    *,
    reply: ReplyNumber = None,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """Say why a message or an item is in the next request or is not; or in the one that a reply names."""
    named, found = run(_explained(target, item, reply, servers=servers))

    def draw(_: Any) -> "Iterable[RenderableType]":
        from quire.cli.window import which, why_said

        yield text(f"{item}: {'in' if found.included else 'left out'} ({why_said(found)})")
        yield fields(
            [
                ("what", found.what),
                ("which", which(found)),
                ("slot", found.slot),
                ("tokens", found.tokens or None),
                ("score", found.score),
            ]
        )

    document = {"conversation": named, "branch": target.branch, "reply": reply, "item": item, "decision": _fate(found)}
    give(document, draw, as_json=as_json)


async def _explained(target: About, item: str, reply: int | None, *, servers: bool) -> "tuple[str, Decision]":
    from quire.ledger import why as explain

    async with opened_conversation(target, servers=servers and reply is None) as conversation:
        bare = item.removeprefix("#")
        return conversation.id, explain(await manifest_of(conversation, reply), int(bare) if bare.isdecimal() else item)
