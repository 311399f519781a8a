"""A compaction as a command shows it: for programs, and in a line for people."""

from typing import TYPE_CHECKING, Any

from quire.cli.output import counted, timestamp

if TYPE_CHECKING:
    from quire.model import Entry


def compaction_document(entry: "Entry | None") -> dict[str, Any] | None:
    from quire.model import Compaction

    body = entry.body if entry is not None else None
    if entry is None or not isinstance(body, Compaction):
        return None
    return {
        "number": body.number,
        "entry": entry.seq,
        "at": timestamp(entry.at),
        "covers": None if body.covers is None else {"first": body.covers.first, "last": body.covers.last},
        "summary": body.summary,
        "sources": list(body.sources),
        "trigger": body.trigger,
        "strategy": body.strategy,
        "model": body.model,
        "tokens_before": body.tokens_before,
        "tokens_after": body.tokens_after,
        "failures": list(body.failures or ()),
    }


def compaction_said(found: dict[str, Any]) -> str:
    covers = found["covers"]
    freed = max(0, found["tokens_before"] - found["tokens_after"])
    what = f"#{covers['first']} to #{covers['last']} archived" if covers else "long messages shortened"
    if found["trigger"] == "edit":
        what = f"the summary of #{covers['first']} to #{covers['last']} in other words"
    more = f", {counted(freed, 'token')} freed" if freed else ""
    return f"Compaction {found['number']}: {what}{more}"
