"""Manifests of lists that pass through are encoded by a template: the same bytes as the objects have."""

import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from gateway_fixtures import GatewayHarness, assistant_message, run_gateway, system_message, user_message
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import respond_with_text, run_fake_upstream
from quire.engine import EngineConfig, recorder
from quire.engine.request import Request
from quire.model import Decision, Entry, Manifest, Span
from quire.model.ids import new_id
from quire.model.manifest import EncodedManifest, ForwardedRequest, SlotUsage
from quire.proxy.prepare import ClientAssembly
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.manifest_template import ManifestTemplate, read_values

COUNTS = st.integers(1, 10**9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


POLICY = EngineConfig.create(Settings(model="m%s")).policy


@st.composite
def manifests(draw: st.DrawFn, has_span: bool, has_list: bool, names: Sequence[str]) -> Manifest:
    """Manifests of one form, which these arguments decide."""
    rows = [
        Decision(slot="tools", kind="tool", included=True, reason="always", tokens=7, name=name, blob="b" * 64)
        for name in names
    ]
    span = Span(first=draw(COUNTS), last=10**9) if has_span else None
    rows.append(
        Decision(slot="messages", kind="message", included=True, reason="recent", tokens=draw(COUNTS), span=span)
    )
    return Manifest(
        renderer=3,
        conversation=draw(NAMES),
        branch=draw(COUNTS),
        head=draw(COUNTS),
        policy=POLICY,
        counter="chat:o200k_base",
        exact=True,
        ratio=draw(st.floats(0.25, 4.0)),
        slots=(SlotUsage(slot="tools", budget=draw(COUNTS), used=draw(COUNTS)),),
        total_tokens=draw(COUNTS),
        full_history_tokens=draw(COUNTS),
        max_input_tokens=draw(COUNTS),
        trigger_tokens=draw(COUNTS),
        decisions=tuple(rows),
        stable_messages=draw(COUNTS),
        digest=draw(DIGESTS),
        forwarded=ForwardedRequest(
            form="unchanged",
            digest=draw(DIGESTS),
            replayable=True,
            client_list_tokens=draw(COUNTS) if has_list else None,
            request_blob=None if has_list else draw(DIGESTS),
        ),
    )


@given(data=st.data(), has_span=st.booleans(), has_list=st.booleans(), names=st.lists(NAMES, max_size=3))
def test_a_template_gives_the_json_of_every_manifest_of_its_form(
    data: st.DataObject, has_span: bool, has_list: bool, names: list[str]
):
    form = manifests(has_span, has_list, names)
    template = ManifestTemplate(data.draw(form), row_count=1)
    manifest = data.draw(form)
    assert template.encode(read_values(manifest, 1)) == manifest.canonical_json()


@given(manifests(True, True, [str(number) for number in range(8_160_350_000_000_000, 8_160_350_000_000_030)]))
def test_a_name_like_a_marker_has_no_template(manifest: Manifest):
    with pytest.raises(ValueError, match="is not one value"):
        ManifestTemplate(manifest, row_count=1)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compares each encoded manifest with the object; returns the forms of the requests."""
    forms: list[str] = []
    finalize = recorder._finalize_manifest

    def compare(request: Request, decisions: Any, stored: Sequence[Entry], **options: Any) -> Any:
        encoded = finalize(request, decisions, stored, **options)
        usual: dict[str, Any] = {**options, "may_encode": False}
        manifest = finalize(request, decisions, stored, **usual)
        assert isinstance(manifest, Manifest)
        if isinstance(request.assembly, ClientAssembly):
            assert isinstance(encoded, EncodedManifest)
            assert encoded == EncodedManifest.from_manifest(manifest)
            forms.append(request.assembly.forwarded.form if request.assembly.forwarded is not None else "")
        return encoded

    monkeypatch.setattr(recorder, "_finalize_manifest", compare)
    return forms


TOOL = {"type": "function", "function": {"name": "look%s", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look%s", "arguments": "{}"}}


async def take_random_turns(gateway: GatewayHarness, choose: random.Random, turns: int) -> None:
    """Turns of several conversations: with tools, results, another model, a header, and lists that begin anew."""
    histories: dict[str, list[dict[str, Any]]] = {}
    for number in range(turns):
        name = choose.choice([*histories, new_id(), f'ümlaut "{number}" %s'])
        history = histories.setdefault(name, [])
        if not history and choose.random() < 0.5:
            history.append(system_message("Be brief. " * choose.randint(1, 400)))
        if choose.random() < 0.3 and history:
            history.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
            history.append({"role": "tool", "tool_call_id": "c1", "content": f"result {number}"})
        else:
            history.append(user_message(f"question {number} " * choose.randint(1, 50)))
        more: dict[str, Any] = {"tools": [TOOL]} if choose.random() < 0.5 else {}
        if choose.random() < 0.5:
            more["x_quire_conversation"] = quote(name)
        response = await gateway.ask(*history, model=choose.choice(["gpt-4o", "renamed"]), **more)
        assert response.status_code == 200, response.text
        history.append(assistant_message(response.json()["choices"][0]["message"]["content"]))


async def test_random_turns_are_stored_with_the_json_of_their_objects(store: SqlStore, compared: list[str]):
    async with run_fake_upstream(respond_with_text("an answer")) as upstream:
        upstreams = {"renamed": {"base_url": upstream.url, "model": "other"}}
        async with run_gateway(store, upstream.url, context_limit=4_000, upstreams=upstreams) as gateway:
            await take_random_turns(gateway, random.Random(38), 60)
    assert {"unchanged", "model_renamed"} <= set(compared)
    assert len(compared) > 30
