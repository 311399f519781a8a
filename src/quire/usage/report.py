"""The usage roll-up as a part of the store, and reports of it: totals, groups, items, turns by cost, document pairs."""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, and_, func, select, true, tuple_

from quire.db.schema import (
    branches,
    conversations,
    document_pairs,
    documents,
    entries,
    uncounted_branches,
    usage_contributions,
    usage_totals,
    usage_turns,
)
from quire.db.store_part import StorePart, read, read_bulk, read_inline, write_bulk
from quire.log.conversations import list_conversation_ids
from quire.log.reads import check_in_database
from quire.log.types import ConversationRecord
from quire.usage import rollup
from quire.usage.contribution import NANOS_PER_DOLLAR, Dimension, TurnUsage, UsageCounts, format_day
from quire.usage.rollup import RecountResult

UsageGrouping = Literal["day", "model", "project", "source", "slot", "tool"]
USAGE_GROUPINGS: tuple[UsageGrouping, ...] = get_args(UsageGrouping)

MAX_PENDING_BRANCHES = 10_000
"""Number up to which branches with uncounted entries are counted exactly."""


class UsageGroup(NamedTuple):
    """Counts of one name of a dimension, or of a date."""

    name: str
    counts: UsageCounts


@dataclass(frozen=True, slots=True)
class DocumentPair:
    first: str
    second: str
    conversations: int
    """Conversations that use both."""


class UnusedDocuments(NamedTuple):
    """Documents of the vault that no message references."""

    total: int
    paths: tuple[str, ...]
    """The first of them, in alphabetical order."""


class RollupReport(NamedTuple):
    """One consistent read of the roll-up."""

    totals: UsageCounts
    groups: dict[UsageGrouping, list[UsageGroup]]
    documents: list[UsageGroup]
    rules: list[UsageGroup]
    references: list[UsageGroup]
    unused_rules: list[UsageGroup]
    """Rules that were candidates and never included."""
    unused_tools: list[UsageGroup]
    """Tools that requests offered and the model never called, by tokens."""
    turns: list[TurnUsage]
    unused_documents: UnusedDocuments
    pending_branches: int
    """Branches with entries that are not counted yet."""
    first_day: str | None = None
    """The first day with usage, also before the days of the report."""


def read_usage(
    connection: Connection,
    tenant: str,
    *,
    since_day: int = 0,
    groupings: Sequence[UsageGrouping] = USAGE_GROUPINGS,
    limit: int = 20,
) -> RollupReport:
    """Usage since a day (days since 1970, UTC). Each list has the `limit` first rows. Groups by day have all."""
    [totals] = _read_groups(connection, tenant, "all", since_day, limit=1) or [UsageGroup("", UsageCounts())]
    by_day = (
        select(usage_totals.c.day, *(usage_totals.c[name] for name in UsageCounts._fields))
        .where(usage_totals.c.tenant == tenant, usage_totals.c.dimension == "all", usage_totals.c.day >= since_day)
        .order_by(usage_totals.c.day)
    )
    groups: dict[UsageGrouping, list[UsageGroup]] = {
        each: [UsageGroup(format_day(row[0]), UsageCounts(*row[1:])) for row in connection.execute(by_day)]
        if each == "day"
        else _read_groups(connection, tenant, each, since_day, limit=limit)
        for each in groupings
    }
    # The turns with the highest cost; where no price is known, the turns with the most tokens.
    turn_order = ("cost_nanos", "tokens", "conversation", "branch", "seq")
    turns = (
        select(*(usage_turns.c[name] for name in TurnUsage._fields))
        .where(usage_turns.c.tenant == tenant, usage_turns.c.day >= since_day)
        .order_by(*(usage_turns.c[name].desc() for name in turn_order))
        .limit(limit)
    )
    used_documents = select(usage_totals.c.name).where(
        usage_totals.c.tenant == tenant, usage_totals.c.dimension == "document", usage_totals.c.day >= since_day
    )
    unused = and_(documents.c.tenant == tenant, documents.c.path.not_in(used_documents))
    is_used = usage_totals.c.tenant == tenant, usage_totals.c.dimension == "all", usage_totals.c.requests > 0
    first_day = connection.execute(select(func.min(usage_totals.c.day)).where(*is_used)).scalar()
    unused_count = connection.execute(select(func.count()).select_from(documents).where(unused)).scalar_one()
    unused_paths = connection.execute(select(documents.c.path).where(unused).order_by(documents.c.path).limit(limit))
    return RollupReport(
        totals=totals.counts,
        groups=groups,
        documents=_read_groups(connection, tenant, "document", since_day, limit=limit),
        rules=_read_groups(connection, tenant, "rule", since_day, limit=limit),
        references=_read_groups(connection, tenant, "reference", since_day, limit=limit),
        unused_rules=_read_groups(connection, tenant, "rule", since_day, limit=limit, unused="requests"),
        unused_tools=_read_groups(connection, tenant, "tool", since_day, limit=limit, unused="uses"),
        turns=[TurnUsage._make(row) for row in connection.execute(turns)],
        unused_documents=UnusedDocuments(unused_count, tuple(sorted(unused_paths.scalars()))),
        pending_branches=count_pending_branches(connection, tenant),
        first_day=format_day(first_day) if first_day is not None else None,
    )


_ORDER: dict[Dimension, tuple[str, ...]] = {
    "slot": ("tokens",),
    "tool": ("uses", "requests"),
    "document": ("uses", "requests"),
    "rule": ("requests", "candidates"),
    "reference": ("requests", "candidates"),
}
"""Counts by which the rows of a dimension are ordered, the highest first."""
_USAGE_ORDER = ("cost_nanos", "input_tokens", "requests")
_ITEM_COLUMNS = ("requests", "candidates", "uses", "tokens")
"""Counts of slots, tools, documents, rules and references. The others are 0."""
_USAGE_COLUMNS = tuple(name for name in UsageCounts._fields if name not in ("candidates", "uses", "tokens"))


def _read_groups(
    connection: Connection,
    tenant: str,
    dimension: Dimension,
    since_day: int,
    *,
    limit: int,
    unused: Literal["requests", "uses"] | None = None,
) -> list[UsageGroup]:
    """The groups of a dimension. With `unused`, only groups of which this count is 0, by tokens."""
    order = _ORDER.get(dimension, _USAGE_ORDER) if unused is None else ("tokens", "candidates")
    names = _ITEM_COLUMNS if dimension in _ORDER else _USAGE_COLUMNS
    sums = {name: func.sum(usage_totals.c[name]) for name in names}
    query = (
        select(usage_totals.c.name, *sums.values())
        .where(usage_totals.c.tenant == tenant, usage_totals.c.dimension == dimension, usage_totals.c.day >= since_day)
        .group_by(usage_totals.c.name)
        .order_by(*(sums[name].desc() for name in order), usage_totals.c.name)
        .limit(limit)
    )
    if unused is not None:
        # A client's own tools are no candidates: only the client can omit them.
        query = query.having(sums[unused] == 0, sums["candidates"] > 0)
    # A sum is a decimal number on PostgreSQL.
    rows = ((row[0], dict(zip(names, map(int, row[1:]), strict=True))) for row in connection.execute(query))
    return [UsageGroup(name, UsageCounts(**counts)) for name, counts in rows]


def read_document_pairs(connection: Connection, tenant: str, *, limit: int = 100) -> list[DocumentPair]:
    """Documents that are used together, in the most conversations first."""
    order = document_pairs.c.conversations.desc(), document_pairs.c.first.desc(), document_pairs.c.second.desc()
    query = (
        select(document_pairs.c.first, document_pairs.c.second, document_pairs.c.conversations)
        .where(document_pairs.c.tenant == tenant)
        .order_by(*order)
        .limit(limit)
    )
    return [DocumentPair(*row) for row in connection.execute(query)]


def count_pending_branches(connection: Connection, tenant: str) -> int:
    """Branches with entries that are not counted yet, up to `MAX_PENDING_BRANCHES`."""
    some = select(uncounted_branches.c.branch).where(uncounted_branches.c.tenant == tenant).limit(MAX_PENDING_BRANCHES)
    return connection.execute(select(func.count()).select_from(some.subquery())).scalar_one()


def has_uncounted(connection: Connection, tenant: str) -> bool:
    """Whether entries of the tenant are not in the roll-up yet."""
    # Ordered by the primary key: PostgreSQL would otherwise scan the table if most rows are of this tenant.
    columns = uncounted_branches.c
    query = select(columns.last_seq).where(columns.tenant == tenant).order_by(columns.conversation, columns.branch)
    return connection.execute(query.limit(1)).first() is not None or rollup.has_outdated(connection, tenant)


def list_uncounted(connection: Connection, tenant: str, session: str) -> list[str]:
    """The conversations of a client's session with entries that are not in the roll-up yet."""
    key = (conversations.c.tenant == uncounted_branches.c.tenant) & (
        conversations.c.conversation == uncounted_branches.c.conversation
    )
    query = select(conversations.c.conversation).distinct().join(uncounted_branches, key)
    where = conversations.c.tenant == tenant, conversations.c.session == session
    return list(connection.execute(query.where(*where)).scalars())


def read_item_counts(
    connection: Connection, tenant: str, *, items: Collection[tuple[Dimension, str]]
) -> dict[tuple[Dimension, str], UsageCounts]:
    """Counts of these items, each by dimension and name, over all days. An item without counts is left out."""
    key = [usage_totals.c.dimension, usage_totals.c.name]
    counted = ("turns", "requests", "uses")
    query = (
        select(*key, *[func.sum(usage_totals.c[name]).label(name) for name in counted])
        .where(usage_totals.c.tenant == tenant, tuple_(*key).in_(items))
        .group_by(*key)
    )
    counts: dict[tuple[Dimension, str], UsageCounts] = {}
    for row in connection.execute(query).mappings() if items else ():
        sums = (int(row[name]) for name in counted)
        counts[row["dimension"], row["name"]] = UsageCounts(**dict(zip(counted, sums, strict=True)))
    return counts


class ConversationCost(NamedTuple):
    """What a conversation of a client's session cost."""

    conversation: str
    title: str
    client: str
    session: str
    project: str
    purpose: str | None
    created_at: int
    cost_nanos: int
    """A lower bound if calls have no known price."""
    unpriced_requests: int

    @property
    def is_sub_agent(self) -> bool:
        return self.purpose == "subagent"


def list_conversation_costs(
    connection: Connection, tenant: str, *, session: str | None = None
) -> list[ConversationCost]:
    """The conversations, of one client session if it is given, by cost, the highest first."""
    used = func.coalesce(func.sum(usage_contributions.c.cost_nanos), 0)
    unpriced = func.coalesce(func.sum(usage_contributions.c.unpriced_requests), 0)
    names = ("conversation", "title", "client", "session", "project", "purpose", "created_at")
    query = (
        select(*(conversations.c[name] for name in names), used, unpriced)
        .outerjoin(
            usage_contributions,
            (usage_contributions.c.tenant == conversations.c.tenant)
            & (usage_contributions.c.conversation == conversations.c.conversation)
            & (usage_contributions.c.dimension == "all"),
        )
        .where(conversations.c.tenant == tenant, true() if session is None else conversations.c.session == session)
        .group_by(*(conversations.c[name] for name in names))
        .order_by(used.desc(), conversations.c.conversation)
    )
    rows = [tuple[Any, ...](row) for row in connection.execute(query)]
    return [
        ConversationCost(row[0], row[1], row[2] or "", row[3] or "", row[4] or "", *row[5:7], *map(int, row[7:]))
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class SubAgentCost:
    """What sub-agents cost that a conversation or a turn of it started. It is not in the cost of these."""

    sub_agents: int
    """Number of the sub-agents."""
    cost_usd: float
    """Cost of all their calls; a lower bound if `unpriced_requests` is not 0."""
    unpriced_requests: int
    """Their model calls whose cost is not known."""


NO_SUB_AGENTS = SubAgentCost(0, 0.0, 0)


class SubAgentCosts(NamedTuple):
    total: SubAgentCost = NO_SUB_AGENTS
    turns: Mapping[tuple[int, int], SubAgentCost] = MappingProxyType({})
    """By branch and last reply of the turn in which a sub-agent was called."""


def read_sub_agent_costs(connection: Connection, tenant: str, conversation: str, session: str) -> SubAgentCosts:
    """What the sub-agents of a main conversation cost, in all and by turn.

    They share its session. A turn of a sub-agent belongs to the newest question of the main conversation before it,
    also if the sub-agent runs in the background after that turn. If a session has several main conversations, a
    sub-agent belongs to the newest one that existed.
    """
    costs = list_conversation_costs(connection, tenant, session=session)
    mains = sorted((each.created_at, each.conversation) for each in costs if each.purpose is None)

    def find_main(at: int) -> str:
        return mains[max(0, bisect_right(mains, (at, "\U0010ffff")) - 1)][1]

    own = [each for each in costs if each.is_sub_agent and find_main(each.created_at) == conversation]
    if not own:
        return SubAgentCosts()
    # A sub-agent's questions are about as old as its branch, which is what counts without them.
    check_in_database(connection, tenant, [conversation])
    names = [conversation, *(each.conversation for each in own)]
    questions = _read_question_times(connection, tenant, names)
    columns = [usage_turns.c[name] for name in TurnUsage._fields]
    where = usage_turns.c.tenant == tenant, usage_turns.c.conversation.in_(names)
    turns = [TurnUsage._make(row) for row in connection.execute(select(*columns).where(*where))]
    starts = sorted(
        (_find_time(questions, turn), turn.branch, turn.seq) for turn in turns if turn.conversation == conversation
    )
    by_turn: defaultdict[tuple[int, int], list[TurnUsage]] = defaultdict(list)
    for turn in turns:
        if turn.conversation != conversation and starts:
            at = _find_time(questions, turn)
            _, branch, seq = starts[max(0, bisect_right(starts, (at, sys.maxsize, 0)) - 1)]
            by_turn[branch, seq].append(turn)

    def add_up(costs: "Sequence[ConversationCost | TurnUsage]") -> SubAgentCost:
        return SubAgentCost(
            len({each.conversation for each in costs}),
            sum(each.cost_nanos for each in costs) / NANOS_PER_DOLLAR,
            sum(each.unpriced_requests for each in costs),
        )

    return SubAgentCosts(add_up(own), {key: add_up(each) for key, each in by_turn.items()})


def _read_question_times(
    connection: Connection, tenant: str, names: Sequence[str]
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Number and time of each user's message, by conversation and branch, after 0 and the time when the branch began:
    it may fork behind a question."""
    keys = [branches.c[name] for name in ("conversation", "branch", "created_at")]
    own = select(*keys).where(branches.c.tenant == tenant, branches.c.conversation.in_(names))
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for name, branch, at in [tuple[Any, ...](row) for row in connection.execute(own)]:
        found[name, branch] = [(0, at)]
    columns = [entries.c[name] for name in ("conversation", "branch", "seq", "at")]
    where = entries.c.tenant == tenant, entries.c.conversation.in_(names), entries.c.role == "user"
    rows = connection.execute(select(*columns).where(*where).order_by(*columns))
    for name, branch, seq, at in [tuple[Any, ...](row) for row in rows]:
        found[name, branch].append((seq, at))
    return found


def _find_time(questions: Mapping[tuple[str, int], list[tuple[int, int]]], turn: TurnUsage) -> int:
    """Time of the question that a turn answers."""
    times = questions[turn.conversation, turn.branch]
    return times[bisect_right(times, (turn.seq, 0)) - 1][1]


class UsageRollup(StorePart):
    """Statistics by day, model, project, source, slot and tool."""

    has_uncounted = read_inline(has_uncounted)
    count = write_bulk(rollup.count_usage)
    read_report = read(read_usage)
    read_item_counts = read(read_item_counts)
    read_document_pairs = read(read_document_pairs)
    list_conversation_costs = read_bulk(list_conversation_costs)

    async def read_conversation(self, conversation: str) -> UsageCounts:
        """What a conversation used, after what is not counted yet of it."""
        while await self.run(write_bulk, rollup.count_conversation, conversation):
            pass
        return await self.run(read, rollup.read_conversation, conversation)

    async def list_session_costs(self, session: str) -> list[ConversationCost]:
        """The conversations of a client's session by cost."""
        await self._count_session(session)
        return await self.list_conversation_costs(session=session)

    async def read_sub_agents(self, conversation: ConversationRecord) -> SubAgentCosts:
        """What the sub-agents of a conversation cost."""
        session = conversation.origin.session if conversation.origin is not None else None
        if session is None or not conversation.is_main:
            return SubAgentCosts()
        await self._count_session(session)
        return await self.run(read_bulk, read_sub_agent_costs, conversation.id, session)

    async def _count_session(self, session: str) -> None:
        """Counts what the roll-up lacks of a session, so that its costs agree with the log."""
        for each in await self.run(read, list_uncounted, session):
            await self.read_conversation(each)

    async def recount(self) -> RecountResult:
        """Compares the roll-up with a full count of the log, and corrects what differs."""
        while await self.count():
            pass
        conversations = await self.run(read_bulk, list_conversation_ids)
        corrected = [await self.run(write_bulk, rollup.recount_conversation, each) for each in conversations]
        return RecountResult(len(conversations), sum(corrected), await self.run(write_bulk, rollup.recount_totals))
