"""`quire context stats`: statistics of a conversation, computed from its log."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.cli.common import (
    AsJson,
    CommandTarget,
    branch_command,
    create_group,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import (
    format_local_time,
    make_field_table,
    make_text,
    print_result,
    show_progress,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch, SqlStore
    from quire.model import Entry

app = create_group("")

ENTRY_BATCH_SIZE = 2_000
"""Entries per read."""


@dataclass(slots=True)
class BranchStats:
    """Accumulator over the entries of a branch."""

    count_by_kind: Counter[str] = field(default_factory=Counter[str])
    count_by_role: Counter[str] = field(default_factory=Counter[str])
    tokens_by_use: Counter[str] = field(default_factory=Counter[str])
    purged_count: int = 0
    reply_count: int = 0
    last_entry_at: int | None = None

    def add(self, entry: "Entry") -> None:
        self.count_by_kind[entry.kind] += 1
        self.last_entry_at = entry.created_at
        self.purged_count += entry.purged_at is not None
        if entry.kind != "message":
            return
        self.count_by_role[entry.role or ""] += 1
        self.tokens_by_use["stored"] += entry.tokens or 0
        usage = entry.metadata.usage if entry.raw_metadata else None
        if usage is not None:
            self.reply_count += 1
            self.tokens_by_use["input"] += usage.input_tokens
            self.tokens_by_use["output"] += usage.output_tokens
            self.tokens_by_use["cache_read"] += usage.cache_read_tokens


@branch_command(app, "quire context stats")
def stats(
    target: CommandTarget,
    *,
    as_json: AsJson = False,
) -> None:
    """Print statistics of a conversation: messages, tokens, compactions, usage and cost of its replies."""
    document = run_async(_collect_stats(target))

    def draw(_: Any) -> "Iterable[RenderableType]":
        tokens, messages, archived_to = document["tokens"], document["messages"], document["archived_up_to"]
        yield make_text(f"{document['conversation']}, branch {document['branch']}", style="bold")
        yield make_field_table(
            [
                ("created", format_local_time(document["created_at"])),
                ("last entry", format_local_time(document["last_entry_at"])),
                ("entries", sum(document["entries"].values())),
                ("messages", ", ".join(f"{count:,} {role}" for role, count in messages.items()) or "none"),
                ("archived", f"entries up to #{archived_to:,}" if archived_to else "nothing"),
                ("compactions", document["compactions"]),
                ("pins", document["pins"]),
                ("branches", document["branches"]),
                ("purged", document["purged"] or None),
                ("tokens of all messages", tokens["stored"]),
                ("replies with usage", document["replies"]),
                ("input tokens", tokens["input"]),
                ("of these from cache", tokens["cache_read"]),
                ("output tokens", tokens["output"]),
                ("cost", f"${document['cost_usd']:.4f}" if document["cost_usd"] else "not known"),
            ]
        )

    print_result(document, draw, as_json=as_json)


async def _collect_stats(target: CommandTarget) -> dict[str, Any]:
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        branch = await store.get_branch(conversation_id, target.branch)
        stats = await _count_entries(store, branch)
        active = branch.state.active_compaction
        return {
            "conversation": conversation_id,
            "branch": branch.number,
            "created_at": (await store.get_conversation(conversation_id)).created_at,
            "last_entry_at": stats.last_entry_at,
            "entries": dict(sorted(stats.count_by_kind.items())),
            "messages": dict(sorted(stats.count_by_role.items())),
            "archived_up_to": active.covers.last if active is not None and active.covers is not None else None,
            "compactions": branch.state.compaction_count,
            "pins": len(branch.state.pins),
            "branches": len(await store.list_branches(conversation_id)),
            "purged": stats.purged_count,
            "replies": stats.reply_count,
            "tokens": {name: stats.tokens_by_use[name] for name in ("stored", "input", "output", "cache_read")},
            "cost_usd": await store.get_cost(conversation_id),
        }


async def _count_entries(store: "SqlStore", branch: "Branch") -> BranchStats:
    stats = BranchStats()
    with show_progress("Reading the log") as progress:
        for first in range(1, branch.head_seq + 1, ENTRY_BATCH_SIZE):
            last = first + ENTRY_BATCH_SIZE - 1
            for entry in await store.read_range(branch.conversation, branch=branch.number, first=first, last=last):
                stats.add(entry)
            progress.update(min(last, branch.head_seq), branch.head_seq)
    return stats
