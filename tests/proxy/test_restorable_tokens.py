"""How much of what a client's compaction covered comes back: up to its own limit, unless the user had it compact."""

import pytest

from quire.model import Compaction, Draft, Entry, Message, Policy, Span
from quire.proxy import edited_requests
from quire.proxy.edited_requests import MANUAL_COMPACTION, SentTokens, measure_restorable_tokens
from quire.store import SqlStore

POLICY = Policy(model="gpt-5", window=100_000, wire_format="responses")
SENT_TOKENS, FIXED_TOKENS, LIST_TOKENS = 20_000, 1_000, 2_000


def name_turn(number: int) -> bytes:
    return b'{"input":[],"client_metadata":{"turn_id":"%d"}}' % number


@pytest.mark.parametrize(
    ("asked", "continued", "body", "is_manual"),
    [
        pytest.param(name_turn(1), name_turn(1), name_turn(2), False, id="in the turn that goes on"),
        pytest.param(name_turn(2), name_turn(3), name_turn(4), True, id="a turn of its own"),
        pytest.param(name_turn(2), None, name_turn(3), True, id="a turn of its own, the newest"),
        pytest.param(name_turn(2), None, b"{}", False, id="not known"),
        pytest.param(b"{}", b"{}", MANUAL_COMPACTION, True, id="as Claude Code says"),
        pytest.param(b"{}", b"{}", b"{}", False, id="as Claude Code does not say"),
    ],
)
async def test_the_limit_is_the_clients_own_unless_the_user_had_it_compact(
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
    asked: bytes,
    continued: bytes | None,
    body: bytes,
    *,
    is_manual: bool,
):
    await store.create_conversation("c")
    covered = await store.append("c", Message.user("Read on."), Message.assistant("Done."))
    compaction = Compaction(number=1, covers=Span(first=1, last=covered[-1].seq), trigger="client", summary="Read.")
    [made] = await store.append("c", Draft(body=compaction))
    bodies = {covered[-1].seq: asked}
    if continued is not None:
        *_, reply = await store.append("c", Message.user("And now?"), Message.assistant("Nothing."))
        bodies[reply.seq] = continued

    async def read_tokens(*_: object, first: int = 1, last: int | None = None) -> SentTokens | None:
        return SentTokens(SENT_TOKENS, SENT_TOKENS, FIXED_TOKENS) if first == 1 else None

    async def load_body(_: SqlStore, reply: Entry, _branch: int) -> bytes:
        return bodies[reply.seq]

    monkeypatch.setattr(edited_requests, "_read_sent_tokens", read_tokens)
    monkeypatch.setattr(edited_requests, "_load_body", load_body)
    found = await measure_restorable_tokens(
        store, compaction, POLICY, place=("c", 0, made.seq), body=body, list_tokens=LIST_TOKENS
    )
    limit = POLICY.trigger_tokens if is_manual else SENT_TOKENS
    assert found == (limit - LIST_TOKENS - FIXED_TOKENS) // 2
