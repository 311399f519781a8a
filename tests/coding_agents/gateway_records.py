"""What a gateway recorded of an agent's sessions, read from the store."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gateway_fixtures import GatewayHarness

from infra.scripted_provider import ScriptedProvider
from quire.log import ConversationRecord
from quire.log.types import Branch
from quire.model.manifest import ForwardedRequest, Manifest
from quire.store import SqlStore


@dataclass(frozen=True)
class RecordedSession:
    """A conversation with its branches and the manifests of its requests, each once."""

    conversation: ConversationRecord
    branches: tuple[Branch, ...]
    manifests: tuple[Manifest, ...]

    @property
    def forwarded(self) -> list[ForwardedRequest]:
        return [manifest.forwarded for manifest in self.manifests if manifest.forwarded is not None]

    @property
    def fork_points(self) -> set[int]:
        """Numbers of the entries at which branches leave the main one."""
        return {branch.fork_seq for branch in self.branches if branch.number != 0}


async def load_sessions(store: SqlStore) -> list[RecordedSession]:
    return [await _load_session(store, record) for record in await store.list_conversations()]


async def _load_session(store: SqlStore, record: ConversationRecord) -> RecordedSession:
    branches = await store.list_branches(record.id)
    manifests: dict[str, Manifest] = {}
    for branch in branches:
        for _, manifest in await store.list_manifests(record.id, branch=branch.number):
            assert manifest.forwarded is not None
            manifests[manifest.forwarded.digest] = manifest
    return RecordedSession(record, tuple(branches), tuple(manifests.values()))


def assert_all_recorded(sessions: list[RecordedSession], provider: ScriptedProvider) -> None:
    """Every request that the upstream received is recorded by its digest, and none is above its budget."""
    recorded = {each.digest for session in sessions for each in session.forwarded}
    assert {sha256(request.raw).hexdigest() for request in provider.requests} == recorded
    manifests = [manifest for session in sessions for manifest in session.manifests]
    assert [each.total_tokens for each in manifests if each.total_tokens > each.max_input_tokens] == []


def get_address(harness: GatewayHarness) -> dict[str, Any]:
    """Base URL and key of a gateway, as an agent takes them."""
    key = harness.http.headers["authorization"].removeprefix("Bearer ")
    return {"base_url": str(harness.http.base_url).rstrip("/"), "key": key}
