"""Which conversation a list of messages belongs to, and where in it: by header, by path, by what overlaps."""

import asyncio

from gateway_parts import Gateway, assistant, gateway, texts, user
from hypothesis import given
from hypothesis import strategies as st

from quire.log import SqlStore
from quire.model import ROOT, Message, ThinkingPart, ToolCallPart, path_of
from quire.server.gateway.lines import Line, known_form, told_paths
from quire.server.gateway.overlap import find_overlap
from quire.testing.strategies import messages
from quire.view.leaves import encode
from quire.view.shapes.openai import PER_REQUEST, OpenAIShape
from upstream import says, upstream


async def branches_of(kept: Gateway, conversation: str) -> list[int]:
    return [branch.number for branch in await kept.store.branches(conversation)]


async def test_the_same_greeting_begins_a_new_conversation_each_time(store: SqlStore):
    async with upstream(says("Hello!")) as up, gateway(store, up.url) as kept:
        first, second = await kept.ask(user("hi")), await kept.ask(user("hi"))
        assert first.headers["x-quire-conversation"] != second.headers["x-quire-conversation"]


async def test_a_list_is_recognised_by_its_messages_and_goes_on_at_the_head(store: SqlStore):
    async with upstream(says("a1"), says("a2"), says("a3")) as up, gateway(store, up.url) as kept:
        history = []
        for turn in range(1, 4):
            history.append(user(f"q{turn}"))
            answer = await kept.ask(*history)
            history.append(assistant(f"a{turn}"))
        conversation = answer.headers["x-quire-conversation"]
        assert [text for _, text in await kept.said(conversation)] == ["q1", "a1", "q2", "a2", "q3", "a3"]
        assert await branches_of(kept, conversation) == [0]
        manifest = (await store.request(answer.headers["x-quire-request"])).manifest
        counted = [entry.tokens or 0 for entry in await store.range(conversation)]
        assert manifest.sent is not None
        assert (manifest.sent.listed, manifest.total) == (sum(counted), sum(counted[:-1]) + PER_REQUEST)
        assert await store.verify(conversation) == []


async def test_an_edited_message_and_a_regenerated_reply_become_branches(store: SqlStore):
    answers = (says("a1"), says("a2"), says("a2, again"), says("other"))
    async with upstream(*answers) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("q1"))
        await kept.ask(user("q1"), assistant("a1"), user("q2"))
        again = await kept.ask(user("q1"), assistant("a1"), user("q2"))
        edited = await kept.ask(user("q1"), assistant("a1"), user("q2, edited"))
        conversation = first.headers["x-quire-conversation"]
        assert [answer.headers["x-quire-branch"] for answer in (again, edited)] == ["1", "2"]
        assert {answer.headers["x-quire-conversation"] for answer in (again, edited)} == {conversation}
        assert [text for _, text in await kept.said(conversation)] == ["q1", "a1", "q2", "a2"]
        assert [text for _, text in await kept.said(conversation, 1)] == ["q1", "a1", "q2", "a2, again"]
        assert [text for _, text in await kept.said(conversation, 2)] == ["q1", "a1", "q2, edited", "other"]
        assert await store.verify(conversation) == []


async def test_a_retry_after_a_failure_adds_nothing_twice(store: SqlStore):
    async def fails(asked):
        await asked.answer({"error": {"message": "busy"}}, 503)

    async with upstream(says("a1"), fails, fails, says("a2")) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("q1"))
        for _ in range(3):
            last = await kept.ask(user("q1"), assistant("a1"), user("q2"))
        conversation = first.headers["x-quire-conversation"]
        assert last.status_code == 200
        assert [text for _, text in await kept.said(conversation)] == ["q1", "a1", "q2", "a2"]
        assert await branches_of(kept, conversation) == [0]


async def test_a_failed_regeneration_leaves_one_branch_for_the_next(store: SqlStore):
    async def fails(asked):
        await asked.answer({"error": {"message": "busy"}}, 503)

    async with upstream(says("a1"), says("a2"), fails, fails, says("a2'")) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("q1"))
        for _ in range(4):
            await kept.ask(user("q1"), assistant("a1"), user("q2"))
        assert await branches_of(kept, first.headers["x-quire-conversation"]) == [0, 1]


async def test_a_header_names_the_conversation_and_makes_it(store: SqlStore):
    async with upstream(says("a1"), says("a2")) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("hi"), x_quire_conversation="mine")
        assert first.headers["x-quire-conversation"] == "mine"
        await kept.ask(user("hi"), assistant("a1"), user("and?"), x_quire_conversation="mine")
        assert [text for _, text in await kept.said("mine")] == ["hi", "a1", "and?", "a2"]


async def test_a_named_conversation_keeps_to_itself_what_another_also_says(store: SqlStore):
    async with upstream(says("a1")) as up, gateway(store, up.url) as kept:
        await kept.ask(user("hi"), x_quire_conversation="one")
        await kept.ask(user("hi"), assistant("a1"), user("more"), x_quire_conversation="two")
        assert [text for _, text in await kept.said("one")] == ["hi", "a1"]
        assert [text for _, text in await kept.said("two")] == ["hi", "a1", "more", "a1"]


async def test_a_client_that_sends_only_what_is_new_is_given_its_history(store: SqlStore):
    async with upstream(says("a1"), says("a2"), says("a3")) as up, gateway(store, up.url) as kept:
        for turn in range(1, 4):
            await kept.ask(user(f"q{turn}"), x_quire_conversation="c")
        assert texts(up.asked[2].body["messages"]) == ["q1", "a1", "q2", "a2", "q3"]
        assert [text for _, text in await kept.said("c")] == ["q1", "a1", "q2", "a2", "q3", "a3"]


async def test_a_client_that_trims_its_own_window_gets_its_way_and_loses_nothing(store: SqlStore):
    async with upstream(*(says(f"a{turn}") for turn in range(1, 9))) as up, gateway(store, up.url) as kept:
        history = []
        for turn in range(1, 5):
            history = [*history, user(f"q{turn}")][-3:]
            answer = await kept.ask(*history, x_quire_conversation="c")
            history.append(assistant(f"a{turn}"))
        assert texts(up.asked[3].body["messages"]) == ["q3", "a3", "q4"]
        said = [text for _, text in await kept.said("c")]
        assert said == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
        own = [user("Before: q1 to q3."), assistant("a4"), user("q5")]
        answer = await kept.ask(*own, x_quire_conversation="c")
        assert [text for _, text in await kept.said("c")] == [*said, "q5", "a5"]
        sent = (await store.request(answer.headers["x-quire-request"])).manifest.sent
        assert sent is not None
        assert (sent.form, sent.same, sent.unkept, sent.listed) == ("as_received", False, 1, None)


async def test_a_reply_taken_back_in_a_trimmed_window_becomes_a_branch(store: SqlStore):
    async with upstream(*(says(f"a{turn}") for turn in range(1, 9))) as up, gateway(store, up.url) as kept:
        for turn in range(1, 4):
            await kept.ask(user(f"q{turn}"), x_quire_conversation="c")
        answer = await kept.ask(assistant("a2"), user("q3, better"), x_quire_conversation="c")
        assert answer.headers["x-quire-branch"] == "1"
        assert [text for _, text in await kept.said("c", 1)] == ["q1", "a1", "q2", "a2", "q3, better", "a4"]


async def test_a_client_may_leave_out_thinking_and_write_arguments_anew(store: SqlStore):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    thinks = says({"content": "Hm.", "reasoning_content": "deep", "tool_calls": [call], "annotations": []})
    async with upstream(thinks, says("Done."), says("More.")) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("q1"))
        written_anew = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}
        sent_back = {"role": "assistant", "content": "Hm.", "tool_calls": [written_anew], "refusal": None}
        history = [user("q1"), sent_back, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
        second = await kept.ask(*history)
        third = await kept.ask(*history, assistant("Done."), user("q2"))
        conversation = first.headers["x-quire-conversation"]
        assert {answer.headers["x-quire-conversation"] for answer in (second, third)} == {conversation}
        assert [role for role, _ in await kept.said(conversation)] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert await branches_of(kept, conversation) == [0]
        kept_reply = (await store.entry(conversation, 2)).message
        assert any(isinstance(part, ThinkingPart) and part.text == "deep" for part in kept_reply.parts)
        sent = (await store.request(third.headers["x-quire-request"])).manifest.sent
        assert sent is not None
        assert not sent.same
        assert await store.verify(conversation) == []


async def test_parallel_turns_on_one_conversation_are_all_kept_each_where_it_was_said(store: SqlStore):
    async def slowly(asked):
        await asyncio.sleep(0.2)
        await says(f"to {asked.body['messages'][-1]['content']}")(asked)

    async with upstream(says("a1"), slowly) as up, gateway(store, up.url) as kept:
        first = await kept.ask(user("q1"))
        conversation = first.headers["x-quire-conversation"]
        answers = await asyncio.gather(
            *(kept.ask(user("q1"), assistant("a1"), user(f"p{number}")) for number in range(4))
        )
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {answer.headers["x-quire-conversation"] for answer in answers} == {conversation}
        lines = [await kept.said(conversation, number) for number in await branches_of(kept, conversation)]
        ends = sorted(tuple(text for _, text in line[2:]) for line in lines)
        assert ends == [(f"p{number}", f"to p{number}") for number in range(4)]
        for answer in answers:
            found = await store.request(answer.headers["x-quire-request"])
            assert answer.headers["x-quire-branch"] == str(found.branch) == str(found.manifest.branch)
        assert await store.verify(conversation) == []


async def test_parallel_beginnings_under_one_name_are_all_kept(store: SqlStore):
    async with upstream(says("yes")) as up, gateway(store, up.url) as kept:
        await asyncio.gather(*(kept.ask(user(f"p{number}"), x_quire_conversation="c") for number in range(4)))
        lines = [await kept.said("c", number) for number in await branches_of(kept, "c")]
        asked = {text for line in lines for role, text in line if role == "user"}
        assert asked == {f"p{number}" for number in range(4)}
        assert await store.verify("c") == []


@given(messages())
def test_what_openais_shape_gives_is_recognised_as_what_it_was_made_of(message: Message):
    for unit in OpenAIShape().units(message):
        line = Line(unit)
        assert line.key == known_form(line.message).canonical().encode()
        if line.plain:
            assert Message.parse(line.key.decode()) == line.message


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(min_size=1)), max_size=6))
def test_the_path_of_plain_lines_is_the_logs_own(spoken: list[tuple[str, str]]):
    usable = [(role, text) for role, text in spoken if text.encode(errors="ignore").decode() == text]
    lines = [Line({"role": role, "content": text}) for role, text in usable]
    assert all(line.plain for line in lines)
    expected = list(path_of((line.message.canonical() for line in lines), start=ROOT))
    assert told_paths(lines) == expected
    for line in lines:
        units = OpenAIShape().units(line.message)
        assert line.encoded == encode(units)


def test_the_form_to_recognise_by_forgets_what_clients_change():
    call = ToolCallPart(id="1", name="f", arguments='{"b": [1, 2],  "a": "é"}')
    rewritten = ToolCallPart(id="1", name="f", arguments='{"b":[1,2],"a":"é"}')
    said = Message(role="assistant", parts=(ThinkingPart(text="hm"), call), provider={"openai": {"x": 1}})
    assert known_form(said) == known_form(Message(role="assistant", parts=(rewritten,)))
    broken = Message(role="assistant", parts=(ToolCallPart(id="1", name="f", arguments='{"b'),))
    assert known_form(broken) == broken
    assert known_form(Message.user("as it is")) == Message.user("as it is")


def test_a_window_is_found_by_its_end_and_only_with_a_reply_in_it():
    stored = [b"q1", b"a1", b"q2", b"a2", b"q3", b"a3"]

    def found(*lines: bytes):
        return find_overlap(lines, stored, replies=[line.startswith(b"a") for line in lines])

    assert found(b"q3", b"a3", b"new") == (0, 1, 5)
    assert found(b"own summary", b"a2", b"q3", b"a3", b"new") == (1, 3, 5)
    assert found(b"q2", b"a2", b"edited") == (0, 1, 3)
    over_and_over = [b"q", b"a", b"q", b"a"]
    assert find_overlap([b"q", b"a", b"q"], over_and_over, replies=[False, True, False]) == (0, 1, 3)
    assert found(b"q3") is None
    assert found(b"new") is None
    assert found() is None


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8), st.lists(st.sampled_from([b"a", b"b"]), max_size=8))
def test_an_overlap_is_a_run_of_equal_messages(lines: list[bytes], stored: list[bytes]):
    found = find_overlap(lines, stored, replies=[line == b"a" for line in lines])
    if found is not None:
        length = found.last - found.first + 1
        assert lines[found.first : found.last + 1] == stored[found.place - length + 1 : found.place + 1]
        assert b"a" in lines[found.first : found.last + 1]
    else:
        assert not set(lines) & set(stored) & {b"a"}
