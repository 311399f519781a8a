"""Odd bodies: whatever an upstream would take reaches it, and is kept as far as the log can hold it."""

import json

import pytest
from gateway_parts import assistant, gateway, system, user

from quire.engine import Engine
from quire.log import SqlStore
from quire.model import ImagePart, ToolCallPart
from quire.settings import Settings
from upstream import DONE, Asked, completion, event, says, streams, upstream

PICTURE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

BODIES = {
    "a content list": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "a picture": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                ],
            }
        ]
    },
    "a sound": {
        "messages": [
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
    },
    "a named speaker": {"messages": [{"role": "user", "name": "Ada", "content": "Hello"}]},
    "a developer": {"messages": [{"role": "developer", "content": "Be brief."}, user("Hello")]},
    "two instructions": {"messages": [system("Be brief."), system("Be kind."), user("Hello")]},
    "instructions in between": {"messages": [user("Hello"), assistant("Hi"), system("Be rude."), user("Well?")]},
    "instructions alone": {"messages": [system("Write a poem.")]},
    "a refusal": {
        "messages": [user("Hello"), {"role": "assistant", "content": None, "refusal": "No."}, user("Why?")],
    },
    "a beginning to go on from": {"messages": [user("Write JSON"), assistant("{")]},
    "functions of the old kind": {
        "messages": [
            user("Look"),
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "function", "name": "look", "content": "waves"},
        ],
        "functions": [{"name": "look", "parameters": {"type": "object", "properties": {}}}],
    },
    "a tool of an unknown kind": {"messages": [user("Hello")], "tools": [{"type": "web_search", "depth": 3}]},
    "a strict tool": {
        "messages": [user("Hello")],
        "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}],
    },
    "a tool's answer without its call": {
        "messages": [user("Hello"), {"role": "tool", "tool_call_id": "x", "content": "1"}]
    },
    "unknown fields": {"messages": [{**user("Hello"), "weight": 0.5}], "reasoning_effort": "low", "chat_kwargs": {}},
    "a form for the answer": {
        "messages": [user("Hello")],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    },
    "odd characters": {"messages": [user("\x00\x1f\x7f\u2028 \U0001f338 é \\u0041")]},
    "nulls": {"messages": [{"role": "user", "content": "Hello", "name": None}], "tools": None, "stop": None},
}
UNLIKE = {
    "a developer", "two instructions", "functions of the old kind", "a tool of an unknown kind",
    "a strict tool", "a tool's answer without its call",
}  # fmt: skip
"""What the log gives again in another form than it came in."""


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_reaches_the_upstream_as_it_came_and_is_kept(store: SqlStore, name: str):
    body = json.dumps({"model": "gpt-4o", **BODIES[name]}).encode()
    async with upstream(says("Yes.")) as up, gateway(store, up.url) as kept:
        answer = await kept.post(body)
        assert answer.status_code == 200
        assert up.asked[0].raw == body
        found = await store.request(answer.headers["x-quire-request"])
        assert found.manifest.sent is not None
        assert found.manifest.sent.same == (name not in UNLIKE)
        said = await kept.said(found.conversation)
        assert said[-1] == ("assistant", "Yes.")
        assert await store.verify(found.conversation) == []


async def test_a_picture_is_kept_as_one(store: SqlStore):
    async with upstream(says("A dot.")) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(*BODIES["a picture"]["messages"])
        asked = (await store.entry(answer.headers["x-quire-conversation"], 1)).message
        assert [part.url for part in asked.parts if isinstance(part, ImagePart)] == [PICTURE]


@pytest.mark.parametrize(
    "messages",
    [[{"role": "critic", "content": "Hm."}], [{"content": "Hello"}], "Hello", [], ["Hello"], None],
    ids=["role", "no role", "text", "empty", "texts", "none"],
)
async def test_what_cannot_be_read_passes_on_and_says_that_it_is_not_kept(store: SqlStore, messages: object):
    async with upstream(says("Yes.")) as up, gateway(store, up.url) as kept:
        body = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
        answer = await kept.post(body)
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert up.asked[0].raw == body
        assert await store.conversations() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"hello"', b"\xff\xfe", b'{"a": "\\ud800"}'])
async def test_what_is_no_json_object_is_refused(store: SqlStore, body: bytes):
    async with upstream(says("Yes.")) as up, gateway(store, up.url) as kept:
        answer = await kept.post(body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
        assert up.asked == []


async def test_every_choice_is_kept_on_a_branch_of_its_own(store: SqlStore):
    choices = [
        {"index": place, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for place, text in enumerate(["red", "green", "blue"])
    ]

    async def answers(asked: Asked) -> None:
        await asked.answer(completion("", choices=choices) if asked.body.get("n") else completion("Good."))

    async with upstream(answers) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("A colour?"), n=3)
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["red", "green", "blue"]
        conversation = answer.headers["x-quire-conversation"]
        lines = [[text for _, text in await kept.said(conversation, number)] for number in range(3)]
        assert lines == [["A colour?", "red"], ["A colour?", "green"], ["A colour?", "blue"]]
        taken = await kept.ask(user("A colour?"), assistant("blue"), user("Why?"))
        assert (taken.headers["x-quire-conversation"], taken.headers["x-quire-branch"]) == (conversation, "2")


async def test_every_choice_of_a_stream_is_kept_too(store: SqlStore):
    pieces = (
        event("re"), event("gre", index=1), event("d"), event({}, "stop"), event("en", index=1),
        event({}, "stop", index=1), DONE,
    )  # fmt: skip
    async with upstream(streams(*pieces)) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("A colour?"), n=2, stream=True, x_quire_conversation="c")
        assert answer.content == b"".join(pieces)
        assert [[text for _, text in await kept.said("c", number)][1] for number in range(2)] == ["red", "green"]


async def test_the_calls_of_a_stream_are_put_together(store: SqlStore):
    def calls(index: int, **function: str) -> dict[str, object]:
        named = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **named, "function": function}]}

    pieces = (
        event({"role": "assistant", "content": None, "reasoning_content": "Let "}),
        event({"reasoning_content": "me."}),
        event(calls(0, name="look", arguments="")),
        event(calls(0, arguments='{"at":')),
        event(calls(1, name="hear", arguments="{}")),
        event(calls(0, arguments=' "sea"}')),
        event({}, "tool_calls"),
        b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5}, "model": "up-1"}\n\n',
        DONE,
    )
    async with upstream(streams(*pieces), says("Waves.")) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Look"), stream=True, x_quire_conversation="c")
        assert answer.content == b"".join(pieces)
        entry = await store.entry("c", 2)
        assert entry.message.tool_calls == (
            ToolCallPart(id="c0", name="look", arguments='{"at": "sea"}'),
            ToolCallPart(id="c1", name="hear", arguments="{}"),
        )
        assert entry.notes.usage is not None
        assert (entry.notes.usage.input_tokens, entry.notes.usage.output_tokens) == (20, 5)


async def test_an_openai_client_runs_its_tools_through_the_gateway(store: SqlStore):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    tool = {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
    }
    calls = says({"content": None, "tool_calls": [call]}, finish="tool_calls")
    async with upstream(calls, says("Three.")) as up, gateway(store, up.url) as kept:
        create = kept.openai.chat.completions.with_raw_response.create
        history = [user("1 + 2?")]
        first = await create(model="gpt-4o", messages=history, tools=[tool])
        message = first.parse().choices[0].message
        assert message.tool_calls is not None
        history += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}]
        second = await create(model="gpt-4o", messages=history, tools=[tool])
        assert second.parse().choices[0].message.content == "Three."
        assert second.headers["x-quire-conversation"] == first.headers["x-quire-conversation"]
        roles = [role for role, _ in await kept.said(second.headers["x-quire-conversation"])]
        assert roles == ["user", "assistant", "tool", "assistant"]


def long(number: int) -> str:
    return f"{number}: " + "the river carries more water in spring than in autumn, and the mill runs. " * 6


async def test_what_does_not_fit_is_fitted_and_all_else_stays_as_it_was(store: SqlStore):
    async with upstream(says("Noted.")) as up, gateway(store, up.url, context_limit=1_000) as kept:
        history = [system("Keep the mill's books.")]
        for number in range(12):
            history.append(user(long(number)))
            answer = await kept.ask(*history, temperature=0.5, max_tokens=100, metadata={"a": "b"})
            assert answer.status_code == 200
            history.append(assistant("Noted."))
        conversation = answer.headers["x-quire-conversation"]
        assert len(await kept.said(conversation)) == 24
        last = up.asked[-1].body
        assert (last["temperature"], last["max_tokens"], last["metadata"]) == (0.5, 100, {"a": "b"})
        assert last["messages"][0] == system("Keep the mill's books.")
        assert last["messages"][-1] == user(long(11))
        assert len(last["messages"]) < 24
        found = await store.request(answer.headers["x-quire-request"])
        manifest = found.manifest
        assert manifest.sent is not None
        assert (manifest.sent.form, manifest.policy.reserved_response_tokens) == ("fitted", 100)
        assert manifest.total <= 900
        reader = await Engine(store, settings=Settings()).conversation(conversation)
        replay = await reader.replay(found.seq)
        assert replay.matches
        assert replay.pages is not None
        assert replay.pages.payload()["messages"] == last["messages"]
        assert await store.verify(conversation) == []


async def test_the_answers_of_tools_are_fitted_with_the_call_before_them(store: SqlStore):
    def call(number: int) -> dict[str, object]:
        function = {"name": "look", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        }

    async def calls(asked: Asked) -> None:
        await asked.answer(completion({"content": None, "tool_calls": call(len(up.asked))["tool_calls"]}))

    async with upstream(calls) as up, gateway(store, up.url, context_limit=1_000) as kept:
        history = []
        for number in range(1, 12):
            history += [user(f"Look again, for the {number}th time")]
            await kept.ask(*history)
            history += [call(2 * number - 1), {"role": "tool", "tool_call_id": f"c{2 * number - 1}", "content": "Hm."}]
            answer = await kept.ask(*history)
            assert answer.status_code == 200, answer.text
            history += [call(2 * number), {"role": "tool", "tool_call_id": f"c{2 * number}", "content": long(number)}]
        conversation = answer.headers["x-quire-conversation"]
        last = up.asked[-1].body["messages"]
        assert len(last) < len(history) - 2
        assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"] == "c21"
        assert await store.verify(conversation) == []
        found = await store.request(answer.headers["x-quire-request"])
        reader = await Engine(store, settings=Settings()).conversation(conversation)
        replay = await reader.replay(found.seq)
        assert replay.matches
        assert replay.pages is not None
        assert replay.pages.payload()["messages"] == last


async def test_an_overflow_that_only_the_upstream_could_see_is_mended_once(store: SqlStore):
    room = 600

    async def narrow(asked: Asked) -> None:
        tokens = len(asked.raw) // 4
        if tokens > room:
            said = f"This model's maximum context length is {room} tokens. Your messages resulted in {tokens} tokens."
            return await asked.answer({"error": {"message": said, "code": "context_length_exceeded"}}, 400)
        return await says("Noted.")(asked)

    async with upstream(narrow) as up, gateway(store, up.url, model="unknown-model", context_limit=4_000) as kept:
        history = []
        for number in range(10):
            history.append(user(long(number)))
            answer = await kept.ask(*history, model="unknown-model", max_tokens=50)
            assert answer.status_code == 200, answer.text
            history.append(assistant("Noted."))
        assert len(await kept.said(answer.headers["x-quire-conversation"])) == 20
        refused = [asked for asked in up.asked if len(asked.raw) // 4 > room]
        assert len(refused) == 1


async def test_an_overflow_that_nothing_can_be_done_about_passes_through(store: SqlStore):
    async def full(asked: Asked) -> None:
        await asked.answer({"error": {"message": "prompt is too long", "code": "context_length_exceeded"}}, 400)

    async with upstream(full) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Hello"))
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "prompt is too long")
        assert len(up.asked) <= 2


async def test_with_context_management_off_nothing_is_changed(store: SqlStore):
    off = {"context_limit": 300, "context_management_enabled": False}
    async with upstream(says("Noted.")) as up, gateway(store, up.url, **off) as kept:
        messages = [user(long(1)), assistant("Noted."), user(long(2)), assistant("Noted."), user(long(3))]
        assert (await kept.ask(*messages)).status_code == 200
        assert up.asked[0].body["messages"] == messages


async def test_what_cannot_be_reduced_is_refused_with_the_largest_items(store: SqlStore):
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "description": long(number), "parameters": {}}}
        for number in range(10)
    ]
    async with upstream(says("Noted.")) as up, gateway(store, up.url, context_limit=700) as kept:
        answer = await kept.ask(user("Hello"), tools=tools)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "tool 'f1' (" in answer.json()["detail"]
        assert up.asked == []
