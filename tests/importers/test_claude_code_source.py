"""The reader of Claude Code's transcripts, on files that Claude Code wrote."""

import os
from pathlib import Path
from typing import Any

import pytest

from importers.transcript_files import FOLDERS, copy_transcripts, edit_lines, read_conversation, read_lines, write_lines
from quire.importers.claude_code import MAX_STEP_MESSAGES, ClaudeCodeSource
from quire.sources.base import SourceConversation, SourceError, SourceMessage
from quire.wire.agent_boilerplate import remove_boilerplate

SOURCE = ClaudeCodeSource()
FILES = list(SOURCE.find_files(FOLDERS["claude-code"]))
[SUB_AGENT] = [file for file in FILES if file.parent.name == "subagents"]
SESSION = SUB_AGENT.parents[1].with_suffix(".jsonl")
[FORK] = [file for file in FILES if file not in (SUB_AGENT, SESSION)]


def make_line(kind: str, uuid: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **({"id": fields.pop("id", uuid)} if kind == "assistant" else {})}
    at = "2026-01-02T03:04:05.000Z"
    return {
        "type": kind, "uuid": uuid, "parentUuid": parent, "message": message, "timestamp": at, "sessionId": "s",
        "isSidechain": False, **fields,
    }  # fmt: skip


def read_messages(path: Path) -> list[SourceMessage]:
    return read_conversation("claude-code", path)[1]


def outline(messages: list[SourceMessage]) -> list[tuple[str, str | None]]:
    return [(message.id, message.parent) for message in messages]


def select_spoken(messages: list[SourceMessage]) -> list[str]:
    """Texts without what the agent adds."""
    texts = [f"{each.message.role}: {each.message.text}" for each in messages if each.message.role != "system"]
    return [text for text in texts if "<" not in text]


def test_a_session_is_one_line_of_messages_across_its_compaction():
    messages = read_messages(SESSION)
    assert [message.parent for message in messages] == [None, *(message.id for message in messages[:-1])]
    assert [text for text in select_spoken(messages) if text != "tool: "] == [
        "user: Greet.",
        "assistant: I will greet.",
        "assistant: It said ahoy.",
        "user: Delegate.",
        "assistant: ",
        "assistant: Delegated.",
        "assistant: The sub-agent is done.",
        "user: Once more.",
        "assistant: After the summary.",
    ]


def test_the_lines_of_a_reply_are_one_message_with_its_usage_once():
    messages = read_messages(SESSION)
    [reply] = [each for each in messages if each.message.text == "I will greet."]
    assert [part.type for part in reply.message.parts] == ["thinking", "text", "tool_call", "tool_call"]
    assert reply.usage is not None
    assert (reply.usage.model, reply.usage.output_tokens) == ("claude-sonnet-5-5", 20)
    assert sum(each.usage is not None for each in messages) == 6
    results = [each for each in messages if each.message.role == "tool"][:2]
    assert [result.message.tool_results[0].call_id for result in results] == [
        call.id for call in reply.message.tool_calls
    ]
    assert results[0].dropped == ("toolUseResult",)


def test_a_compaction_has_its_summary_and_the_messages_that_it_preserves():
    messages = read_messages(SESSION)
    [summary] = [each for each in messages if each.compaction]
    assert summary.compaction is not None
    assert "The user greeted; echo printed ahoy." in summary.compaction.summary
    assert summary.compaction.trigger == "manual"
    assert summary.compaction.tokens_before > summary.compaction.tokens_after > 0
    preserved = {each.id: each.message.text for each in messages}
    assert [preserved[each] for each in summary.compaction.preserved] == ["The sub-agent is done."]


def test_a_sub_agent_is_a_conversation_of_the_session():
    conversation, messages = read_conversation("claude-code", SUB_AGENT)
    session = SESSION.stem
    origin = conversation.origin
    assert (origin.client, origin.session, origin.project) == ("claude-code", session, "/home/dev/project")
    assert (origin.agent, origin.parent_agent, origin.purpose) == (
        SUB_AGENT.stem.removeprefix("agent-"), session, "subagent",
    )  # fmt: skip
    assert conversation.title == "Greet"
    assert select_spoken(messages)[0] == "user: Greet them."
    assert select_spoken(messages)[-1] == "assistant: Greeted."


def test_a_fork_begins_with_the_summary():
    conversation, messages = read_conversation("claude-code", FORK)
    assert conversation.id == conversation.origin.session == FORK.stem
    assert messages[0].compaction is None
    assert messages[0].message.text.startswith("This session is being continued")
    assert select_spoken(messages)[-2:] == ["user: Another way.", "assistant: In the fork."]


def test_what_is_not_carried_is_named():
    dropped = {name for message in read_messages(SESSION) for name in message.dropped}
    assert dropped == {"toolUseResult", "attachment:prompt_snapshot", "attachment:session_context"}


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        ([{"type": "summary", "summary": "Of a summary"}], "Of a summary"),
        ([{"type": "ai-title", "aiTitle": "By the model"}, {"type": "summary", "summary": "S"}], "By the model"),
        ([{"type": "custom-title", "customTitle": "Mine"}, {"type": "ai-title", "aiTitle": "A"}], "Mine"),
        ([{"type": "ai-title", "aiTitle": "Old"}, {"type": "ai-title", "aiTitle": "New"}], "New"),
        ([{"type": "ai-title", "aiTitle": 7}], ""),
        ([{"type": "summary", "summary": "Of this one", "leafUuid": "a"}], "Of this one"),
        ([{"type": "summary", "summary": "Of another session", "leafUuid": "z"}], ""),
    ],
)
def test_the_title_is_the_users_then_the_models(tmp_path: Path, lines: list[dict[str, Any]], title: str):
    path = write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "Hello."), *lines])
    assert read_conversation("claude-code", path)[0].title == title


def test_a_rewind_begins_a_branch_and_what_goes_on_is_read_first(tmp_path: Path):
    path = write_lines(
        tmp_path / "s.jsonl",
        [
            make_line("user", "a", None, "One."),
            make_line("assistant", "b", "a", [{"type": "text", "text": "First."}]),
            make_line("user", "c", "b", "Two."),
            make_line("user", "d", "b", "Two, another way."),
        ],
    )
    assert outline(read_messages(path)) == [("a", None), ("b", "a"), ("d", "b"), ("c", "b")]


def test_results_between_the_lines_of_a_reply_follow_it_in_order(tmp_path: Path):
    """Claude Code runs the first call while the model writes the second."""
    call = [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]
    result = [{"type": "tool_result", "tool_use_id": "1", "content": "ahoy"}]
    path = write_lines(
        tmp_path / "s.jsonl",
        [
            make_line("user", "a", None, "Go."),
            make_line("assistant", "b1", "a", call, id="msg"),
            make_line("user", "r1", "b1", result),
            {"type": "attachment", "uuid": "hook", "parentUuid": "r1", "attachment": {"type": "hook"},
             "rendered": [{"content": "A hook ran."}], "renderedRole": "system", "isSidechain": False},
            make_line("assistant", "b2", "b1", [{**call[0], "id": "2"}], id="msg"),
            make_line("user", "r2", "b2", [{**result[0], "tool_use_id": "2"}]),
            {"type": "attachment", "uuid": "hook2", "parentUuid": "r2", "attachment": {"type": "hook"},
             "rendered": [{"content": "<system-reminder>\nAnother ran.\n</system-reminder>"}],
             "renderedRole": "system", "isSidechain": False},
            make_line("assistant", "c", "r2", [{"type": "text", "text": "Done."}]),
        ],
    )  # fmt: skip
    messages = read_messages(path)
    assert outline(messages) == [
        ("a", None), ("b1", "a"), ("r1", "b1"), ("r2", "r1"), ("hook", "r2"), ("c", "hook"),
    ]  # fmt: skip
    assert messages[4].message.text == "A hook ran.\n\nAnother ran."
    assert [call.id for call in messages[1].message.tool_calls] == ["1", "2"]


def test_a_hooks_text_at_the_end_of_a_growing_file_is_held_back(tmp_path: Path):
    hook = {"type": "attachment", "uuid": "hook", "parentUuid": "a", "attachment": {"type": "hook"},
            "rendered": [{"content": "A hook ran."}], "renderedRole": "system", "isSidechain": False}  # fmt: skip
    path = write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "Go."), hook])
    os.utime(path)
    assert outline(read_messages(path)) == [("a", None)]
    os.utime(path, (1, 1))
    assert outline(read_messages(path)) == [("a", None), ("hook", "a")]


def test_a_line_of_a_reply_far_after_the_others_belongs_to_it(tmp_path: Path):
    count = MAX_STEP_MESSAGES + 5
    many = [make_line("user", f"r{n}", "b", [{"type": "tool_result", "tool_use_id": "1", "content": "x"}])
            for n in range(count)]  # fmt: skip
    late = make_line("assistant", "b2", "b", [{"type": "text", "text": "late"}], id="msg")
    first = make_line("assistant", "b", None, [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}], id="msg")
    messages = read_messages(write_lines(tmp_path / "s.jsonl", [first, *many, late]))
    assert messages[0].message.text == "late"
    assert outline(messages[1:]) == [(f"r{n}", f"r{n - 1}" if n else "b") for n in range(count)]


def test_side_chains_of_older_versions_are_a_conversation_of_their_own(tmp_path: Path):
    path = write_lines(
        tmp_path / "s.jsonl",
        [
            make_line("user", "a", None, "Delegate."),
            make_line("user", "x", None, "Greet them.", isSidechain=True),
            make_line("assistant", "y", "x", [{"type": "text", "text": "Greeted."}], isSidechain=True),
            make_line("assistant", "b", "a", [{"type": "text", "text": "Delegated."}]),
        ],
    )
    main, side = SOURCE.read(path)
    assert isinstance(main, SourceConversation)
    assert isinstance(side, SourceConversation)
    assert [each.id for each in main.messages if isinstance(each, SourceMessage)] == ["a", "b"]
    assert [each.id for each in side.messages if isinstance(each, SourceMessage)] == ["x", "y"]
    assert (main.id, side.id, side.origin.purpose) == ("s", "s/side-chains", "subagent")


def test_a_queued_prompt_is_a_message(tmp_path: Path):
    attachment = {"type": "queued_command", "prompt": "And another thing."}
    line = {"type": "attachment", "uuid": "q", "parentUuid": "a", "attachment": attachment, "isSidechain": False}
    messages = read_messages(write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "One."), line]))
    assert select_spoken(messages) == ["user: One.", "user: And another thing."]


@pytest.mark.parametrize(("stop_reason", "age", "count"), [(None, 0, 1), (None, 60, 2), ("end_turn", 0, 2)])
def test_an_incomplete_reply_of_a_growing_file_is_held_back(
    tmp_path: Path, stop_reason: str | None, age: int, count: int
):
    reply = make_line("assistant", "b", "a", [{"type": "text", "text": "So f"}])
    reply["message"]["stop_reason"] = stop_reason
    path = write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "One."), reply], age_seconds=age)
    conversation, messages = read_conversation("claude-code", path)
    assert (len(messages), conversation.unfinished_replies) == (count, 2 - count)


def test_a_root_in_the_middle_follows_the_last_message(tmp_path: Path):
    """As where a plan is carried out with an empty context."""
    lines = [
        make_line("user", "a", None, "Plan it."),
        make_line("assistant", "b", "a", [{"type": "text", "text": "Planned."}]),
        {"type": "progress", "uuid": "p", "parentUuid": None, "isSidechain": False},
        make_line("user", "c", "p", "Build it."),
    ]
    assert outline(read_messages(write_lines(tmp_path / "s.jsonl", lines))) == [("a", None), ("b", "a"), ("c", "b")]


def test_a_prompt_beside_a_commands_output_is_no_branch(tmp_path: Path):
    command = (
        "<command-name>/exit</command-name>\n<command-message>exit</command-message>\n<command-args></command-args>"
    )
    lines = [
        make_line("assistant", "a", None, [{"type": "text", "text": "Done."}]),
        make_line("user", "m", "a", "<local-command-caveat>Caveat.</local-command-caveat>", isMeta=True),
        make_line("user", "c", "m", command),
        make_line("user", "b", "m", "Go on."),
    ]
    messages = read_messages(write_lines(tmp_path / "s.jsonl", lines))
    assert outline(messages) == [("a", None), ("m", "a"), ("c", "m"), ("b", "c")]
    assert [remove_boilerplate(each.message).text for each in messages] == ["Done.", "", "", "Go on."]


@pytest.mark.parametrize(
    "marks", [{"isMeta": True}, {"origin": {"kind": "peer"}}, {"isMeta": True, "sourceToolUseID": "toolu_1"}]
)
def test_texts_that_a_line_marks_as_the_programs_are_not_the_users(tmp_path: Path, marks: dict[str, Any]):
    [message] = read_messages(
        write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "# Simplify\n\nReview all files.", **marks)])
    )
    assert message.message.text == "# Simplify\n\nReview all files."
    assert remove_boilerplate(message.message).parts == ()


def test_a_turn_that_the_program_made_up_is_no_reply(tmp_path: Path):
    error = make_line("assistant", "e", "a", [{"type": "text", "text": "API Error: 529"}], isApiErrorMessage=True)
    error["message"] |= {"model": "<synthetic>", "usage": {"input_tokens": 0, "output_tokens": 0}}
    messages = read_messages(write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "One."), error]))
    assert [(each.message.role, each.usage) for each in messages] == [("user", None), ("system", None)]


@pytest.mark.parametrize(("stop_reason", "partial"), [(None, True), ("tool_use", None)])
def test_an_output_that_was_counted_before_its_end_is_a_lower_bound(
    tmp_path: Path, stop_reason: str | None, partial: bool | None
):
    """Older versions write each line of a reply with the counts of the moment."""
    lines: list[dict[str, Any]] = []
    for number, output in enumerate([40, 3]):
        line = make_line("assistant", f"b{number}", None, [{"type": "text", "text": "So"}], id="msg")
        usage = {"input_tokens": 5, "output_tokens": output}
        line["message"] |= {"model": "claude-opus-4-6", "stop_reason": stop_reason, "usage": usage}
        lines.append(line)
    [reply] = read_messages(write_lines(tmp_path / "s.jsonl", lines))
    assert reply.usage is not None
    assert (reply.usage.output_tokens, reply.usage.partial) == (40, partial)


def test_lines_that_cannot_be_read_are_errors_and_the_tree_stays_linked(tmp_path: Path):
    path = write_lines(
        tmp_path / "s.jsonl",
        [
            make_line("user", "a", None, "One."),
            {**make_line("user", "b", "a", "x"), "message": {"role": "narrator", "content": "x"}},
            make_line("user", "c", "b", "Three."),
        ],
    )
    path.write_text(path.read_text() + "not json\n[1]\n" + '{"type":"user","uuid":"d","message":{"ro')
    [conversation] = SOURCE.read(path)
    assert isinstance(conversation, SourceConversation)
    read = list(conversation.messages)
    assert [each.item for each in read if isinstance(each, SourceError)] == ["s.jsonl:2", "s.jsonl:4", "s.jsonl:5"]
    assert outline([each for each in read if isinstance(each, SourceMessage)]) == [("a", None), ("c", "a")]


def test_repeated_lines_and_cycles_end(tmp_path: Path):
    lines = [make_line("user", "a", "b", "One."), make_line("user", "b", "a", "Two."), make_line("user", "a", "b", "1")]
    assert outline(read_messages(write_lines(tmp_path / "s.jsonl", lines))) == [("b", None), ("a", "b")]


def test_files_are_found_where_claude_code_stores_them(tmp_path: Path):
    projects = copy_transcripts("claude-code", tmp_path / "config" / "projects")
    write_lines(tmp_path / "config" / "history.jsonl", [{"display": "a prompt"}])
    [found] = SOURCE.find_default_paths({"CLAUDE_CONFIG_DIR": str(tmp_path / "config")})
    assert found == projects
    assert SOURCE.find_default_paths({"HOME": str(tmp_path)}) == []
    assert list(SOURCE.find_files(found)) == list(SOURCE.find_files(tmp_path / "config"))
    assert len(list(SOURCE.find_files(found))) == 3


def test_files_that_are_older_are_skipped(tmp_path: Path):
    path = write_lines(tmp_path / "s.jsonl", [make_line("user", "a", None, "One.")])
    changed = path.stat().st_mtime_ns // 1_000
    assert len(list(SOURCE.read(path, since=changed))) == 1
    assert list(SOURCE.read(path, since=changed + 1)) == []


def test_a_file_without_messages_has_no_conversation(tmp_path: Path):
    assert list(SOURCE.read(write_lines(tmp_path / "s.jsonl", [{"type": "mode", "sessionId": "s"}]))) == []


def test_unknown_lines_are_named(tmp_path: Path):
    path = write_lines(
        tmp_path / "s.jsonl",
        [
            {"type": "hologram"},
            {"type": "system", "subtype": "notice", "uuid": "n"},
            make_line("user", "a", "n", "One."),
        ],
    )
    [message] = read_messages(path)
    assert message.dropped == ("hologram", "system:notice")


def test_the_fixtures_name_no_machine():
    for path in FILES:
        assert "/tmp/" not in path.read_text().replace("/tmp/claude/", "")
        assert all(line.get("cwd", "/home/dev/project") == "/home/dev/project" for line in read_lines(path))


def test_a_reply_whose_lines_change_keeps_its_id(tmp_path: Path):
    folder = copy_transcripts("claude-code", tmp_path / "copy")
    path = folder / SESSION.relative_to(FOLDERS["claude-code"])
    before = read_messages(path)

    def change(line: dict[str, Any]) -> None:
        if line.get("type") == "assistant":
            line["message"]["content"][0].pop("signature", None)

    edit_lines(path, change)
    after = read_messages(path)
    assert outline(after) == outline(before)
    assert after != before
