"""A compaction of Claude Code follows what was before it, also where its logical parent was never written."""

import json
from pathlib import Path

import pytest

from quire.importers.claude_code import ClaudeCodeSource
from quire.sources.base import SourceConversation, SourceMessage


def make_line(kind: str, uuid: str, parent: str | None, **fields: object) -> dict[str, object]:
    common = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "cwd": "/p", "isSidechain": False}
    return {**common, "timestamp": "2026-01-05T09:00:00.000Z", **fields}


def make_user(uuid: str, parent: str | None, text: str, **fields: object) -> dict[str, object]:
    return make_line("user", uuid, parent, message={"role": "user", "content": text}, **fields)


@pytest.mark.parametrize("segment", [{"tailUuid": "u2"}, {"tailUuid": "never written"}, {}])
def test_a_boundary_with_an_unknown_logical_parent_continues_the_branch(tmp_path: Path, segment: dict[str, str]):
    boundary = make_line(
        "system", "b", None, subtype="compact_boundary", logicalParentUuid="never written",
        compactMetadata={"trigger": "manual", "preservedSegment": segment},
    )  # fmt: skip
    lines = [
        make_user("u1", None, "One."),
        make_user("u2", "u1", "Two."),
        boundary,
        make_user("s", "b", "The summary.", isCompactSummary=True),
        make_user("u3", "s", "Three."),
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    [conversation] = ClaudeCodeSource().read(path)
    assert isinstance(conversation, SourceConversation)
    messages = [each for each in conversation.messages if isinstance(each, SourceMessage)]
    assert [(each.id, each.parent) for each in messages] == [("u1", None), ("u2", "u1"), ("s", "u2"), ("u3", "s")]
    assert messages[2].compaction is not None
