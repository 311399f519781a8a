"""The table of provider features in docs/feature-table.md: every cell is measured against a scripted provider."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from feature_rows import (
    CONVERSATION_ID,
    EMPTY,
    FEATURES,
    MODELS,
    PLAIN_COSTS,
    QUAY,
    RESPONSE_ID,
    Cells,
    Feature,
    render_tables,
)
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import ProviderRequest, ScriptedReply, WireFormatName, run_scripted_provider
from quire.engine import Engine, EngineConfig
from quire.model import Compaction, Entry, Manifest
from quire.model.json_values import dump_json
from quire.settings import Settings
from quire.store import SqlStore

DOCS = Path(__file__).parents[2] / "docs"
MAX_ESTIMATED_TOKENS = 50
"""Tokens by which the count of an interrupted reply may exceed what was sent."""


class Case(NamedTuple):
    """A feature in a conversation of its own."""

    feature: Feature
    quay: str
    is_streamed: bool

    async def send(
        self, harness: GatewayHarness, body: dict[str, Any], ids: dict[str, str], *, path: str | None
    ) -> httpx2.Response:
        content = json.dumps(body).replace(QUAY, self.quay)
        if CONVERSATION_ID in content and CONVERSATION_ID not in ids:
            created = await harness.http.post("/v1/conversations", json={})
            ids[CONVERSATION_ID] = created.json()["id"]
        for name, value in ids.items():
            content = content.replace(name, value)
        model = MODELS["gemini"]
        stream_path = f"models/{model}:streamGenerateContent?alt=sse"
        paths = {
            "chat": "chat/completions",
            "gemini": stream_path if self.is_streamed else f"models/{model}:generateContent",
        }
        path = path or paths.get(self.feature.format, self.feature.format)
        version = "v1beta" if self.feature.format == "gemini" else "v1"
        key = harness.http.headers["Authorization"].removeprefix("Bearer ")
        headers = {"X-Quire-Key": key, "Authorization": "Bearer own"}
        return await harness.http.post(f"/{version}/{path}", content=content.encode(), headers=headers)


def list_cases(format: WireFormatName) -> Iterator[Case]:
    for number, feature in enumerate(each for each in FEATURES if each.format == format):
        for is_streamed in (False, True):
            if feature.is_streamed in (None, is_streamed):
                yield Case(feature, f"quay-{number:02d}-{is_streamed:d}", is_streamed)


class LoggedCase:
    """What the log has of a conversation."""

    def __init__(self, store: SqlStore, conversation: str) -> None:
        self.store, self.conversation = store, conversation
        self.entries: list[Entry] = []
        self.manifests: dict[int, Manifest] = {}
        self.bodies: list[bytes] = []
        self.blobs: list[tuple[str, str]] = []
        """Kind and text of what the manifests name by digest."""

    async def load(self, engine: Engine) -> None:
        for branch in await self.store.list_branches(self.conversation):
            first = branch.fork_seq + 1
            self.entries += await self.store.read_range(self.conversation, branch=branch.number, first=first)
            conversation = await engine.conversation(self.conversation, branch=branch.number)
            for seq, manifest in await self.store.list_manifests(self.conversation, branch=branch.number):
                if seq >= first:
                    self.manifests[seq] = manifest
                    body = (await conversation.replay(seq)).sent_body
                    self.bodies += [body] if body is not None else []
        for row in (row for manifest in self.manifests.values() for row in manifest.decisions):
            if row.blob is not None:
                self.blobs.append((row.kind, (await self.store.get_blob(row.blob)).data.decode()))

    def find_recorded(self, mark: str) -> Iterator[str]:
        usages = [each.metadata.usage.model_dump_json() for each in self.entries if each.metadata.usage is not None]
        places = {
            "message": [each.raw for each in self.entries if each.kind == "message"],
            "usage": usages,
            "body": [dump_json(json.loads(body)) for body in self.bodies],
        }
        yield next((place for place, texts in places.items() if any(mark in text for text in texts)), EMPTY)
        # A sealed compaction follows the message that has its content.
        pairs = zip(self.entries, self.entries[1:], strict=False)
        sealed = [
            mark in reply.raw for reply, each in pairs if isinstance(each.body, Compaction) and each.body.is_sealed
        ]
        if any(sealed) or any(mark in each.raw for each in self.entries if isinstance(each.body, Compaction)):
            yield "compaction"

    def find_in_manifest(self, mark: str) -> str:
        seqs = {each.seq for each in self.entries if each.kind == "message" and mark in each.raw}
        rows = [row for manifest in self.manifests.values() for row in manifest.decisions]
        if any(row.included and row.span is not None and seq in row.span for row in rows for seq in seqs):
            return "message"
        for kind, text in self.blobs:
            if mark in text:
                return kind
        if any(mark in dump_json(manifest.model_dump(mode="json")) for manifest in self.manifests.values()):
            return "named"
        return "digest" if any(mark in dump_json(json.loads(body)) for body in self.bodies) else EMPTY

    def find_price(self, feature: Feature) -> str:
        reply = next(each for each in self.entries if each.seq == min(self.manifests))
        cost, expected = reply.metadata.cost_usd, PLAIN_COSTS[feature.format] if feature.cost is None else feature.cost
        if cost is None:
            return EMPTY
        if reply.metadata.incomplete:
            return "estimate" if expected <= cost < expected + MAX_ESTIMATED_TOKENS * 15e-6 else EMPTY
        if cost != pytest.approx(expected, rel=1e-9):
            return EMPTY
        return "at least" if reply.metadata.cost_incomplete else "yes"

    def find_replay(self, sent: list[bytes]) -> str:
        if sorted(self.bodies) != sorted(sent):
            return EMPTY
        is_rebuilt = all(each.forwarded and each.forwarded.replayable for each in self.manifests.values())
        return "bytes, log" if is_rebuilt else "bytes"


async def measure(store: SqlStore, format: WireFormatName) -> dict[str, Cells]:
    """The cells of every feature of a format; a stream and a whole reply must give the same."""
    cases = {case.quay: case for case in list_cases(format)}
    firsts, seconds = dict[str, httpx2.Response](), dict[str, httpx2.Response]()
    ids = {quay: dict[str, str]() for quay in cases}
    answered = set[str]()

    def reply(request: ProviderRequest) -> ScriptedReply:
        found = re.search(rb"quay-\d\d-\d", request.raw)
        quay = found[0].decode() if found is not None else ""
        is_first = quay in cases and quay not in answered
        answered.add(quay)
        plain = Feature(format=format, name="", marks=(), cells=Cells("", "")).reply
        chosen = cases[quay].feature.reply if is_first else plain
        return replace(chosen, content=tuple(json.loads(json.dumps(chosen.content).replace(QUAY, quay))))

    with run_scripted_provider(reply) as provider:
        base_url = provider.url if format == "gemini" else provider.openai_url
        upstreams = {"*": {"base_url": base_url, "speaks": [format], "credentials": "client"}}
        settings: dict[str, Any] = {"upstreams": upstreams, "context_limit": 400_000}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            for case in cases.values():
                body = case.feature.build_request(stream=case.is_streamed)
                firsts[case.quay] = await case.send(harness, body, ids[case.quay], path=case.feature.path)
        # After a restart nothing is cached, and no header names the conversation.
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            for case in cases.values():
                found = re.search(r'"id": ?"((?:resp|msg)_\w+)"', firsts[case.quay].text)
                case_ids = {**ids[case.quay], RESPONSE_ID: found[1] if found is not None else ""}
                body = case.feature.build_next_request(stream=case.is_streamed)
                seconds[case.quay] = await case.send(harness, body, case_ids, path=None)
    measured: dict[str, Cells] = {}
    engine = Engine(store, EngineConfig.create(Settings(model=MODELS[format])))
    for case in cases.values():
        first, second = firsts[case.quay], seconds[case.quay]
        feature, conversation = case.feature, first.headers.get("x-quire-conversation")
        cells = Cells(*[EMPTY] * 5)
        if conversation is not None and first.headers.get("x-quire-recorded") != "no":
            logged = LoggedCase(store, conversation)
            await logged.load(engine)
            is_same = (second.status_code, second.headers.get("x-quire-conversation")) == (200, conversation)
            continued = "yes" if second.headers.get("x-quire-branch") == "0" else "branch"
            cells = Cells(
                ", ".join(dict.fromkeys(place for mark in feature.marks for place in logged.find_recorded(mark))),
                ", ".join(dict.fromkeys(map(logged.find_in_manifest, feature.marks))),
                logged.find_replay([each.raw for each in provider.requests if case.quay.encode() in each.raw]),
                logged.find_price(feature),
                continued if is_same else EMPTY,
            )
        assert measured.setdefault(feature.name, cells) == cells, f"{feature.name}: a stream gives other cells."
    return measured


@pytest.mark.parametrize("format", ["chat", "messages", "responses", "gemini"])
async def test_every_cell_is_measured(store: SqlStore, format: WireFormatName):
    expected = {each.name: each.cells for each in FEATURES if each.format == format}
    measured = await measure(store, format)
    assert {name: cells for name, cells in measured.items() if cells != expected[name]} == {}


def test_the_page_has_the_table():
    """`python tests/server/feature_rows.py` prints it."""
    assert render_tables() in (DOCS / "feature-table.md").read_text()


def test_every_empty_cell_has_a_sentence_in_the_limits():
    limits = " ".join((DOCS / "limits.md").read_text().split())
    gaps = [each for each in FEATURES if any(EMPTY in cell or cell == "estimate" for cell in each.cells)]
    assert [each.name for each in gaps if each.limit not in limits] == []
    assert len(FEATURES) >= 40
