"""`quire context replay`, `diff` and `why`: rebuild, compare and explain requests from their manifests."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import (
    EXIT_FAILED,
    AsJson,
    CommandTarget,
    ReplyNumber,
    WithServers,
    branch_command,
    create_group,
    open_conversation,
    run_async,
)
from quire.cli.output import make_field_table, make_table, make_text, print_json, print_result
from quire.errors import EntryNotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Conversation
    from quire.ledger import ManifestChange, Replay
    from quire.model import Decision, Manifest

app = create_group("")


async def _find_newest_replies(conversation: "Conversation", count: int) -> list[int]:
    """Returns the numbers of the newest replies that have a manifest, oldest first."""
    store = conversation.engine.store
    seqs = [seq for seq, _ in await store.list_manifests(conversation.id, branch=conversation.branch, limit=count)]
    if len(seqs) < count:
        recorded = "no recorded request" if not seqs else "only one recorded request"
        raise EntryNotFound(f"{conversation.id} has {recorded}; a request is recorded with its reply.")
    return seqs


@branch_command(app, "quire context replay")
def replay(
    target: CommandTarget,
    *,
    reply: ReplyNumber = None,
    request: Annotated[bool, typer.Option("--request", help="Print the request as it was sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild a request from its manifest and compare it byte by byte: the newest, or that of `--reply`.

    The exit code is 1 if the rebuilt request differs.
    """
    from quire.schemas.context import ReplaySchema

    conversation_id, number, replayed = run_async(_replay_request(target, reply))
    schema = ReplaySchema.from_replay(replayed)
    document = {"conversation": conversation_id, "branch": target.branch, "reply": number}

    def draw(_: Any) -> "Iterable[RenderableType]":
        outcome = "is identical to what was sent" if replayed.matches else "DIFFERS from what was sent"
        yield make_text(f"The rebuilt request that #{number} answered {outcome}.")
        yield make_field_table(
            [
                ("recorded", schema.recorded_digest),
                ("rebuilt", schema.rebuilt_digest or "not possible"),
                ("reason", schema.mismatch),
                ("missing", ", ".join(replayed.missing) or None),
                ("tokens", replayed.manifest.total_tokens),
            ]
        )

    if request and not as_json:
        print_json(schema.payload or {})
    else:
        print_result(document | schema.model_dump(mode="json"), draw, as_json=as_json)
    if not replayed.matches:
        raise typer.Exit(EXIT_FAILED)


async def _replay_request(target: CommandTarget, reply: int | None) -> "tuple[str, int, Replay]":
    async with open_conversation(target) as conversation:
        number = reply if reply is not None else (await _find_newest_replies(conversation, 1))[0]
        return conversation.id, number, await conversation.replay(number)


@branch_command(app, "quire context diff")
def diff(
    target: CommandTarget,
    *,
    before: Annotated[
        int | None, typer.Option("--from", metavar="NUMBER", min=1, help="The reply to the earlier request.")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", metavar="NUMBER", min=1, help="The reply to the later request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two requests: the last two, or those of `--from` and `--to`."""
    from quire.schemas.context import RequestDiffSchema

    conversation_id, (first, second), changes = run_async(_compare_requests(target, before, after))
    schema = RequestDiffSchema.from_changes(changes, reply=first, other=second)

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_text(f"From the request that #{first} answered to the one that #{second} answered")
        yield make_table(
            "kind", "item", "before", "after",
            rows=[
                (each.kind, _format_subject(each), _format_decision(each.before), _format_decision(each.after))
                for each in changes
            ],
            wrapped=("item", "before", "after"),
        ) if changes else make_text("Nothing changed.")  # fmt: skip

    document = {"conversation": conversation_id, "branch": target.branch}
    print_result(document | schema.model_dump(mode="json"), draw, as_json=as_json)


async def _compare_requests(
    target: CommandTarget, before: int | None, after: int | None
) -> "tuple[str, tuple[int, int], list[ManifestChange]]":
    async with open_conversation(target) as conversation:
        if before is None or after is None:
            earlier, later = await _find_newest_replies(conversation, 2)
            before, after = before or earlier, after or later
        return conversation.id, (before, after), await conversation.diff(before, after)


def _format_subject(change: "ManifestChange") -> str:
    if change.name is not None or change.span is None:
        return change.name or ""
    first, last = change.span.first, change.span.last
    return f"#{first}" if first == last else f"#{first} to #{last}"


def _format_decision(decision: "Decision | None") -> str:
    from quire.cli.context_window import explain_decision

    if decision is None:
        return "-"
    return f"{'in' if decision.included else 'out'}: {explain_decision(decision)}"


@branch_command(app, "quire context why 2")
def why(
    target: CommandTarget,
    item: Annotated[str, typer.Argument(help="A message number, or the name of an item.")],
    *,
    reply: ReplyNumber = None,
    servers: WithServers = False,
    as_json: AsJson = False,
) -> None:
    """Explain why a message or item is in the next request or not; with `--reply`, in an earlier one."""
    conversation_id, decision = run_async(_explain_item(target, item, reply, servers=servers))

    def draw(_: Any) -> "Iterable[RenderableType]":
        from quire.cli.context_window import explain_decision, format_decision_subject

        yield make_text(f"{item}: {'included' if decision.included else 'not included'} ({explain_decision(decision)})")
        yield make_field_table(
            [
                ("kind", decision.kind),
                ("item", format_decision_subject(decision)),
                ("slot", decision.slot),
                ("tokens", decision.tokens or None),
                ("score", decision.score),
            ]
        )

    document = {
        "conversation": conversation_id,
        "branch": target.branch,
        "reply": reply,
        "item": item,
        "decision": decision.model_dump(mode="json"),
    }
    print_result(document, draw, as_json=as_json)


async def _explain_item(
    target: CommandTarget, item: str, reply: int | None, *, servers: bool
) -> "tuple[str, Decision]":
    from quire.ledger import find_decision

    async with open_conversation(target, servers=servers and reply is None) as conversation:
        bare = item.removeprefix("#")
        manifest = await load_manifest(conversation, reply)
        return conversation.id, find_decision(manifest, int(bare) if bare.isdecimal() else item)


async def load_manifest(conversation: "Conversation", reply: int | None) -> "Manifest":
    """Loads the manifest of the request that the reply answered, or previews that of the next request."""
    return await conversation.preview() if reply is None else await conversation.manifest(reply)
