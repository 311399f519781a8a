"""`quire context`: the window, the summary, the session's items, pins and priorities, and past requests.

`show` describes the next request, or with `--reply` an earlier one, and writes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import context_changes
from quire.cli.common import (
    EXIT_FAILED,
    CommandTarget,
    ReplyNumber,
    WithServers,
    command,
    create_group,
    name_conversation,
    open_conversation,
)
from quire.cli.context_changes import format_waiting_edits, load_active_compaction, load_waiting_edits
from quire.cli.context_messages import DEFAULT_ENTRY_LIMIT, show_messages
from quire.cli.context_window import (
    count_items,
    draw_request,
    draw_unanswered,
    explain_decision,
    format_decision_subject,
)
from quire.cli.engine_setup import format_not_started, list_enabled_servers
from quire.cli.output import (
    Result,
    Verbatim,
    format_compaction,
    format_json,
    format_local_time,
    make_field_table,
    make_table,
    make_text,
    pluralize,
    print_note,
    to_one_line,
)
from quire.cli.usage import show_usage
from quire.errors import EntryNotFound, InvalidRequest, format_usd
from quire.model.entry_bodies import IMPORTED_STRATEGY
from quire.model.state import MAX_BRANCH_DROPS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.engine import Conversation
    from quire.ledger.cache_history import CacheReport
    from quire.log.exchanges import ExchangeRecord
    from quire.model import Decision, Manifest
    from quire.model.manifest import LearnedRank
    from quire.proxy.edit_effects import RestoredCounts
    from quire.schemas.context import (
        ActiveCompactionSchema,
        ContextItemSchema,
        EditEffectSchema,
    )

app = create_group("Show what the model sees of a conversation, and change it.")

MessageNumbers = Annotated[str, typer.Argument(metavar="SEQ,...", help="Sequence numbers, such as 3,7-9.")]
Now = Annotated[bool, typer.Option("--now", help="At the next turn, even if the prompt cache is still warm.")]
MessageNumber = Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The sequence number of the message.")]


@command(app, "quire context show")
async def show(
    target: CommandTarget,
    *,
    reply: ReplyNumber = None,
    unfold_all: Annotated[bool, typer.Option("--all", help="List what every section includes.")] = False,
    servers: WithServers = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print the messages instead, with compactions and archived ones.")
    ] = False,
    first: Annotated[
        int | None, typer.Option(metavar="SEQ", min=1, help="Messages from this entry on. Default: the newest.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Number of messages. Default: {DEFAULT_ENTRY_LIMIT}, or the whole newest turn."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Messages with every tool call and its result.")] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print the summary of archived messages, and how it was made.")
    ] = False,
    usage: Annotated[
        bool, typer.Option("--usage", help="Print counts of messages, tokens and compactions, and the cost.")
    ] = False,
    request: Annotated[
        bool, typer.Option("--request", help="Print the request as it was sent, or as the log gives it back.")
    ] = False,
) -> Result:
    """Draw the context window by slot: what the next request includes, what it omits, and why.

    For the session of an agent, it is the agent's last request. With an option, print messages, summary, usage or the
    request itself.
    """
    if sum((messages, summary, usage, request)) > 1:
        raise typer.BadParameter("--messages, --summary, --usage and --request exclude each other.")
    if messages or full or first is not None or limit is not None:
        return await show_messages(target, first=first, limit=limit, full=full)
    if summary:
        return await _show_summary(target)
    if usage:
        return await show_usage(target)
    if request:
        return await _show_request(target, reply)
    from quire.engine.client_requests import find_last_client_request
    from quire.ledger.timeline import list_unanswered
    from quire.schemas.entries import entry_to_schema

    is_named = reply is not None
    async with open_conversation(target, servers=servers and not is_named) as conversation:
        if reply is None:
            last = await find_last_client_request(conversation.engine.store, conversation.id, conversation.branch)
            reply = last.seq if last is not None else None
        is_next = reply is None
        missing = list_enabled_servers(conversation.engine.agent) if is_next and not servers else []
        manifest = await _load_manifest(conversation, reply)
        store = conversation.engine.store
        entry = await store.get_entry(conversation.id, reply, branch=conversation.branch) if reply is not None else None
        waiting = await load_waiting_edits(conversation) if not is_named else None
        restored = await _load_restored(conversation, manifest) if not is_next else None
        unanswered: list[ExchangeRecord] = []
        if not is_named:
            unanswered = await list_unanswered(
                store, conversation.id, branch=conversation.branch, since=max(0, (reply or 0) - 1)
            )
    answer = entry_to_schema(entry) if entry is not None else None
    document = {
        "conversation": manifest.conversation,
        "branch": manifest.branch,
        "waiting": waiting,
        "reply": reply,
        "manifest": manifest,
        "item_counts": count_items(manifest),
        "entry": answer,
        "servers_not_started": missing,
        "restored": restored,
        "unanswered": unanswered,
    }

    def draw(console: "Console") -> "Iterable[RenderableType]":
        yield from draw_request(manifest, console, reply=reply, unfolded=unfold_all, answer=answer)
        if restored is not None:
            yield make_text(
                f"\nOf what the agent's compaction replaced, it had {restored.messages:,} of "
                f"{pluralize(restored.all_messages, 'message')} and {restored.results:,} of "
                f"{pluralize(restored.all_results, 'tool result')}."
            )
        yield from draw_unanswered(unanswered)
        if waiting is not None:
            yield make_text(f"\n{_name_waiting(waiting)}")
            yield make_text("\n".join(format_waiting_edits(waiting)))
        if missing:
            yield make_text(f"\n{format_not_started(missing)}")

    return Result(document, draw)


async def _load_restored(conversation: "Conversation", manifest: "Manifest") -> "RestoredCounts | None":
    if not any(each.reason == "restored" for each in manifest.included):
        # The import below takes a tenth of a second.
        return None
    from quire.proxy.edit_effects import load_restored

    return await load_restored(conversation, manifest)


async def _show_summary(target: CommandTarget) -> Result:
    """The summary that replaces archived messages, and how it was made."""
    async with open_conversation(target) as conversation:
        active = await load_active_compaction(conversation)
    document = {"conversation": conversation.id, "branch": conversation.branch, "active": active}
    return Result(document, lambda _: draw_summary(active))


def draw_summary(active: "ActiveCompactionSchema | None") -> "Iterable[RenderableType]":
    if active is None:
        yield make_text("Nothing is compacted: the model sees every message.")
        return
    compaction = active.compaction
    yield make_text(format_compaction(compaction), style="bold")
    is_imported = compaction.strategy == IMPORTED_STRATEGY
    writer = compaction.model or ("the program that it is imported from" if is_imported else None)
    by = f"written by {writer}" if writer else "extracted without a model"
    if compaction.is_sealed:
        by, missing = "made by the provider", "The summary cannot be read: only the provider can."
    else:
        missing = "No summary: the messages are archived without one."
    yield make_text(f"{format_local_time(active.created_at)}, {compaction.trigger}; {by}", style="dim")
    yield make_text(f"\n{compaction.summary or missing}")


@command(app, "quire context items")
async def items(
    target: CommandTarget,
    *,
    add: Annotated[list[str] | None, typer.Option(help="Add an item of the agent to the session.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Remove an item from the session.")] = None,
    servers: WithServers = False,
) -> Result:
    """List the session's rules, references, tools and pinned messages, and add or remove items."""
    from quire.schemas.context import ContextItemSchema

    async with open_conversation(target, servers=servers) as conversation:
        for name in add or ():
            await conversation.add_item(name)
        for name in remove or ():
            await conversation.remove_item(name)
        state = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state
        agent = conversation.engine.agent
        found = [
            ContextItemSchema.from_item(each.item, agent, session_mode=each.include)
            for each in await conversation.items()
        ]
        missing = [] if servers else list_enabled_servers(agent)
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "pins": state.pins,
        "items": found,
        "servers_not_started": missing,
    }
    return Result(document, lambda _: _draw_items(found, state.pins, missing))


def _draw_items(
    items: "Sequence[ContextItemSchema]", pins: Sequence[int], missing: Sequence[str]
) -> "Iterable[RenderableType]":

    def describe(item: "ContextItemSchema") -> str:
        if item.agent_mode is not None:
            return to_one_line(item.description)
        return "(its server is not started)" if item.server in missing else "(the agent no longer has it)"

    yield make_table(
        "type", "name", "include", "description",
        rows=[(row.type, row.name, row.session_mode, describe(row)) for row in items],
        wrapped=("name", "description"),
    ) if items else make_text("The session has no items.")  # fmt: skip
    yield make_text(_format_pins(pins))
    if missing:
        yield make_text(format_not_started(missing))


@command(app, "quire context pin 2")
async def pin(
    target: CommandTarget,
    message: MessageNumber,
    *,
    off: Annotated[bool, typer.Option("--off", help="Unpin it.")] = False,
    priority: Annotated[
        int | None,
        typer.Option(min=0, max=10, help="Do not pin it, but set its priority: 1 to 10. Default: 5, which 0 restores."),
    ] = None,
) -> Result:
    """Pin a message, so that no compaction archives or shortens it; or give it a priority.

    The `hybrid` strategy archives low priorities first and preserves high ones. Critical is 8 to 10, important 6 and 7,
    normal 3 to 5, low 1 and 2.
    """
    async with open_conversation(target, edits=True) as conversation:
        if priority is not None:
            await conversation.set_priority(message, priority or None)
        elif not off:
            await conversation.pin(message)
        elif message in (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state.pins:
            await conversation.unpin(message)
        else:
            raise InvalidRequest(f"#{message} is not pinned.")
        state = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state
        edited = await name_conversation(conversation)
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "pins": state.pins,
        "priorities": state.priorities,
    }
    priorities = ", ".join(f"#{each.message} has {each.priority}" for each in state.priorities)
    lines = [edited, _format_pins(state.pins), *([f"Priorities: {priorities}"] if priorities else [])]
    return Result(document, "\n".join(lines))


@command(app, "quire context drop 4")
async def drop(
    target: CommandTarget,
    messages: MessageNumbers,
    *,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The reason, which is stored with the drop.")
    ] = None,
    now: Now = False,
) -> Result:
    """Drop messages or tool results. Later requests, including an agent's, have stubs in their place."""
    async with open_conversation(target, edits=True) as conversation:
        for number in _parse_numbers(messages):
            await conversation.drop(number, reason=reason, now=now)
        return await _list_drops(conversation)


@command(app, "quire context restore 4")
async def restore(target: CommandTarget, messages: MessageNumbers, *, now: Now = False) -> Result:
    """Restore messages: dropped ones as they were, ones that a compaction archived as pinned messages."""
    async with open_conversation(target, edits=True) as conversation:
        for number in _parse_numbers(messages):
            await conversation.restore(number, now=now)
        return await _list_drops(conversation)


def _parse_numbers(text: str) -> list[int]:
    """Numbers such as `3,7-9`."""
    numbers: list[int] = []
    for part in text.replace("#", "").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise InvalidRequest(f"{text!r} names no messages; write numbers and ranges, such as 3,7-9.")
        numbers += range(int(first), int(last or first) + 1)
    if len(numbers) > MAX_BRANCH_DROPS:
        raise InvalidRequest(f"At most {MAX_BRANCH_DROPS} messages can be named at once.")
    return numbers


async def _list_drops(conversation: "Conversation") -> Result:
    state = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state
    waiting = await load_waiting_edits(conversation)
    drops = state.drops or ()
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "drops": drops,
        "waiting": waiting,
    }
    pending = frozenset(waiting.drops if waiting is not None else ())
    numbers = ", ".join(f"#{each.message}{' (waiting)' * (each.message in pending)}" for each in drops)
    listed = f"Dropped: {numbers}." if numbers else "No message is dropped."
    lines = [await name_conversation(conversation), listed, *format_waiting_edits(waiting)]
    return Result(document, "\n".join(lines))


def _name_waiting(waiting: "EditEffectSchema") -> str:
    numbers = {"drop": waiting.drops, "restore": waiting.restores, "quote": waiting.quotes}
    edits = [f"{verb} {', '.join(f'#{each}' for each in seqs)}" for verb, seqs in numbers.items() if seqs]
    if waiting.compaction is not None:
        edits.append(f"replace the summary of compaction #{waiting.compaction}")
    return f"Waiting edits: {'; '.join(edits)}."


def _format_pins(pins: Iterable[int]) -> str:
    return f"Pinned: {', '.join(f'#{number}' for number in pins) or 'nothing'}"


async def _show_request(target: CommandTarget, reply: int | None) -> Result:
    """A request as it was sent, or rebuilt from the log. The exit code is 1 if neither is possible."""
    from quire.schemas.context import ReplaySchema

    async with open_conversation(target) as conversation:
        number = reply if reply is not None else (await _find_newest_replies(conversation, 1))[0]
        replayed = await conversation.replay(number)
    replay = ReplaySchema.from_replay(replayed)
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "reply": number,
        **dict(replay),
    }
    if replayed.sent_body is not None:
        form = "identical to what was sent" if replayed.is_as_sent else "with masked secrets"
        print_note(f"The request that #{number} answered is stored, {form}: {len(replayed.sent_body):,} bytes.")
    else:
        outcome = "has the recorded digest" if replayed.matches else "DIFFERS from the recorded one"
        print_note(f"The request that #{number} answered, rebuilt from the log, {outcome}.")
        digests = f"sent {replay.sent_digest}, recorded {replay.recorded_digest}, rebuilt {replay.rebuilt_digest}"
        for reason in (digests, replay.unknown, replay.mismatch, ", ".join(replayed.missing)):
            if reason:
                print_note(f"  {reason}")
    is_found = replayed.sent_body is not None or replayed.matches
    return Result(
        document,
        lambda _: [Verbatim(replay.body or format_json(replay.payload or {}))],
        exit_code=0 if is_found else EXIT_FAILED,
    )


async def _find_newest_replies(conversation: "Conversation", count: int) -> list[int]:
    """Returns the sequence numbers of the newest replies that have a manifest, oldest first."""
    store = conversation.engine.store
    seqs = [seq for seq, _ in await store.list_manifests(conversation.id, branch=conversation.branch, limit=count)]
    if len(seqs) < count:
        recorded = "no recorded request" if not seqs else "only one recorded request"
        raise EntryNotFound(f"{conversation.id} has {recorded}; a request is recorded with its reply.")
    return seqs


@command(app, "quire context diff")
async def diff(
    target: CommandTarget,
    *,
    before: Annotated[
        int | None, typer.Option("--from", metavar="SEQ", min=1, help="The reply to the earlier request.")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=1, help="The reply to the later request.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Compare each of the newest 500 requests with the one before.")
    ] = False,
) -> Result:
    """Compare two requests: the last two, or the ones that `--from` and `--to` name.

    With `--cache`, list where the provider's prompt cache broke: what changed, the tokens processed again, and their
    price.
    """
    if cache:
        return await _list_cache_breaks(target)
    async with open_conversation(target) as conversation:
        if before is None or after is None:
            earlier, later = await _find_newest_replies(conversation, 2)
            before, after = before or earlier, after or later
        changes = await conversation.diff(before, after)
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "reply": before,
        "other": after,
        "changes": changes,
    }

    def format_subject(name: str | None, span: Any) -> str:
        if name is not None or span is None:
            return name or ""
        return f"#{span.first}" if span.first == span.last else f"#{span.first} to #{span.last}"

    def format_decision(decision: "Decision | None") -> str:
        return "-" if decision is None else f"{'in' if decision.included else 'out'}: {explain_decision(decision)}"

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_text(f"From the request that #{before} answered to the one that #{after} answered")
        yield make_table(
            "kind", "item", "before", "after",
            rows=[
                (each.kind, format_subject(each.name, each.span), format_decision(each.before),
                 format_decision(each.after))
                for each in changes
            ],
            wrapped=("item", "before", "after"),
        ) if changes else make_text("Nothing changed.")  # fmt: skip

    return Result(document, draw)


async def _list_cache_breaks(target: CommandTarget) -> Result:
    async with open_conversation(target) as conversation:
        report = await conversation.cache_breaks()
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "requests": report.requests,
        "unknown": report.unknown,
        "breaks": report.breaks,
    }
    return Result(document, lambda _: _draw_cache(report))


def _draw_cache(report: "CacheReport") -> "Iterable[RenderableType]":
    for each in report.breaks:
        tokens = f"{'about ' if each.is_estimated else ''}{each.tokens:,}" if each.tokens is not None else "unknown"
        price = f" ({format_usd(each.cost_usd)})" if each.cost_usd is not None else ""
        yield make_text(f"#{each.reply}: {each.kind}, {tokens} tokens processed again{price}", style="bold")
        place = f", first at {each.place}" if each.place is not None else ""
        yield make_text(f"  {each.detail}{place}; {pluralize(each.seconds, 'second')} after #{each.previous}")
        for sign, text in (("-", each.before), ("+", each.after)):
            if text is not None:
                yield make_text(f"  {sign} {to_one_line(text)}", style="dim")
    if not report.breaks and report.requests:
        yield make_text(f"No break was found in {pluralize(report.requests, 'request')}.")
    if report.unknown is not None:
        yield make_text(report.unknown, style="dim")


@command(app, "quire context why 2")
async def why(
    target: CommandTarget,
    item: Annotated[str, typer.Argument(help="The sequence number of a message, or the name of an item.")],
    *,
    reply: ReplyNumber = None,
) -> Result:
    """Explain why a message or item is in the next request, or with `--reply` in an earlier one, or why it is not."""
    from quire.ledger import find_decision

    async with open_conversation(target) as conversation:
        bare = item.removeprefix("#")
        manifest = await _load_manifest(conversation, reply)
        decision = find_decision(manifest, int(bare) if bare.isdecimal() else item)
        topics = await conversation.list_topics(int(bare)) if decision.reason == "recalled" else []
    document = {
        "conversation": conversation.id,
        "branch": conversation.branch,
        "reply": reply,
        "item": item,
        "decision": decision,
        "topics": topics,
    }

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield from draw_explanation(item, decision, manifest)
        if topics:
            yield make_text("topics by which it can be found, in a model's words:")
        for topic in topics:
            yield make_text(f"  {topic.label}: {topic.text}")

    return Result(document, draw)


def draw_explanation(item: str, decision: "Decision", manifest: "Manifest") -> "Iterable[RenderableType]":
    reason, subject = explain_decision(decision), format_decision_subject(decision)
    if decision.reason == "archived":
        compactions = [
            each.span.first for each in manifest.decisions if each.kind == "summary" and each.span is not None
        ]
        reason = f"archived: the summary of compaction #{compactions[0]} replaces it" if compactions else reason
    if decision.span is not None and decision.span.first != decision.span.last:
        subject = f"#{item.removeprefix('#')}, in {subject}"
    yield make_text(f"{item}: {'included' if decision.included else 'not included'} ({reason})")
    yield make_field_table(
        [
            ("kind", decision.kind),
            ("item", subject),
            ("slot", decision.slot),
            ("tokens", decision.tokens or None),
            ("score", decision.score),
            ("learned", format_learned(decision.learned) if decision.learned is not None else None),
        ]
    )


def format_learned(rank: "LearnedRank") -> str:
    """Why the score differs from the match alone."""
    if rank.added:
        return f"score × {rank.factor:g}: added by hand in {pluralize(rank.added, 'turn')}"
    return f"score × {rank.factor:g}: in {pluralize(rank.chosen, 'request')}, and no reply used it"


async def _load_manifest(conversation: "Conversation", reply: int | None) -> "Manifest":
    """Loads the manifest of the request that the reply answered, or previews the next one."""
    return await conversation.preview() if reply is None else await conversation.manifest(reply)


app.add_typer(context_changes.app)
