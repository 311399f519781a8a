"""The cache of converted histories: only new messages are converted, and a changed one always is."""

import copy
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic_ai import messages as pai

from quire.adapters.langchain import convert_message
from quire.adapters.pydantic_ai import convert_model_message
from quire.model import Message
from quire.model.entries import iter_paths
from quire.proxy.framework_requests import ConversionCache, ConvertedHistory, ConvertedMessage


class CountingConverter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, source: Any) -> list[ConvertedMessage]:
        self.count += 1
        return [convert_message(source)] if isinstance(source, BaseMessage) else convert_model_message(source)


HISTORIES: dict[str, list[Any]] = {
    "langchain": [HumanMessage(f"Question {n}") if n % 2 else AIMessage([f"Answer {n}"]) for n in range(1, 21)],
    "pydantic_ai": [
        pai.ModelRequest([pai.UserPromptPart([f"Question {n}"])]) if n % 2 else pai.ModelResponse([pai.TextPart("Yes")])
        for n in range(1, 21)
    ],
}


def list_messages(history: ConvertedHistory) -> list[Message]:
    return [each.message for each in history.messages]


@pytest.mark.parametrize("framework", HISTORIES)
def test_only_new_messages_are_converted(framework: str):
    converter, sources = CountingConverter(), HISTORIES[framework]
    cache = ConversionCache[Any](converter)
    cache.convert("c", sources[:18])
    # After a checkpoint the messages are equal, but other objects.
    history = cache.convert("c", copy.deepcopy(sources))
    assert converter.count == 20
    assert history.paths == tuple(iter_paths(message.canonical_json().encode() for message in list_messages(history)))
    converted = ConversionCache[Any](converter).convert("c", sources)
    assert list_messages(history) == list_messages(converted)
    assert history[1:] == converted[1:]
    cache.convert("another", sources)
    assert converter.count == 60


@pytest.mark.parametrize("framework", HISTORIES)
def test_a_message_that_was_changed_in_place_is_converted_again(framework: str):
    converter, sources = CountingConverter(), copy.deepcopy(HISTORIES[framework])
    cache = ConversionCache[Any](converter)
    cache.convert("c", sources)
    if framework == "langchain":
        sources[9].content[0] = "Another answer"
    else:
        sources[9].parts[0].content = "Another answer"
    history = cache.convert("c", sources)
    assert list_messages(history)[9].text == "Another answer"
    assert converter.count == 20 + 11
    assert list_messages(cache.convert("c", sources[:9])) == list_messages(history)[:9]


def test_objects_that_cannot_be_copied_or_compared_are_converted_each_time():
    class Stubborn:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError

    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError

        __hash__ = None  # type: ignore[assignment]

    count = 0

    def convert(source: Any) -> list[ConvertedMessage]:
        nonlocal count
        count += 1
        return [ConvertedMessage(Message.user("Hello"), ("messages[object]",)), ConvertedMessage(None)]

    cache = ConversionCache[Any](convert)
    for source in (Stubborn(), Incomparable()):
        for _ in range(2):
            assert cache.convert("c", [source]).dropped == ("messages[object]",)
    assert count == 4
