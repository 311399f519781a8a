"""Recognition: which conversation and branch a client's messages continue, by header, by path, by overlap."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from hashlib import sha3_256
from random import Random
from types import FrameType
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, assistant_message, message_texts, run_gateway, user_message
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import respond_with_text, run_fake_upstream
from infra.sizes import IS_FULL_SIZE
from infra.strategies import messages
from quire.log import Branch, Window, reads
from quire.model import CHAIN_ROOT, Compaction, Message, Pin, Span, ThinkingPart, ToolCallPart, entries, iter_paths
from quire.proxy import recognition
from quire.proxy.recognition import (
    MAX_OVERLAP_MESSAGES,
    HeadCache,
    HeadScope,
    HistoryMatch,
    compute_client_paths,
    find_overlap,
)
from quire.store import SqlStore
from quire.view.rendered import encode_wire_messages
from quire.wire.chat.codec import ChatMessage
from quire.wire.chat.render import TOKENS_PER_REQUEST, OpenAIChatFormat
from quire.wire.client_messages import ParsedMessage, normalize_message


async def list_branches(harness: GatewayHarness, conversation: str) -> list[int]:
    return [branch.number for branch in await harness.store.list_branches(conversation)]


async def test_the_same_greeting_begins_a_new_conversation_each_time(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Hello!")) as up, run_gateway(store, up.url) as harness:
        first, second = await harness.ask(user_message("hi")), await harness.ask(user_message("hi"))
        assert first.headers["x-quire-conversation"] != second.headers["x-quire-conversation"]


async def test_a_list_is_recognised_by_its_messages_and_continues_at_the_head(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("a1"), respond_with_text("a2"), respond_with_text("a3")) as up,
        run_gateway(store, up.url) as harness,
    ):
        history = []
        for turn in range(1, 4):
            history.append(user_message(f"q{turn}"))
            answer = await harness.ask(*history)
            history.append(assistant_message(f"a{turn}"))
        conversation = answer.headers["x-quire-conversation"]
        assert [text for _, text in await harness.load_messages(conversation)] == ["q1", "a1", "q2", "a2", "q3", "a3"]
        assert await list_branches(harness, conversation) == [0]
        manifest = (await store.get_request(answer.headers["x-quire-request"])).manifest
        counted = [entry.tokens or 0 for entry in await store.read_range(conversation)]
        assert manifest.forwarded is not None
        assert (manifest.forwarded.client_list_tokens, manifest.total_tokens) == (
            sum(counted),
            sum(counted[:-1]) + TOKENS_PER_REQUEST,
        )
        assert await store.verify_conversation(conversation) == []


@pytest.mark.every_database
async def test_an_edited_message_and_a_regenerated_reply_become_branches(store: SqlStore):
    answers = (
        respond_with_text("a1"),
        respond_with_text("a2"),
        respond_with_text("a2, again"),
        respond_with_text("other"),
    )
    async with run_fake_upstream(*answers) as up, run_gateway(store, up.url) as harness:
        first = await harness.ask(user_message("q1"))
        await harness.ask(user_message("q1"), assistant_message("a1"), user_message("q2"))
        again = await harness.ask(user_message("q1"), assistant_message("a1"), user_message("q2"))
        edited = await harness.ask(user_message("q1"), assistant_message("a1"), user_message("q2, edited"))
        conversation = first.headers["x-quire-conversation"]
        assert [answer.headers["x-quire-branch"] for answer in (again, edited)] == ["1", "2"]
        assert {answer.headers["x-quire-conversation"] for answer in (again, edited)} == {conversation}
        assert [text for _, text in await harness.load_messages(conversation)] == ["q1", "a1", "q2", "a2"]
        assert [text for _, text in await harness.load_messages(conversation, 1)] == ["q1", "a1", "q2", "a2, again"]
        assert [text for _, text in await harness.load_messages(conversation, 2)] == ["q1", "a1", "q2, edited", "other"]
        assert await store.verify_conversation(conversation) == []


async def test_a_retry_after_a_failure_adds_nothing_twice(store: SqlStore):
    async def reject(request):
        await request.respond({"error": {"message": "busy"}}, 503)

    async with (
        run_fake_upstream(respond_with_text("a1"), reject, reject, respond_with_text("a2")) as up,
        run_gateway(store, up.url) as harness,
    ):
        first = await harness.ask(user_message("q1"))
        for _ in range(3):
            last = await harness.ask(user_message("q1"), assistant_message("a1"), user_message("q2"))
        conversation = first.headers["x-quire-conversation"]
        assert last.status_code == 200
        assert [text for _, text in await harness.load_messages(conversation)] == ["q1", "a1", "q2", "a2"]
        assert await list_branches(harness, conversation) == [0]


async def test_a_failed_regeneration_leaves_one_branch_for_the_next(store: SqlStore):
    async def reject(request):
        await request.respond({"error": {"message": "busy"}}, 503)

    async with (
        run_fake_upstream(
            respond_with_text("a1"), respond_with_text("a2"), reject, reject, respond_with_text("a2'")
        ) as up,
        run_gateway(store, up.url) as harness,
    ):
        first = await harness.ask(user_message("q1"))
        for _ in range(4):
            await harness.ask(user_message("q1"), assistant_message("a1"), user_message("q2"))
        assert await list_branches(harness, first.headers["x-quire-conversation"]) == [0, 1]


async def test_a_header_names_the_conversation_and_makes_it(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("a1"), respond_with_text("a2")) as up,
        run_gateway(store, up.url) as harness,
    ):
        first = await harness.ask(user_message("hi"), x_quire_conversation="mine")
        assert first.headers["x-quire-conversation"] == "mine"
        await harness.ask(
            user_message("hi"), assistant_message("a1"), user_message("and?"), x_quire_conversation="mine"
        )
        assert [text for _, text in await harness.load_messages("mine")] == ["hi", "a1", "and?", "a2"]


async def test_a_named_conversation_keeps_to_itself_what_another_also_says(store: SqlStore):
    async with run_fake_upstream(respond_with_text("a1")) as up, run_gateway(store, up.url) as harness:
        await harness.ask(user_message("hi"), x_quire_conversation="one")
        await harness.ask(user_message("hi"), assistant_message("a1"), user_message("more"), x_quire_conversation="two")
        assert [text for _, text in await harness.load_messages("one")] == ["hi", "a1"]
        assert [text for _, text in await harness.load_messages("two")] == ["hi", "a1", "more", "a1"]


async def test_a_client_that_sends_only_what_is_new_is_given_its_history(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("a1"), respond_with_text("a2"), respond_with_text("a3")) as up,
        run_gateway(store, up.url) as harness,
    ):
        for turn in range(1, 4):
            await harness.ask(user_message(f"q{turn}"), x_quire_conversation="c")
        assert message_texts(up.requests[2].body["messages"]) == ["q1", "a1", "q2", "a2", "q3"]
        assert [text for _, text in await harness.load_messages("c")] == ["q1", "a1", "q2", "a2", "q3", "a3"]


async def test_a_client_that_trims_its_own_window_gets_its_way_and_loses_nothing(store: SqlStore):
    async with (
        run_fake_upstream(*(respond_with_text(f"a{turn}") for turn in range(1, 9))) as up,
        run_gateway(store, up.url) as harness,
    ):
        history = []
        for turn in range(1, 5):
            history = [*history, user_message(f"q{turn}")][-3:]
            answer = await harness.ask(*history, x_quire_conversation="c")
            history.append(assistant_message(f"a{turn}"))
        assert message_texts(up.requests[3].body["messages"]) == ["q3", "a3", "q4"]
        recorded = [text for _, text in await harness.load_messages("c")]
        assert recorded == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
        own = [user_message("Before: q1 to q3."), assistant_message("a4"), user_message("q5")]
        answer = await harness.ask(*own, x_quire_conversation="c")
        assert [text for _, text in await harness.load_messages("c")] == [*recorded, "q5", "a5"]
        forwarded = (await store.get_request(answer.headers["x-quire-request"])).manifest.forwarded
        assert forwarded is not None
        assert (forwarded.form, forwarded.replayable, forwarded.unrecorded_messages, forwarded.client_list_tokens) == (
            "unchanged",
            False,
            1,
            None,
        )


async def run_windows(harness: GatewayHarness, conversation: str, seed: int) -> list[int]:
    """A random session of a client that sends its last messages or only new ones, while others change the log; returns
    the branches of the replies."""
    random, history, found = Random(seed), list[dict[str, Any]](), list[int]()
    compacted = False
    actions = [
        "ask",
        "ask",
        "ask",
        "take back",
        "append",
        "pin",
        "repeat",
        "forget",
        "forget",
        "forget",
        "restart",
        "purge",
    ]
    for turn in range(20):
        match random.choice([*actions, "compact"]):
            case "take back" if turn > 3:
                history = history[:-1] if history[-1]["role"] == "user" else history[:-2]
            case "append":
                if found:
                    await harness.store.append(conversation, Message.user(f"elsewhere {turn}"), branch=found[-1])
            case "pin" if turn > 2:
                await harness.store.append(conversation, Pin(message=1), branch=found[-1])
            case "repeat":
                history.append(user_message("again"))
            case "forget":
                history = []
            case "restart":
                history = [user_message("q0")]
            case "purge" if turn > 3:
                await harness.store.purge(conversation, [random.randint(2, 4)], branch=found[-1])
            case "compact" if turn > 5 and not compacted:
                compacted, body = True, Compaction(number=1, covers=Span(first=1, last=4), summary="It began.")
                await harness.store.append(conversation, body, branch=found[-1])
            case _:
                pass
        if not history or history[-1]["role"] == "assistant":
            history.append(user_message(f"q{turn}"))
        history = history[-random.choice([3, 4, 5, 7]) :]
        answer = await harness.ask(*history, x_quire_conversation=conversation)
        found.append(int(answer.headers["x-quire-branch"]))
        history.append(assistant_message(answer.json()["choices"][0]["message"]["content"]))
    return found


async def test_a_cached_window_is_recorded_like_one_that_is_looked_up(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    async def echo(request: Any) -> None:
        await respond_with_text(f"to {request.body['messages'][-1]['content']}")(request)

    # Each reply calibrates the next requests of all conversations.
    calibrated = {"ratio", "slots", "max_input_tokens", "trigger_tokens"}
    # A message's score depends on how much of the log is indexed.
    compared = dict.fromkeys(["conversation", *calibrated], True) | {"decisions": {"__all__": {"score"}}}
    seeds = range(3, 8) if IS_FULL_SIZE else range(3, 5)
    extended: list[str] = []
    hits: list[str] = []
    find_tail, extend_window = HeadCache.find_tail, reads.extend_window
    continue_tail = recognition._continue_tail  # pyright: ignore[reportPrivateUsage]

    def find(self: HeadCache, scope: HeadScope, conversation: str) -> HistoryMatch | None:
        return None if conversation.startswith("slow") else find_tail(self, scope, conversation)

    async def count(*args: Any) -> HistoryMatch | None:
        match = await continue_tail(*args)
        if match is not None:
            hits.append(match.conversation)
        return match

    def extend(known: Window, branch: Branch, *args: Any, **options: Any) -> Window | None:
        if branch.conversation.startswith("slow"):
            return None
        window = extend_window(known, branch, *args, **options)
        extended.extend([branch.conversation] if window is not None else [])
        return window

    monkeypatch.setattr(HeadCache, "find_tail", find)
    monkeypatch.setattr(reads, "extend_window", extend)
    monkeypatch.setattr(recognition, "_continue_tail", count)
    async with run_fake_upstream(echo) as up, run_gateway(store, up.url) as harness:
        for seed in seeds:
            stored: list[object] = []
            for way in ("fast", "slow"):
                conversation = f"{way} {seed}"
                found = await run_windows(harness, conversation, seed)
                rows: list[object] = [found]
                for branch in await store.list_branches(conversation):
                    entries = await store.read_range(conversation, branch=branch.number)
                    rows += [(each.seq, each.branch, each.raw, each.path, each.tokens) for each in entries]
                    rows += [
                        (seq, each.model_dump(exclude=compared))
                        for seq, each in await store.list_manifests(conversation, branch=branch.number)
                    ]
                assert await store.verify_conversation(conversation) == []
                stored.append(rows)
            assert stored[0] == stored[1], seed
    assert len(hits) > 2 * len(seeds)
    assert len(extended) > len(seeds)


async def test_a_reply_taken_back_in_a_trimmed_window_becomes_a_branch(store: SqlStore):
    async with (
        run_fake_upstream(*(respond_with_text(f"a{turn}") for turn in range(1, 9))) as up,
        run_gateway(store, up.url) as harness,
    ):
        for turn in range(1, 4):
            await harness.ask(user_message(f"q{turn}"), x_quire_conversation="c")
        answer = await harness.ask(assistant_message("a2"), user_message("q3, better"), x_quire_conversation="c")
        assert answer.headers["x-quire-branch"] == "1"
        assert [text for _, text in await harness.load_messages("c", 1)] == ["q1", "a1", "q2", "a2", "q3, better", "a4"]


async def test_a_client_may_drop_thinking_and_reformat_arguments(store: SqlStore):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    thinks = respond_with_text({"content": "Hm.", "reasoning_content": "deep", "tool_calls": [call], "annotations": []})
    async with (
        run_fake_upstream(thinks, respond_with_text("Done."), respond_with_text("More.")) as up,
        run_gateway(store, up.url) as harness,
    ):
        first = await harness.ask(user_message("q1"))
        reformatted = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}
        sent_back = {"role": "assistant", "content": "Hm.", "tool_calls": [reformatted], "refusal": None}
        history = [user_message("q1"), sent_back, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
        second = await harness.ask(*history)
        third = await harness.ask(*history, assistant_message("Done."), user_message("q2"))
        conversation = first.headers["x-quire-conversation"]
        assert {answer.headers["x-quire-conversation"] for answer in (second, third)} == {conversation}
        assert [role for role, _ in await harness.load_messages(conversation)] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert await list_branches(harness, conversation) == [0]
        recorded_reply = (await store.get_entry(conversation, 2)).message
        assert any(isinstance(part, ThinkingPart) and part.text == "deep" for part in recorded_reply.parts)
        forwarded = (await store.get_request(third.headers["x-quire-request"])).manifest.forwarded
        assert forwarded is not None
        assert not forwarded.replayable
        assert await store.verify_conversation(conversation) == []


@pytest.mark.every_database
async def test_parallel_turns_on_one_conversation_are_all_recorded_each_after_its_parent(store: SqlStore):
    async def respond_slowly(request):
        await asyncio.sleep(0.2)
        await respond_with_text(f"to {request.body['messages'][-1]['content']}")(request)

    async with run_fake_upstream(respond_with_text("a1"), respond_slowly) as up, run_gateway(store, up.url) as harness:
        first = await harness.ask(user_message("q1"))
        conversation = first.headers["x-quire-conversation"]
        answers = await asyncio.gather(
            *(
                harness.ask(user_message("q1"), assistant_message("a1"), user_message(f"p{number}"))
                for number in range(4)
            )
        )
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {answer.headers["x-quire-conversation"] for answer in answers} == {conversation}
        lines = [
            await harness.load_messages(conversation, number) for number in await list_branches(harness, conversation)
        ]
        ends = sorted(tuple(text for _, text in line[2:]) for line in lines)
        assert ends == [(f"p{number}", f"to p{number}") for number in range(4)]
        for answer in answers:
            recorded = await store.get_request(answer.headers["x-quire-request"])
            assert answer.headers["x-quire-branch"] == str(recorded.branch) == str(recorded.manifest.branch)
        assert await store.verify_conversation(conversation) == []


@pytest.mark.every_database
async def test_parallel_first_turns_under_one_name_are_all_recorded(store: SqlStore):
    async with run_fake_upstream(respond_with_text("yes")) as up, run_gateway(store, up.url) as harness:
        await asyncio.gather(
            *(harness.ask(user_message(f"p{number}"), x_quire_conversation="c") for number in range(4))
        )
        lines = [await harness.load_messages("c", number) for number in await list_branches(harness, "c")]
        questions = {text for line in lines for role, text in line if role == "user"}
        assert questions == {f"p{number}" for number in range(4)}
        assert await store.verify_conversation("c") == []


@given(messages())
def test_what_openais_shape_gives_is_recognised_as_what_it_was_made_of(message: Message):
    for unit in OpenAIChatFormat().render_message(message):
        line = ChatMessage(unit)
        assert line.match_key == normalize_message(line.message).canonical_json().encode()
        if line.is_plain_text:
            assert Message.parse(line.match_key.decode()) == line.message


@pytest.mark.parametrize("text", ["b ", "\n b", " ", ""])
def test_space_around_a_text_is_the_normal_forms_only(text: str):
    for role in ("user", "assistant"):
        line = ChatMessage({"role": role, "content": text, "tool_calls": []})
        assert (line.role, line.match_key) == (role, normalize_message(line.message).canonical_json().encode())
        assert line.is_plain_text == (role == "user" and bool(text.strip()))


def is_trimmed(text: str) -> bool:
    return text == text.strip() != ""


def test_the_gateway_computes_paths_with_the_logs_formula(monkeypatch: pytest.MonkeyPatch):
    lines = [ParsedMessage(Message.user("a")), ParsedMessage(Message.assistant("b"))]
    monkeypatch.setattr(entries, "sha256", sha3_256)
    assert compute_client_paths(lines) == list(iter_paths(line.match_key for line in lines))


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(min_size=1).filter(is_trimmed)), max_size=6))
def test_the_path_of_plain_lines_is_the_logs_own(spoken: list[tuple[str, str]]):
    usable = [(role, text) for role, text in spoken if text.encode(errors="ignore").decode() == text]
    lines = [ChatMessage({"role": role, "content": text}) for role, text in usable]
    assert all(line.is_plain_text for line in lines)
    expected = list(iter_paths((line.message.canonical_json().encode() for line in lines), start=CHAIN_ROOT))
    assert compute_client_paths(lines) == expected
    for line in lines:
        units = OpenAIChatFormat().render_message(line.message)
        assert line.wire_json == encode_wire_messages(units)


def test_the_form_to_recognise_by_forgets_what_clients_change():
    call = ToolCallPart(id="1", name="f", arguments='{"b": [1, 2],  "a": "é"}')
    rewritten = ToolCallPart(id="1", name="f", arguments='{"b":[1,2],"a":"é"}')
    reply = Message(role="assistant", parts=(ThinkingPart(text="hm"), call), provider_fields={"chat": {"x": 1}})
    assert normalize_message(reply) == normalize_message(Message(role="assistant", parts=(rewritten,)))
    broken = Message(role="assistant", parts=(ToolCallPart(id="1", name="f", arguments='{"b'),))
    assert normalize_message(broken) == broken
    assert normalize_message(Message.user("as it is")) == Message.user("as it is")


def test_a_window_is_found_by_its_end_and_only_with_a_reply_in_it():
    stored = [b"q1", b"a1", b"q2", b"a2", b"q3", b"a3"]

    def find(*lines: bytes):
        return find_overlap(lines, stored, is_reply=[line.startswith(b"a") for line in lines])

    assert find(b"q3", b"a3", b"new") == (0, 1, 5)
    assert find(b"own summary", b"a2", b"q3", b"a3", b"new") == (1, 3, 5)
    assert find(b"q2", b"a2", b"edited") == (0, 1, 3)
    over_and_over = [b"q", b"a", b"q", b"a"]
    assert find_overlap([b"q", b"a", b"q"], over_and_over, is_reply=[False, True, False]) == (0, 1, 3)
    assert find(b"q3") is None
    assert find(b"new") is None
    assert find() is None


class CountingKey(bytes):
    """Match key that counts how often it is compared as a whole."""

    comparisons = 0
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        CountingKey.comparisons += 1
        return super().__eq__(other)


def count_line_events(function: Callable[[], object]) -> int:
    """Counts the executed lines of `recognition`: the work of a run, independent of the machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if frame.f_globals.get("__name__") != recognition.__name__:
            return None
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return count


def test_the_search_for_an_overlap_is_quadratic_and_compares_digests():
    """The worst case: equal messages of a user on both sides, and a reply that is not stored."""

    def search(size: int) -> object:
        sent = [CountingKey(b"never said"), *(CountingKey(b"x" * 1_000) for _ in range(size - 1))]
        stored = [CountingKey(b"x" * 1_000) for _ in range(size)]
        return find_overlap(sent, stored, is_reply=[True] + [False] * (size - 1))

    CountingKey.comparisons = 0
    assert search(MAX_OVERLAP_MESSAGES) is None
    assert CountingKey.comparisons == 0
    small, large = count_line_events(lambda: search(25)), count_line_events(lambda: search(50))
    assert large < 5 * small


async def test_no_more_messages_are_compared_than_the_limit(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recognition, "MAX_OVERLAP_MESSAGES", 4)
    compared = list[tuple[int, int]]()

    def find(sent: Sequence[bytes], stored: Sequence[bytes], *, is_reply: Sequence[bool]) -> object:
        compared.append((len(sent), len(stored)))
        return find_overlap(sent, stored, is_reply=is_reply)

    monkeypatch.setattr(recognition, "find_overlap", find)
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        history = list[dict[str, Any]]()
        for number in range(5):
            history.append(user_message(f"question {number}"))
            assert (await harness.ask(*history, x_quire_conversation="long")).status_code == 200
            history.append(assistant_message("Yes."))
        window = [user_message("My summary."), *history[1:], user_message("next")]
        answer = await harness.ask(*window, x_quire_conversation="long")
        assert answer.status_code == 200
        assert compared == [(4, 4)]
        assert len(await harness.load_messages("long")) == 12


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8), st.lists(st.sampled_from([b"a", b"b"]), max_size=8))
def test_the_overlap_is_the_one_that_trying_every_run_finds(lines: list[bytes], stored: list[bytes]):
    def is_valid(first: int, last: int, stored_last: int) -> bool:
        run = lines[first : last + 1]
        stored_first = stored_last - len(run) + 1
        return stored_first >= 0 and b"a" in run and run == stored[stored_first : stored_last + 1]

    head = len(stored) - 1
    to_head = [(0, last, head) for last in range(len(lines)) if is_valid(0, last, head)]
    runs = [
        (last, stored_last, -first)
        for last in range(len(lines))
        for stored_last in range(len(stored))
        for first in range(last + 1)
        if is_valid(first, last, stored_last)
    ]
    expected = None
    if to_head:
        expected = to_head[-1]
    elif runs:
        last, stored_last, negative_first = max(runs)
        expected = (-negative_first, last, stored_last)
    assert find_overlap(lines, stored, is_reply=[line == b"a" for line in lines]) == expected


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8), st.lists(st.sampled_from([b"a", b"b"]), max_size=8))
def test_an_overlap_is_a_run_of_equal_messages(lines: list[bytes], stored: list[bytes]):
    overlap = find_overlap(lines, stored, is_reply=[line == b"a" for line in lines])
    if overlap is not None:
        length = overlap.last - overlap.first + 1
        assert (
            lines[overlap.first : overlap.last + 1]
            == stored[overlap.stored_last - length + 1 : overlap.stored_last + 1]
        )
        assert b"a" in lines[overlap.first : overlap.last + 1]
    else:
        assert not set(lines) & set(stored) & {b"a"}
