"""What must hold after faults: every acknowledged turn is in the log once and in order, the hash chains verify, and
spending is what the upstream delivered."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fault_clients import FaultClient, Turns

from infra.metered_upstream import MeteredUpstream, parse_call_number
from quire.store import SqlStore

_TOLERANCE_USD = 1e-9


@dataclass
class CheckResult:
    acknowledged_turns: int = 0
    conversations: int = 0
    spent_usd: float = 0.0
    acknowledged_usd: float = 0.0
    """Cost of the calls whose reply was acknowledged."""
    delivered_usd: float = 0.0
    """Cost of all calls of which the upstream delivered a part."""
    failures: list[str] = field(default_factory=list[str])


async def check_clients(store: SqlStore, upstream: MeteredUpstream, clients: Iterable[FaultClient]) -> CheckResult:
    result = CheckResult()
    for client in clients:
        result.failures += client.unexpected
        for conversation, turns in client.acknowledged.items():
            if turns:
                result.conversations += 1
                result.acknowledged_turns += len(turns) // 2
                result.failures += await _find_log_failures(store, conversation, turns)
                await _check_spending(store, upstream, conversation, turns, result)
    return result


async def _find_log_failures(store: SqlStore, conversation: str, turns: Turns) -> list[str]:
    lines: list[Turns] = []
    for branch in await store.list_branches(conversation):
        entries = await store.read_range(conversation, branch=branch.number, kinds=["message"])
        lines.append([(entry.message.role, entry.message.text) for entry in entries])
    line = max(lines, key=lambda line: _count_common_prefix(line, turns))
    length = _count_common_prefix(line, turns)
    failures = [f"{conversation}: {fault}" for fault in await store.verify_conversation(conversation)]
    if length < len(turns):
        stored = {message for line in lines for message in line}
        lost = sum(message not in stored for message in turns)
        failures.append(f"{conversation}: message {length} is not in its place; {lost} of {len(turns)} are lost")
    counts = Counter(line)
    doubled = [text[:60] for role, text in turns if counts[role, text] > 1]
    return failures + [f"{conversation}: stored more than once: {text!r}" for text in doubled]


def _count_common_prefix(line: Turns, turns: Turns) -> int:
    return next((index for index, pair in enumerate(zip(line, turns, strict=False)) if pair[0] != pair[1]),
                min(len(line), len(turns)))  # fmt: skip


async def _check_spending(
    store: SqlStore, upstream: MeteredUpstream, conversation: str, turns: Turns, result: CheckResult
) -> None:
    """Spending is at least the cost of what was acknowledged, and equals what was delivered within the cost of what was
    in flight when a fault occurred: Quire estimates the usage of a reply that it did not get whole."""
    numbers = {parse_call_number(text) for role, text in turns if role == "assistant"}
    acknowledged = sum(upstream.calls[number].cost_usd for number in numbers if number is not None)
    delivered = sum(call.cost_usd for call in upstream.calls.values() if call.conversation == conversation)
    refused = sum(call.cost_usd for call in upstream.refused if call.conversation == conversation)
    in_flight = delivered - acknowledged + refused
    spent = await store.spending.get_cost(conversation)
    if not acknowledged - _TOLERANCE_USD <= spent <= delivered + in_flight + _TOLERANCE_USD:
        result.failures.append(
            f"{conversation}: spent {spent:.6f}, acknowledged {acknowledged:.6f}, delivered {delivered:.6f}, "
            f"refused {refused:.6f}"
        )
    result.spent_usd += spent
    result.acknowledged_usd += acknowledged
    result.delivered_usd += delivered
