"""Values: canonical JSON that preserves every byte, hash chains over it, and the state of a branch."""

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.strategies import messages
from quire.errors import (
    ContextOverflow,
    InvalidEntry,
    MissingExtra,
    ModelNotAllowed,
    QuireError,
    StaleCompaction,
)
from quire.model import (
    CHAIN_ROOT,
    ActiveCompaction,
    BranchState,
    Compaction,
    ContextChange,
    ContextItem,
    ImagePart,
    Message,
    Pin,
    Restore,
    Span,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Unpin,
    apply_entry,
    iter_paths,
)


@given(messages())
def test_a_message_survives_its_json_form_byte_for_byte(message: Message):
    raw = message.canonical_json()
    again = Message.parse(raw)
    assert again == message
    assert again.canonical_json() == raw
    assert "\n" not in raw


def test_a_thinking_signature_and_unknown_fields_keep_their_bytes_and_order():
    fields = {"z": 1, "a": {"y": [1.0, 1e300, 10**30, None, "\u00e9"], "b": "\x00"}}
    part = ThinkingPart(text="hm", signature="EqQBCgIYAhIM+/=\u00fc", provider_fields=fields)
    again = Message.parse(
        Message(role="assistant", parts=(part,), provider_fields={"q": None, "c": []}).canonical_json()
    )
    thought = again.parts[0]
    assert isinstance(thought, ThinkingPart)
    assert thought.signature == part.signature
    assert json.dumps(thought.provider_fields) == json.dumps(fields)
    assert again.provider_fields == {"q": None, "c": []}


def test_what_the_model_wrote_as_arguments_is_not_reformatted():
    call = ToolCallPart(id="1", name="f", arguments='{ "b" : 1,\t"a": 1.0 ')
    assert (
        Message.parse(Message(role="assistant", parts=(call,)).canonical_json()).tool_calls[0].arguments
        == call.arguments
    )


def test_values_are_frozen_and_know_their_fields():
    with pytest.raises(ValidationError):
        Message.user("a").role = "assistant"
    with pytest.raises(ValidationError):
        Message.parse('{"role":"user","parts":[],"surprise":1}')
    with pytest.raises(ValidationError):
        Span(first=3, last=2)


@pytest.mark.parametrize("source", [{}, {"url": "u", "blob": "0" * 64}, {"blob": "not a digest"}])
def test_an_image_has_exactly_one_source(source: dict[str, str]):
    with pytest.raises(ValidationError):
        ImagePart(**source)


@given(st.lists(messages(), max_size=6), st.integers(0, 5))
def test_paths_are_shared_up_to_the_first_difference(history: list[Message], at: int):
    paths = list(iter_paths(message.canonical_json().encode() for message in history))
    other = [message.canonical_json().encode() for message in history]
    if at < len(other):
        other[at] = Message.user("something that no one else says").canonical_json().encode()
    changed = list(iter_paths(other))
    assert paths[:at] == changed[:at]
    assert all(mine != theirs for mine, theirs in zip(paths[at:], changed[at:], strict=True))
    assert len({CHAIN_ROOT, *paths}) == len(paths) + 1


def test_a_purged_message_has_its_structure_and_no_content():
    message = Message(
        role="assistant",
        parts=(
            TextPart(text="secret"),
            ThinkingPart(text="secret"),
            ToolCallPart(id="7", name="f", arguments='"secret"'),
        ),
        provider_fields={"x": "secret"},
    )
    purged = message.without_content()
    assert "secret" not in purged.canonical_json()
    result = Message(
        role="tool", parts=(ToolResultPart(call_id="7", content=(ImagePart(url="secret"),), is_error=True),)
    )
    [purged_result] = result.without_content().tool_results
    assert "secret" not in purged_result.canonical_json()
    assert purged_result.is_error
    # Ids may contain text, too; the result still belongs to its call.
    assert [call.id for call in purged.tool_calls] == [purged_result.call_id] != ["7"]


def _no_lookup(_seq: int) -> ActiveCompaction:
    raise AssertionError("nothing to look up")


def test_apply_entry_follows_compactions_and_their_undo():
    first = Compaction(number=1, covers=Span(first=1, last=3), summary="s")
    second = Compaction(number=2, covers=Span(first=1, last=6), summary="t", supersedes=5)
    one = apply_entry(BranchState(), 5, first, compaction_at=_no_lookup)
    two = apply_entry(one, 9, second, compaction_at=_no_lookup)
    assert two.active_compaction == ActiveCompaction(seq=9, number=2, covers=second.covers, supersedes=5)
    back = apply_entry(
        two, 10, Restore(compaction=9), compaction_at={5: ActiveCompaction.from_entry(5, first)}.__getitem__
    )
    assert back.active_compaction == one.active_compaction
    assert apply_entry(back, 11, Restore(compaction=5), compaction_at=_no_lookup).active_compaction is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (Compaction(number=2, covers=Span(first=1, last=2)), StaleCompaction),
        (Compaction(number=1, covers=Span(first=1, last=2), supersedes=1), StaleCompaction),
        (Compaction(number=1, covers=Span(first=1, last=9)), InvalidEntry),
        (Restore(compaction=3), StaleCompaction),
        (Pin(message=9), InvalidEntry),
    ],
)
def test_apply_entry_rejects_what_was_decided_on_another_state(body: object, error: type[QuireError]):
    with pytest.raises(error):
        apply_entry(BranchState(), 9, body, compaction_at=_no_lookup)  # type: ignore[arg-type]


def test_apply_entry_tracks_pins_and_items():
    rule = ContextItem(type="rule", name="style")
    tool = ContextItem(type="tool", name="read", server="files")
    state = BranchState()
    for seq, body in enumerate(
        [
            Pin(message=2),
            Pin(message=1),
            Pin(message=2),
            Unpin(message=1),
            ContextChange(action="add", item=rule, include="always"),
            ContextChange(action="add", item=tool),
            ContextChange(action="add", item=tool),
            ContextChange(action="remove", item=rule),
        ],
        start=5,
    ):
        state = apply_entry(state, seq, body, compaction_at=_no_lookup)
    assert state.pins == (2,)
    assert [(each.item, each.include) for each in state.items] == [(tool, "manual")]


def _needs_arguments(kind: type[QuireError]) -> bool:
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(each.default is inspect.Parameter.empty and each.kind not in variable for each in parameters)


def test_every_error_has_a_message_and_is_in_the_tree():
    from quire import errors

    assert "pip install" in str(MissingExtra(extra="postgres", feature="PostgreSQL"))
    assert "gpt-4o" in str(ModelNotAllowed("gpt-4o", allowed=["gpt-4o-mini"]))
    tree = errors.__doc__ or ""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, QuireError):
            assert name in tree
            assert _needs_arguments(kind) or str(kind())
    largest = [("message #3", 900), ("tool 'read'", 200)]
    overflow = str(ContextOverflow(needed_tokens=2_000, available_tokens=1_000, largest_items=largest))
    assert "message #3 (900 tokens), tool 'read' (200 tokens)" in overflow
