"""Why a request did not find in the provider's prompt cache what the request before it had put there.

The provider's usage decides whether the cache broke: it read fewer tokens than the earlier request had cached. The two
bodies explain it: the first block that differs. Without a usage, only a changed prompt is a break, and its tokens are
estimated.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from quire.model import Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.model.manifest import ProviderEdit
from quire.view.call_prices import Cost
from quire.wire.billed_calls import list_billed_calls
from quire.wire.codec import Codec
from quire.wire.prompt_prefix import (
    MARKER_LOOKBACK_BLOCKS,
    PrefixChange,
    find_lost_marker,
    find_prefix_change,
    find_unread_change,
    get_block_text,
    list_items,
)

MIN_BREAK_TOKENS = 256
"""Fewer tokens are no break: OpenAI counts cached tokens in blocks of 128."""
MIN_CACHED_TOKENS = 1_024
"""Shorter prompts are not cached."""
EXCERPT_CHARS, EXCERPT_START_CHARS = 120, 40
"""Length of an excerpt, and how much of it is before the first difference."""
MAX_COMPARED_CHARS = 200_000
"""Longer texts are not searched for times."""
HOOK_LOOKBACK_CHARS = 2_000
"""Characters before a difference in which the start of a hook's output is searched."""
MAX_NAMED_TOOLS = 5

CacheBreakKind = Literal[
    "model",
    "tools",
    "system",
    "parameter",
    "compaction",
    "edit",
    "provider_edit",
    "hook",
    "timestamp",
    "reasoning",
    "message",
    "marker",
    "expired",
    "evicted",
    "unknown",
]
"""What changed. `edit` is one of Quire's own, `provider_edit` one of the provider. `evicted` is a prompt that extends
the one before within its lifetime, and `unknown` one whose body is not stored."""

MICROSECONDS_PER_SECOND = 1_000_000

_HOOK = re.compile(r"\bhook\b|<user-prompt-submit-hook>", re.IGNORECASE)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d|\b1\d{9}(?:\d{3})?\b|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    re.IGNORECASE,
)
_TIME_WORDS = re.compile(
    r"\d+|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:mon|tue|wed|thu|fri|sat|sun|am|pm)\b",
    re.IGNORECASE,
)
_REASONING_TYPES = ("thinking", "redacted_thinking", "reasoning")
_COMPACTION_TYPES = ("compaction", "compaction_summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRequest:
    """A recorded request with what decides about its cache."""

    reply: int
    """Number of the reply."""
    conversation: str | None = None
    """Conversation of the reply, if it is not the one that is compared."""
    created_at: int
    """When the reply was recorded, in microseconds."""
    model: str
    codec: Codec | None = None
    """Format of the body, or None for an imported reply."""
    fields: Mapping[str, Any] | None = None
    """The body as it was sent, parsed, or None if it is not stored."""
    cache_seconds: int = 300
    """Lifetime of what the request wrote to the cache."""
    usage: Usage | None = None
    """As the provider reported it, or None if it did not."""
    total_tokens: int = 0
    """Tokens of the request by Quire's count."""
    summary: object = None
    """What identifies the summary in the request, the client's or Quire's, or None if it has none."""
    edits: object = None
    """What identifies Quire's own edits of the list, or None if it has none."""
    provider_edits: Sequence[ProviderEdit] = ()


class CacheBreakCause(NamedTuple):
    """What changed between two requests, and where."""

    kind: CacheBreakKind
    detail: str
    field: str | None = None
    """Field of the body with the first difference: `tools`, `system`, `messages`, `input` or a parameter."""
    position: int | None = None
    """Index in that field, from 0: of `messages`, the first message that differs."""
    before: str | None = None
    """Excerpt of the earlier request from shortly before the difference."""
    after: str | None = None

    @property
    def place(self) -> str | None:
        return self.field if self.field is None or self.position is None else f"{self.field}[{self.position}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreak:
    """A request of which the provider's prompt cache served less than it could have."""

    reply: int
    """Sequence number of the reply, which identifies the request."""
    previous: int
    """Reply of the request before, which may be on another branch."""
    previous_conversation: str | None
    """Conversation of that reply, if it is another one of the client's session."""
    kind: CacheBreakKind
    """What changed."""
    detail: str
    place: str | None
    """First difference in the body, such as `messages[3]`; null if not known."""
    before: str | None
    """Excerpt of the earlier request at that place."""
    after: str | None
    seconds: int
    """Time between the two replies."""
    tokens: int | None
    """Tokens that were cached and had to be processed again."""
    is_estimated: bool
    """The provider reported no usage: `tokens` is an estimate."""
    read_tokens: int | None
    """Tokens that the cache served; null if not reported."""
    cost_usd: float | None
    """What the tokens cost more than if they had been read from the cache; null if not known."""


class _Missed(NamedTuple):
    """What the provider reports of the later request: tokens that it should have read and did not, and those read."""

    tokens: int
    read: int


def find_cache_break(
    before: CachedRequest, after: CachedRequest, compute_cost: Callable[[Usage, str, datetime], Cost]
) -> CacheBreak | None:
    """Why the later of two consecutive requests was not served from the cache, or None if it was."""
    change = _find_change(before, after)
    missed = _count_missed(before, after, is_changed=change is not None)
    if missed is not None and missed.tokens < MIN_BREAK_TOKENS:
        return None
    cause = _find_cause(before, after, change, missed)
    if cause is None:
        return None
    tokens = missed.tokens if missed is not None else _estimate_tokens(before, after, cause)
    if missed is None and (tokens or MIN_BREAK_TOKENS) < MIN_BREAK_TOKENS:
        return None
    return CacheBreak(
        reply=after.reply,
        previous=before.reply,
        previous_conversation=before.conversation,
        kind=cause.kind,
        detail=cause.detail,
        place=cause.place,
        before=cause.before,
        after=cause.after,
        seconds=max(0, (after.created_at - before.created_at) // 1_000_000),
        tokens=tokens,
        is_estimated=missed is None,
        read_tokens=missed.read if missed is not None else None,
        cost_usd=_price_missed(after, missed.tokens, compute_cost) if missed is not None else None,
    )


def _find_change(before: CachedRequest, after: CachedRequest) -> PrefixChange | None:
    """The first difference of the two prompts, or None if the later one extends the other, or a body is not stored."""
    # An imported reply names the provider's model, a recorded request the client's.
    if before.model != after.model and (before.codec is None) == (after.codec is None):
        return PrefixChange("model", 0, before.model, after.model)
    if after.codec is None or before.codec is not after.codec or before.fields is None or after.fields is None:
        return None
    return find_prefix_change(after.codec, before.fields, after.fields)


def _count_missed(before: CachedRequest, after: CachedRequest, *, is_changed: bool) -> _Missed | None:
    """None if the provider did not report what the cache served, or what the earlier request had cached."""
    if before.usage is None or after.usage is None or before.usage.estimated or after.usage.estimated:
        return None
    earlier, later = list_billed_calls(before.usage), list_billed_calls(after.usage)
    if not earlier or not later:
        return None
    # Samplings between server tools extend each other: the last one has cached most.
    cached = max(each.cache_read_tokens + each.cache_write_tokens for each in earlier)
    if not any(each.cache_write_tokens for each in earlier):
        # Where writing is free, it is not reported: a provider that read from its cache has the whole prompt in it.
        prompt = max(each.input_tokens for each in earlier)
        is_cached = cached > 0 or (is_changed and _reports_cache(before.usage) and prompt >= MIN_CACHED_TOKENS)
        cached = prompt if is_cached else 0
    if not cached and not _reports_cache(before.usage) and (before.codec is None or before.codec.name != "messages"):
        return None
    read = later[0].cache_read_tokens
    return _Missed(max(0, min(cached, later[0].input_tokens) - read), read)


def _reports_cache(usage: Usage) -> bool:
    """Whether a provider without prices for writing states what it read, even if that is nothing."""
    details = get_object(usage.provider_fields or {}, "prompt_tokens_details", "input_tokens_details")
    return "cached_tokens" in details or usage.cache_read_tokens > 0


def _find_cause(
    before: CachedRequest, after: CachedRequest, change: PrefixChange | None, missed: _Missed | None
) -> CacheBreakCause | None:
    is_late = after.created_at - before.created_at > before.cache_seconds * MICROSECONDS_PER_SECOND
    lifetime = f"{before.cache_seconds // 60} minutes"
    codec = after.codec
    in_list = change is None or (codec is not None and change.field == codec.item_field)
    if is_late and in_list and missed is not None and not missed.read:
        # Not even the instructions and tools were served, so any other change came too late to matter.
        return CacheBreakCause("expired", f"the cache holds a prompt for {lifetime} after its last use")
    if change is not None and change.field == "model":
        return CacheBreakCause("model", f"{change.before} before, {change.after} now", "model")
    has_new_summary = after.summary is not None and after.summary != before.summary
    if (has_new_summary and (change is not None or missed is not None)) or (change is not None and _is_summary(change)):
        detail = "a summary took the place of earlier messages"
        return _locate(change, "compaction", detail) if change is not None else CacheBreakCause("compaction", detail)
    if change is not None and codec is not None:
        if in_list and after.edits != before.edits:
            return _locate(change, "edit", "Quire changed the list: a drop, a restore, an undo, or to fit the window")
        return _explain_change(change, codec, before.fields or {}, after.fields or {})
    marker = None
    if codec is not None and codec.name == "messages" and before.fields is not None and after.fields is not None:
        marker = find_lost_marker(before.fields, after.fields, is_missed=missed is not None)
    if missed is None and marker is None:
        return None
    if after.provider_edits and tuple(after.provider_edits) != tuple(before.provider_edits):
        names = ", ".join(each.type for each in after.provider_edits)
        return CacheBreakCause("provider_edit", f"the provider left out content on its side ({names})")
    if marker is not None and codec is not None:
        distance = f"the next one is {marker[1]} blocks later, more than the {MARKER_LOOKBACK_BLOCKS} that are searched"
        detail = "no cache marker follows the place" if marker[1] is None else distance
        return CacheBreakCause("marker", detail, codec.item_field, marker[0])
    if is_late:
        return CacheBreakCause("expired", f"the cache holds a prompt for about {lifetime} after its last use")
    if codec is None or before.fields is None or after.fields is None:
        return CacheBreakCause("unknown", "the bodies of the requests are not stored, so what changed is not known")
    if (change := find_unread_change(codec, before.fields, after.fields)) is not None:
        return _explain_change(change, codec, before.fields, after.fields)
    return CacheBreakCause("evicted", "the prompt extends the one before, and the provider no longer had it")


def _explain_change(
    change: PrefixChange, codec: Codec, before: Mapping[str, Any], after: Mapping[str, Any]
) -> CacheBreakCause:
    """Names the kind of a change by its field and by the words that differ."""
    if change.field == "tools":
        return _locate(change, "tools", _describe_tools(before.get("tools"), after.get("tools")))
    if change.field in codec.prefix_parameters:
        return CacheBreakCause(
            "parameter", f"{dump_json(change.before)} before, {dump_json(change.after)} now", change.field
        )
    old, new = (get_block_text(each) or "" for each in (change.before, change.after))
    start = _find_difference(old, new)
    if any(_is_hook_output(text, start) for text in (old, new)):
        return _locate(change, "hook", "the output of a hook")
    if old and new and _is_time_change(old, new, start):
        return _locate(change, "timestamp", "a date or time")
    is_instruction = change.field in codec.prefix_fields or _get_role(codec, before, change) in ("system", "developer")
    if is_instruction:
        return _locate(change, "system", "the instructions")
    types = [get_text(each, "type") for each in (change.before, change.after) if is_object(each)]
    if types and types[0] in _REASONING_TYPES and types != [types[0], types[0]]:
        return _locate(change, "reasoning", "reasoning was left out")
    name = _get_role(codec, before, change) or "assistant"
    if change.after is None:
        return _locate(change, "message", f"a part of a message ({name}) was removed")
    return _locate(change, "message", f"a message ({name}) has other content")


def _locate(change: PrefixChange, kind: CacheBreakKind, detail: str) -> CacheBreakCause:
    """The cause with its place and excerpts of both requests."""
    old, new = (
        None if each is None else text if (text := get_block_text(each)) is not None else dump_json(each)
        for each in (change.before, change.after)
    )
    if old == new:
        # The texts are equal, and another field of the block differs.
        old, new = (None if each is None else dump_json(each) for each in (change.before, change.after))
    start = max(0, _find_difference(old or "", new or "") - EXCERPT_START_CHARS)
    excerpts = (None if each is None else " ".join(each[start : start + EXCERPT_CHARS].split()) for each in (old, new))
    return CacheBreakCause(kind, detail, change.field, change.position, *excerpts)


def _find_difference(old: str, new: str) -> int:
    """Position of the first character that differs."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(old), len(new)))


def _is_summary(change: PrefixChange) -> bool:
    return is_object(change.after) and change.after.get("type") in _COMPACTION_TYPES


def _get_role(codec: Codec, fields: Mapping[str, Any], change: PrefixChange) -> str | None:
    items = list_items(codec, fields) if change.field == codec.item_field else []
    return get_text(items[change.position], "role") if change.position < len(items) else None


def _is_hook_output(text: str, start: int) -> bool:
    """Whether the place is within a line, or a tagged block, that names a hook."""
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)][:HOOK_LOOKBACK_CHARS]
    if _HOOK.search(line) is not None:
        return True
    tag = text.rfind("<system-reminder>", max(0, start - HOOK_LOOKBACK_CHARS), start + len("<system-reminder>"))
    if tag < 0 or "</system-reminder>" in text[tag:start]:
        return False
    opening = text[tag:].split("\n", 2)[:2]
    return _HOOK.search(" ".join(opening)[:HOOK_LOOKBACK_CHARS]) is not None


def _is_time_change(old: str, new: str, start: int) -> bool:
    """Whether two texts differ in dates and times alone."""
    if max(len(old), len(new)) > MAX_COMPARED_CHARS:
        return False
    near = slice(max(0, start - EXCERPT_START_CHARS), start + EXCERPT_START_CHARS)
    has_times = all(_TIME.search(text[near]) is not None for text in (old, new))
    return has_times and _TIME_WORDS.sub("0", old) == _TIME_WORDS.sub("0", new)


def _describe_tools(before: object, after: object) -> str:
    old, new = (
        [name for each in filter_objects(tools) for name in _list_tool_names(each)] for tools in (before, after)
    )
    added, removed = ([name for name in names if name not in others] for names, others in ((new, old), (old, new)))
    if not added and not removed:
        return "the order of the tools" if old != new else "the definition of a tool"
    changes: list[str] = []
    for verb, names in (("added", added), ("removed", removed)):
        more = f" and {len(names) - MAX_NAMED_TOOLS} more" if len(names) > MAX_NAMED_TOOLS else ""
        changes += [f"{verb} {', '.join(names[:MAX_NAMED_TOOLS])}{more}"] if names else []
    return "; ".join(changes)


def _list_tool_names(tool: Mapping[str, Any]) -> list[str]:
    if functions := filter_objects(tool.get("functionDeclarations")):
        return [get_text(each, "name") or "" for each in functions]
    return [get_text(tool, "name") or get_text(get_object(tool, "function"), "name") or get_text(tool, "type") or ""]


def _estimate_tokens(before: CachedRequest, after: CachedRequest, cause: CacheBreakCause) -> int | None:
    """Tokens from the break to the end of what the earlier request had, by the sizes of the messages."""
    codec = after.codec
    if codec is None or before.fields is None or after.fields is None:
        return None
    items, count = list_items(codec, after.fields), len(list_items(codec, before.fields))
    sizes = [len(dump_json(item)) for item in items]
    head = sum(len(dump_json(after.fields.get(name))) for name in codec.prefix_fields)
    if cause.field == codec.item_field:
        # After a lost marker, only the markers of the instructions are left.
        again = sum(sizes[0 if cause.kind == "marker" else cause.position or 0 : count])
    else:
        again = head + sum(sizes[:count])
    return round(after.total_tokens * again / max(1, head + sum(sizes)))


def _price_missed(
    request: CachedRequest, tokens: int, compute_cost: Callable[[Usage, str, datetime], Cost]
) -> float | None:
    """What the call cost more than with these tokens read from the cache."""
    usage, at = request.usage, datetime.fromtimestamp(request.created_at / MICROSECONDS_PER_SECOND, tz=UTC)
    if usage is None:
        return None
    fields, written = dict(usage.provider_fields or {}), max(0, usage.cache_write_tokens - tokens)
    by_lifetime = get_object(fields, "cache_creation")
    if by_lifetime and usage.cache_write_tokens:
        share = written / usage.cache_write_tokens
        scaled = {name: round(count * share) for name, count in by_lifetime.items() if isinstance(count, int)}
        fields["cache_creation"] = {**by_lifetime, **scaled}
    fields.pop("iterations", None)
    served = usage.model_copy(
        update={
            "cache_read_tokens": usage.cache_read_tokens + tokens,
            "cache_write_tokens": written,
            "provider_fields": fields,
        }
    )
    billed = usage.model_copy(
        update={
            "provider_fields": {
                name: value for name, value in (usage.provider_fields or {}).items() if name != "iterations"
            }
        }
    )
    costs = [compute_cost(each, request.model, at) for each in (billed, served)]
    return costs[0].usd - costs[1].usd if all(cost.is_complete for cost in costs) else None
