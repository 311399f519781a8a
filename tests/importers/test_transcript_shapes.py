"""Small transcripts in the shapes that real ones have, each beside what a person reads in it.

`data/shapes/PROGRAM/NAME.jsonl` repeats the structure of real lines with other words. `NAME.facts.json` was written by
hand: the messages of the path that is shown, in order and without what a program wrote in the user's place; the last
message of each branch; results by call; compactions; requests as model, new, read, written and output tokens; who the
session belongs to; times of its first and last message.
"""

import json
import os
import re
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire.model import TextPart
from quire.sources.base import SourceConversation, SourceMessage
from quire.sources.registry import SOURCES
from quire.wire.agent_boilerplate import remove_boilerplate
from quire.wire.billed_calls import list_billed_calls

SHAPES = Path(__file__).parent / "data" / "shapes"
FACETS = ("messages", "branches", "results", "compactions", "requests", "session", "times")


def list_cases() -> list[Any]:
    return [
        pytest.param(path, facet, id=f"{path.parent.name}/{path.stem}/{facet}")
        for path in sorted(SHAPES.glob("*/*.jsonl"))
        for facet in FACETS
    ]


class Reading(NamedTuple):
    conversation: SourceConversation
    messages: dict[str, SourceMessage]
    either_way: list[str]
    """Texts that an importer may carry over or leave out: of a command, or of a reply that no model made."""

    def describe(self, message: SourceMessage) -> list[str]:
        """What a person reads in a message: nothing in one that a program wrote in the user's place."""
        if message.compaction is not None:
            return ["compaction"]
        role = message.message.role
        texts = [part.text for part in message.message.parts if isinstance(part, TextPart)]
        # The placeholder of what only the provider reads is no text.
        text = " ".join(each for each in texts if not re.fullmatch(r"\[\w+\]", each))
        if role == "tool":
            return [f"result {each.call_id}" for each in message.message.tool_results]
        if role == "assistant":
            words = [text, *(f"[{call.id} {call.name}]" for call in message.message.tool_calls)]
            return [] if text in self.either_way else [f"assistant: {' '.join(filter(None, words))}"]
        own = remove_boilerplate(message.message).text if role == "user" else ""
        return [f"user: {own}"] if own and own not in self.either_way else []

    def list_path(self, last: str | None) -> list[SourceMessage]:
        path: list[SourceMessage] = []
        while last is not None:
            path.append(self.messages[last])
            last = path[-1].parent
        return path[::-1]

    def describe_last(self, last: str | None) -> str:
        """The last that a person reads on the path to a message."""
        return [text for each in self.list_path(last) for text in self.describe(each)][-1]


def read_shape(path: Path, facts: dict[str, Any], folder: Path) -> Reading:
    copy = Path(shutil.copy(path, folder))
    changed = time.time() - facts.get("age_seconds", 3_600)
    os.utime(copy, (changed, changed))
    [conversation] = SOURCES[path.parent.name].read(copy)
    assert isinstance(conversation, SourceConversation)
    messages: dict[str, SourceMessage] = {}
    for message in conversation.messages:
        assert isinstance(message, SourceMessage), message
        assert message.id not in messages
        messages[message.id] = message
    return Reading(conversation, messages, facts.get("either_way", []))


def list_shown(reading: Reading) -> list[SourceMessage]:
    """The path to the newest message, of those that a person reads."""
    newest = max(reading.messages.values(), key=lambda each: each.at or 0)
    path = reading.list_path(newest.id)
    return [each for each in path if reading.describe(each)]


def read_messages(reading: Reading) -> list[str]:
    return [text for each in list_shown(reading) for text in reading.describe(each)]


def read_branches(reading: Reading) -> list[str]:
    roots = [each for each in reading.messages.values() if each.parent is None]
    assert len(roots) == 1
    parents = {each.parent for each in reading.messages.values()}
    return sorted(reading.describe_last(id_) for id_ in reading.messages if id_ not in parents)


def read_results(reading: Reading) -> dict[str, str]:
    results = [result for each in reading.messages.values() for result in each.message.tool_results]
    assert len({result.call_id for result in results}) == len(results)
    return {result.call_id: result.text for result in results}


def read_compactions(reading: Reading) -> list[dict[str, Any]]:
    return [
        {
            "follows": reading.describe_last(each.parent),
            "kind": "summary" if each.compaction.summary else "opaque",
            "summary": each.compaction.summary,
            "trigger": each.compaction.trigger,
            "tokens_before": each.compaction.tokens_before,
            "kept": [text for id_ in each.compaction.preserved for text in reading.describe(reading.messages[id_])],
        }
        for each in reading.messages.values()
        if each.compaction is not None
    ]


def read_requests(reading: Reading) -> list[list[Any]]:
    requests: list[list[Any]] = []
    in_order = sorted(reading.messages.values(), key=lambda each: each.at or 0)
    for usage in (each.usage for each in in_order if each.usage is not None):
        by_model: dict[str | None, list[int]] = {}
        for call in list_billed_calls(usage):
            new = call.input_tokens - call.cache_read_tokens - call.cache_write_tokens
            counts = (new, call.cache_read_tokens, call.cache_write_tokens, call.output_tokens)
            before = by_model.get(call.model or usage.model, [0, 0, 0, 0])
            by_model[call.model or usage.model] = [one + other for one, other in zip(before, counts, strict=True)]
        requests += ([model, *counts] for model, counts in by_model.items())
    return requests


def read_session(reading: Reading) -> dict[str, Any]:
    conversation, origin = reading.conversation, reading.conversation.origin
    assert (origin.purpose == "subagent") == (origin.agent is not None)
    return {
        "id": conversation.id,
        "agent": origin.agent,
        "parent": origin.parent_agent,
        "begins_in_the_middle": "beginning" in conversation.dropped,
    }


def read_times(reading: Reading) -> list[str]:
    shown = list_shown(reading)
    times = [datetime.fromtimestamp((each.at or 0) / 1_000_000, UTC) for each in (shown[0], shown[-1])]
    return [each.isoformat(timespec="milliseconds").replace("+00:00", "Z") for each in times]


READERS = {
    "messages": read_messages,
    "branches": read_branches,
    "results": read_results,
    "compactions": read_compactions,
    "requests": read_requests,
    "session": read_session,
    "times": read_times,
}


@pytest.mark.parametrize(("path", "facet"), list_cases())
def test_a_shape_is_read_as_a_person_reads_it(path: Path, facet: str, tmp_path: Path):
    facts = json.loads(path.with_suffix(".facts.json").read_text())
    expected = facts[facet]
    if expected is None:
        pytest.skip("a person could read it either way")
    read = READERS[facet](read_shape(path, facts, tmp_path))
    if facet == "branches":
        expected = sorted(expected)
    if facet == "compactions":
        assert len(read) == len(expected)
        read = [{name: each[name] for name in facts} for each, facts in zip(read, expected, strict=True)]
    assert read == expected
