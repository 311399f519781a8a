"""Edits of a client's list, over random lists and edits: valid, stable, idempotent, and never against a signature."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.sizes import IS_FULL_SIZE
from proxy.client_lists import EDITORS, Item, make_answer, make_calls, make_question, make_results
from quire.model.entry_bodies import ContextEpoch, EditedSummary, Span
from quire.proxy.context_edits import DropTarget, LogTexts, RequestedEdits, edit_list, plan_epoch, splice_items


@dataclass
class Provider:
    """Checks what a provider checks: pairs of calls and results, and that signed reasoning follows what it was made
    for."""

    wire: str
    bound: dict[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])

    def check(self, items: list[Item]) -> None:
        self.check_pairs(items)
        thinking_before: str | None = None
        plain: list[Any] = []
        for item in items:
            blocks = item.get("content") if self.wire == "messages" else None
            for block in blocks if isinstance(blocks, list) else ():
                if block.get("type") != "thinking":
                    continue
                prefix, previous = self.bound[block["signature"]]
                assert prefix == json.dumps(plain), "signed for another list"
                assert thinking_before in (previous, None), "reasoning was removed from the middle"
                thinking_before = block["signature"]
            plain.append(strip_thinking(item))

    def sign(self, sent: list[Item], signature: str) -> None:
        blocks = [b for each in sent for b in each["content"] if isinstance(each["content"], list)]
        previous = [block["signature"] for block in blocks if block.get("type") == "thinking"]
        self.bound[signature] = json.dumps([strip_thinking(each) for each in sent]), previous[-1] if previous else None

    def check_pairs(self, items: list[Item]) -> None:
        editor = EDITORS[self.wire]
        open_calls: set[str] = set()
        seen: set[str] = set()
        for item in items:
            results = {call_id for call_id, _ in editor.list_results(item)}
            assert results <= open_calls
            open_calls -= results
            calls = {call_id for call_id, _, _ in editor.list_calls(item)}
            assert not calls & seen
            if editor.is_question(item) or (calls and self.wire != "responses"):
                assert not open_calls, "a call without its result"
            open_calls |= calls
            seen |= calls
            assert item.get("content") not in ([], "")
        assert not open_calls


def strip_thinking(item: Item) -> Item:
    content = item.get("content")
    if not isinstance(content, list):
        return item
    return {**item, "content": [block for block in content if block.get("type") != "thinking"]}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "call", "calls", "drop", "undrop", "quote", "unquote", "cold", "rewind"]),
        st.integers(0, 30),
    ),
    min_size=4,
    max_size=30,
)


@dataclass
class Session:
    """A client that grows its list, a user that edits, and the log between them."""

    wire: str
    provider: Provider
    items: list[Item] = field(default_factory=list[Item])
    drops: dict[int, DropTarget] = field(default_factory=dict[int, DropTarget])
    quotes: set[int] = field(default_factory=set[int])
    log: dict[int, str] = field(default_factory=dict[int, str])
    results: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    epoch: ContextEpoch | None = None
    sent: list[Item] = field(default_factory=list[Item])
    count: int = 0
    cold: bool = False

    def request(self) -> list[Item]:
        """Sends the list; returns what the provider gets."""
        editor = EDITORS[self.wire]
        requested = RequestedEdits(drops=list(self.drops.values()), quotes=sorted(self.quotes))
        began = plan_epoch(self.items, self.epoch, requested, editor, may_break=self.cold)
        old = self.epoch or ContextEpoch(newest=editor.make_anchor(self.items, 0))
        self.epoch = began or self.epoch
        texts = LogTexts(quotes=self.log)
        edited = edit_list(self.items, self.epoch, texts, editor) if self.epoch is not None else None
        sent: Any = edited.apply(self.items) if edited is not None else list(self.items)
        self.provider.check(sent)
        if self.epoch is not None and edited is not None:
            assert edit_list(sent, self.epoch, texts, editor).apply(sent) == sent, "not idempotent"
            name = "input" if self.wire == "responses" else "messages"
            raw = json.dumps({"model": "m", name: self.items, "stream": True}, ensure_ascii=False).encode()
            start = raw.index(b"[") + 1
            content, end = splice_items(raw, start, edited)
            spliced = raw[:start] + content + raw[end:]
            assert json.loads(spliced) == {"model": "m", name: sent, "stream": True}
            assert (spliced == raw) == (not edited.replaced)
        is_appended = set(old.quotes or ()) <= set((self.epoch or old).quotes or ())
        is_same = old.stale_thinking == (self.epoch or old).stale_thinking and is_appended
        if is_same and self.items[: len(self.before)] == self.before:
            assert sent[: len(self.sent)] == self.sent, "the prefix broke without an edit in place"
        self.sent, self.before = sent, list(self.items)
        self.cold = False
        return sent

    before: list[Item] = field(default_factory=list[Item])

    def ask(self) -> None:
        self.count += 1
        self.items += make_question(self.wire, f"question {self.count}")
        self.reply_with([])

    def reply_with(self, ids: list[str]) -> None:
        sent = self.request()
        signature = f"t{self.count}-{len(self.items)}" if self.wire == "messages" else ""
        if signature:
            self.provider.sign(sent, signature)
        if ids:
            self.items += make_calls(self.wire, ids, signature)
        else:
            self.items += make_answer(self.wire, f"answer {self.count} {len(self.items)}", signature)

    def call(self, width: int) -> None:
        self.count += 1
        ids = [f"call_{self.count}_{number}" for number in range(width)]
        self.items += make_question(self.wire, f"do {self.count}")
        self.reply_with(ids)
        self.items += make_results(self.wire, ids, 40 * self.count)
        self.results += [(self.count, id_, 40 * self.count + 1) for id_ in ids]
        self.reply_with([])


def run_session(wire: str, steps: list[tuple[str, int]]) -> Session:
    session = Session(wire, Provider(wire))
    for action, number in steps:
        match action:
            case "turn":
                session.ask()
            case "call" | "calls":
                session.call(1 if action == "call" else 1 + number % 4)
            case "drop" if session.results:
                message, call_id, chars = session.results[number % len(session.results)]
                session.drops[message] = DropTarget(message, [(call_id, chars)])
                session.cold |= bool(number % 2)
            case "undrop" if session.drops:
                del session.drops[list(session.drops)[number % len(session.drops)]]
            case "quote":
                session.quotes.add(number + 1)
                session.log[number + 1] = f"<kept>{number}</kept>"
            case "unquote" if session.quotes:
                session.quotes.remove(sorted(session.quotes)[number % len(session.quotes)])
            case "cold":
                session.cold = True
            case "rewind" if session.items:
                cut = max(i for i, item in enumerate(session.items) if EDITORS[wire].is_question(item))
                session.items = session.items[:cut]
                session.results = [r for r in session.results if r[1] in json.dumps(session.items)]
            case _:
                pass
    return session


@pytest.mark.parametrize("wire", list(EDITORS))
@settings(max_examples=500 if IS_FULL_SIZE else 60, deadline=None)
@given(steps=STEPS)
def test_edited_lists_are_valid_stable_and_idempotent(wire: str, steps: list[tuple[str, int]]) -> None:
    run_session(wire, steps)


@pytest.mark.parametrize("wire", list(EDITORS))
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_without_edits_the_list_is_the_clients_again(wire: str, steps: list[tuple[str, int]]) -> None:
    session = run_session(wire, steps)
    session.drops.clear()
    session.quotes.clear()
    session.cold = True
    session.ask()
    asked = session.items[: len(session.sent)]
    assert [strip_thinking(each) for each in session.sent] == [strip_thinking(each) for each in asked]


@pytest.mark.parametrize("wire", list(EDITORS))
def test_a_dropped_result_is_a_stub_and_nothing_of_the_newest_round_is(wire: str) -> None:
    session = Session(wire, Provider(wire))
    session.call(2)
    session.drops[1] = DropTarget(1, [(session.results[0][1], 41)])
    session.cold = True
    session.ask()
    text = json.dumps(session.sent, ensure_ascii=False)
    assert "[dropped by the user: " in text
    assert "41 characters; read #1]" in text
    assert text.count("é" * 40) == 1
    session.items += make_question(wire, "do more")
    session.reply_with(["newest"])
    session.items += make_results(wire, ["newest"], 40)
    session.drops[9] = DropTarget(9, [("newest", 41)])
    session.cold = True
    assert "read #9" not in json.dumps(session.request())


@pytest.mark.parametrize("wire", list(EDITORS))
def test_a_restored_list_replaces_the_summary(wire: str) -> None:
    editor = EDITORS[wire]
    covered = [*make_question(wire, "the port is 8123"), *make_answer(wire, "noted", "")]
    items = [*make_question(wire, "Summary: something"), *make_answer(wire, "tail", ""), *make_question(wire, "go on")]
    anchor = editor.make_anchor(items, 0)
    for is_partial in (True, None):
        summary = EditedSummary(item=anchor, restored=Span(first=1, last=2), is_partial=is_partial)
        epoch = plan_epoch(items, None, RequestedEdits(summary=summary), editor, may_break=True)
        assert epoch is not None
        sent = edit_list(items, epoch, LogTexts(restored=covered), editor).apply(items)
        kept = items[:1] if is_partial else []
        assert sent == [*kept, *covered, *items[1:]]
        longer = [*items, *make_answer(wire, "done", "")]
        assert edit_list(longer, epoch, LogTexts(restored=covered), editor).apply(longer)[: len(sent)] == sent


def test_a_restored_question_is_not_sent_twice_and_instructions_stay() -> None:
    """Codex keeps the user's messages, with their IDs, and its instructions before the summary."""
    editor = EDITORS["responses"]
    rules: Item = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    first, second = (make_question("responses", text)[0] for text in ("first", "second"))
    covered = [second, *make_calls("responses", ["call_1"], ""), *make_results("responses", ["call_1"], 10)]
    tail = [*make_answer("responses", "tail", ""), *make_question("responses", "go on")]
    sealed: Item = {"type": "compaction", "encrypted_content": "x"}
    for compacted in (*make_question("responses", "Summary: something"), sealed):
        items = [first, rules, second, compacted, *tail]
        anchor = editor.make_anchor(items, 3)
        for is_partial, expected in (
            (True, [first, rules, compacted, *covered, *tail]),
            (None, [rules, *covered, *tail]),
        ):
            summary = EditedSummary(item=anchor, restored=Span(first=2, last=4), is_partial=is_partial)
            epoch = plan_epoch(items, None, RequestedEdits(summary=summary), editor, may_break=True)
            assert epoch is not None
            assert edit_list(items, epoch, LogTexts(restored=covered), editor).apply(items) == expected


@pytest.mark.parametrize("is_partial", [True, None])
@pytest.mark.parametrize("is_repeated", [True, False], ids=["unanswered before", "new"])
def test_a_question_in_the_message_of_the_summary_stays(*, is_partial: bool | None, is_repeated: bool) -> None:
    """Claude Code puts the next question into the message of the summary if it kept no reply."""
    editor = EDITORS["messages"]
    summary, output, question = (
        {"type": "text", "text": text}
        for text in (
            "This session is being continued from a previous conversation. Summary: a port.",
            "<local-command-stdout>Compacted</local-command-stdout>",
            "Which port?",
        )
    )
    covered = [*make_question("messages", "It is 8123."), *make_answer("messages", "noted", "")]
    covered += make_question("messages", "Which port?") if is_repeated else []
    items: list[Item] = [
        {"role": "user", "content": [summary, output, question | {"cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Be brief."},
        *make_answer("messages", "I do not know.", ""),
        *make_question("messages", "And now?"),
    ]
    requested = EditedSummary(
        item=editor.make_anchor(items, 0), restored=Span(first=1, last=len(covered)), is_partial=is_partial
    )
    epoch = plan_epoch(items, None, RequestedEdits(summary=requested), editor, may_break=True)
    assert epoch is not None
    sent: Any = edit_list(items, epoch, LogTexts(restored=covered), editor).apply(items)
    texts = [text for each in sent for text in editor.list_texts(each) if "Summary: a port." not in text]
    answers = ["Be brief.", "I do not know.", "And now?"]
    asked_texts = ["Which port?", output["text"]] if is_repeated else [output["text"], "Which port?"]
    assert texts == ["It is 8123.", "noted", *asked_texts, *answers]
    assert any("Summary: a port." in str(each) for each in sent) == bool(is_partial)
    Provider("messages").check_pairs(sent)


def test_another_summary_leaves_the_question_in_its_message() -> None:
    editor = EDITORS["messages"]
    [item] = make_question("messages", "This session is being continued from a previous conversation. A port.")
    item["content"] += make_question("messages", "Which port?")[0]["content"]
    items = [item, *make_answer("messages", "I do not know.", ""), *make_question("messages", "And now?")]
    summary = EditedSummary(item=editor.make_anchor(items, 0), compaction=7)
    epoch = plan_epoch(items, None, RequestedEdits(summary=summary), editor, may_break=True)
    assert epoch is not None
    sent: Any = edit_list(items, epoch, LogTexts(summary="The port is 8123."), editor).apply(items)
    texts = [text for each in sent for text in editor.list_texts(each)]
    assert texts == ["The port is 8123.", "Which port?", "I do not know.", "And now?"]


def test_another_summary_takes_the_place_of_a_sealed_one() -> None:
    editor = EDITORS["responses"]
    items: list[Item] = [{"type": "compaction", "encrypted_content": "x"}, *make_question("responses", "go on")]
    summary = EditedSummary(item=editor.make_anchor(items, 0), compaction=7)
    epoch = plan_epoch(items, None, RequestedEdits(summary=summary), editor, may_break=True)
    assert epoch is not None
    sent = edit_list(items, epoch, LogTexts(summary="The port is 8123."), editor).apply(items)
    assert sent == [*make_question("responses", "The port is 8123."), items[1]]
