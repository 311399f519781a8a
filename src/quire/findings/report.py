"""Findings from the usage roll-up, from what was noticed in sessions, and from files that will be deleted. Pure.

A finding sums up all evidence of one kind. Findings are ordered by what they cost, the largest first.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, get_args

from pydantic_core import from_json

from quire.findings.observer import Observation, ObservationKind
from quire.log.observations import ObservedConversation
from quire.usage.contribution import DAY_MICROSECONDS, NANOS_PER_DOLLAR, UsageCounts, format_day
from quire.usage.report import ConversationCost, RollupReport, UsageGroup

FindingKind = Literal["full_window", "pause", "fixed_prompt", "large_file", "cache_drop", "expensive_day", "expiring"]
MAX_EVIDENCE = 100
"""Pieces of evidence that a finding lists, the largest first. More are counted."""
EXPENSIVE_DAY_FACTOR, MIN_EXPENSIVE_DAY_USD = 3, 5.0
"""Multiple of the usual day, and cost, from which a day is expensive."""
NEIGHBOUR_DAYS, MIN_NEIGHBOUR_DAYS = 14, 7
"""Days with a cost before and after a day whose medians it is compared with. Fewer than the minimum have no median."""
SHOWN_ENTRIES = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    text: str
    project: str
    """Folder that the session worked in; empty if it is not of one."""
    conversation: str | None
    """Conversation that has it, if it is in one."""
    tokens: int
    cost_usd: float
    command: str
    """Command that shows it."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    title: str
    """One sentence with the numbers."""
    advice: str
    """What to do about it."""
    cost_usd: float
    tokens: int
    evidence: tuple[Evidence, ...]
    total: int
    """Number of all evidence, of which `evidence` has the largest."""
    command: str
    """Command that shows the largest evidence."""


class ExpiringFile(NamedTuple):
    """A transcript that its program will delete."""

    source: str
    source_title: str
    session: str
    """Id of its session, or the beginning of it."""
    path: str
    deleted_at: int | None
    """Microseconds since 1970, or None if the program deletes it at its next start."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsReport:
    totals: UsageCounts
    conversations: int
    """Conversations with a cost."""
    agents: Sequence[UsageGroup]
    projects: Sequence[UsageGroup]
    models: Sequence[UsageGroup]
    days: Sequence[UsageGroup]
    sub_agent_usd: float
    findings: Sequence[Finding]


class _Wording(NamedTuple):
    title: str
    """With `n` pieces of evidence, how many `times`, the `sessions`, `tokens` and dollars in `cost`."""
    advice: str
    evidence: str
    command: str = "quire context show {conversation}"
    """What shows it. Empty where its entry does."""


_WORDINGS: dict[ObservationKind, _Wording] = {
    "full_window": _Wording(
        "{requests} in {sessions} sent more than 100k tokens; compacting there would have saved {cost}.",
        "Run /compact or start a new session when a task is done, before the window passes 100k tokens.",
        "{text}",
    ),
    "pause": _Wording(
        "After {times} of half an hour or more, {sessions} sent the whole prompt again: a fresh start would have saved "
        "{cost}.",
        "Before a long pause, /compact; after one, start a new session for a new task.",
        "{text}: {tokens} again",
        "quire context diff {conversation} --cache",
    ),
    "fixed_prompt": _Wording(
        "{sessions} began with at least {smallest} more than the program's own prompt: {cost}.",
        "/context and /mcp list what it is: turn off MCP servers, plugins and skills that the project does not use.",
        "{tokens} in each of {requests}",
    ),
    "large_file": _Wording(
        "{n} of 5k tokens or more stayed in the window long after the last use: {cost}.",
        "`quire context drop` takes such a result out of a running session. A range of lines is smaller.",
        "{text}: {tokens} in {requests}",
        command="",
    ),
    "cache_drop": _Wording(
        "The provider's cache dropped {times} in {sessions}: {tokens} processed again.",
        "Short pauses, waits for a tool or an approval, other models, evictions: a part of the cost, without advice.",
        "{text}: {tokens} again",
        "quire context diff {conversation} --cache",
    ),
}
_NOUNS: dict[ObservationKind, str] = {"pause": "pause", "cache_drop": "prompt", "large_file": "file"}


def build_report(
    usage: RollupReport,
    costs: Sequence[ConversationCost],
    observed: Iterable[ObservedConversation],
    expiring: Sequence[ExpiringFile],
) -> FindingsReport:
    """All findings. `usage` has the groups by source, project, model and day of the whole time."""
    findings = [*_sum_up_observations(observed)]
    findings += _find_expensive_days(usage.groups["day"])
    findings += _find_expiring(expiring, costs)
    return FindingsReport(
        totals=usage.totals,
        conversations=sum(each.cost_nanos > 0 for each in costs),
        agents=usage.groups["source"],
        projects=usage.groups["project"],
        models=usage.groups["model"],
        days=usage.groups["day"],
        sub_agent_usd=sum(each.cost_nanos for each in costs if each.is_sub_agent) / NANOS_PER_DOLLAR,
        findings=sorted(findings, key=lambda each: (-each.cost_usd, -each.tokens, each.kind)),
    )


def _sum_up_observations(observed: Iterable[ObservedConversation]) -> Iterable[Finding]:
    by_kind: defaultdict[ObservationKind, list[tuple[ObservedConversation, Observation]]] = defaultdict(list)
    for conversation in observed:
        for fields in from_json(conversation.observations):
            observation = Observation._make(fields)
            if observation.kind in _WORDINGS:
                by_kind[observation.kind].append((conversation, observation))
    for kind in get_args(ObservationKind):
        items = sorted(by_kind[kind], key=lambda each: (-each[1].cost_usd, -each[1].tokens, each[0].conversation))
        if not items:
            continue
        wording = _WORDINGS[kind]
        tokens, cost = sum(each.tokens for _, each in items), sum(each.cost_usd for _, each in items)
        evidence = tuple(
            Evidence(
                wording.evidence.format(
                    text=each.text,
                    count=each.times,
                    requests=_count(each.times, "request"),
                    tokens=format_tokens(each.tokens),
                ),
                conversation.project or "",
                conversation.conversation,
                each.tokens,
                each.cost_usd,
                wording.command.format(conversation=conversation.conversation)
                or _format_show(conversation.conversation, each.item),
            )
            for conversation, each in items[:MAX_EVIDENCE]
        )
        times = sum(each.times for _, each in items)
        title = wording.title.format(
            n=_count(len(items), _NOUNS.get(kind, "")),
            times=_count(times, _NOUNS.get(kind, "")),
            requests=_count(times, "request"),
            sessions=_count(len({conversation.conversation for conversation, _ in items}), "session"),
            tokens=format_tokens(tokens),
            smallest=format_tokens(min(each.tokens for _, each in items)),
            cost=format_dollars(cost),
        )
        yield Finding(kind, title, wording.advice, cost, tokens, evidence, len(items), evidence[0].command)


def _format_show(conversation: str, position: str) -> str:
    branch, _, seq = position.partition(":")
    # The call or answer before it is part of the evidence.
    first = max(1, int(seq or 1) - 1)
    on_branch = f" --branch {branch}" if branch != "0" else ""
    return f"quire context show {conversation}{on_branch} --messages --first {first} --limit {SHOWN_ENTRIES}"


def _find_expensive_days(days: Sequence[UsageGroup]) -> Iterable[Finding]:
    active = sorted((day.name, day.counts.cost_usd, day.counts) for day in days if day.counts.cost_usd)
    costs = [cost for _, cost, _ in active]
    expensive: list[tuple[float, float, str, UsageCounts]] = []
    for index, (day, cost, counts) in enumerate(active):
        # Days that cost more because from then on all do are no exception.
        around = costs[max(0, index - NEIGHBOUR_DAYS) : index], costs[index + 1 : index + 1 + NEIGHBOUR_DAYS]
        usual = max((median(part) for part in around if len(part) >= MIN_NEIGHBOUR_DAYS), default=None)
        if usual is not None and cost >= max(EXPENSIVE_DAY_FACTOR * usual, MIN_EXPENSIVE_DAY_USD):
            expensive.append((cost, usual, day, counts))
    if not expensive:
        return
    expensive.sort(reverse=True)
    evidence = tuple(
        Evidence(
            f"{day}: {format_dollars(cost)} in {_count(counts.requests, 'request')}, usually "
            f"{format_dollars(usual)} in those weeks",
            "",
            None,
            counts.input_tokens + counts.output_tokens,
            cost - EXPENSIVE_DAY_FACTOR * usual,
            f"quire scan --usage --since {day}",
        )
        for cost, usual, day, counts in expensive[:MAX_EVIDENCE]
    )
    above = sum(cost - EXPENSIVE_DAY_FACTOR * usual for cost, usual, _, _ in expensive)
    title = (
        f"{_count(len(expensive), 'day')} cost more than three times the usual day of those weeks, "
        f"{format_dollars(above)} above that."
    )
    advice = "`daily_budget` warns in the status line, and with `daily_budget_stops` calls end at that sum."
    tokens = sum(each.tokens for each in evidence)
    yield Finding("expensive_day", title, advice, above, tokens, evidence, len(expensive), evidence[0].command)


def _find_expiring(files: Sequence[ExpiringFile], costs: Sequence[ConversationCost]) -> Iterable[Finding]:
    if not files:
        return
    lengths = {len(file.session) for file in files}
    sessions = {
        (each.client, each.session[:length]): each for each in costs if not each.is_sub_agent for length in lengths
    }
    evidence: list[Evidence] = []
    priced: set[str] = set()
    for file in sorted(files, key=lambda each: (each.deleted_at or 0, each.path)):
        when = format_day(file.deleted_at // DAY_MICROSECONDS) if file.deleted_at else "at the next start"
        text, command, cost = f"{when}: {file.path} ({file.reason})", f"quire import {file.source} --dry-run", 0.0
        session = sessions.get((file.source, file.session))
        if session is not None:
            command = f"quire context show {session.conversation} --messages"
            # Several files may belong to one session.
            if session.conversation not in priced:
                cost = session.cost_nanos / NANOS_PER_DOLLAR
            priced.add(session.conversation)
        project, conversation = (session.project, session.conversation) if session is not None else ("", None)
        evidence.append(Evidence(text, project, conversation, 0, cost, command))
    programs = ", ".join(sorted({file.source_title for file in files}))
    total = sum(each.cost_usd for each in evidence)
    first = min(file.deleted_at or 0 for file in files)
    when = f"on {format_day(first // DAY_MICROSECONDS)}" if first else "at the next start"
    title = (
        f"{programs} will delete {_count(len(files), 'transcript')} within a week, the first {when}"
        f"{f'; they cost {format_dollars(total)}' if total else ''}."
    )
    advice = "They are in Quire now. `quire service install` imports new ones as they are written."
    yield Finding(
        "expiring", title, advice, total, 0, tuple(evidence[:MAX_EVIDENCE]), len(evidence), evidence[0].command
    )


def format_tokens(tokens: int) -> str:
    """`950 tokens`, `12k tokens`, `3.4M tokens`."""
    if tokens < 1_000:
        return f"{tokens} tokens"
    return f"{tokens / 1_000:.0f}k tokens" if tokens < 999_500 else f"{tokens / 1_000_000:.1f}M tokens"


def format_dollars(cost_usd: float) -> str:
    """Dollars with cents. Less than a cent is said so."""
    if not cost_usd:
        return "no known price"
    return f"${cost_usd:,.2f}" if cost_usd >= 0.005 else "less than $0.01"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
