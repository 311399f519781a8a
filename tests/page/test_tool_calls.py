"""Tool calls on the page as people know them from their agents, from a transcript of Claude Code; times and costs."""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from page_faults import save_picture
from page_server import PageServer
from playwright.sync_api import Locator, Page, expect

from infra.picture_sessions import create_agent_turn
from quire.engine.file_import import import_files
from quire.sources.registry import SOURCES
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly

PROJECT = "/home/dev/tide-tables"
STARTED = datetime(2026, 9, 3, 9, 0, tzinfo=UTC)
STEP_SECONDS = 12
SUB_AGENT = "a3a312338ffb48ec6"
READER = "import csv\n\n\ndef read_port(path: str) -> list[int]:\n    # Hours of high water\n    return [7, 19]"
DENIAL = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). To tell you how to proceed, the user said:\nAsk Rosa first."
)
TODOS = [
    {"content": "Read the tables", "status": "completed", "activeForm": "Reading"},
    {"content": "Correct the summer term", "status": "in_progress", "activeForm": "Correcting"},
    {"content": "Run the tests", "status": "pending", "activeForm": "Testing"},
]
CALLS: list[tuple[str, dict[str, Any], str, bool]] = [
    ("TodoWrite", {"todos": TODOS}, "Todos have been modified successfully.", False),
    ("Grep", {"pattern": "hour \\+ 1", "output_mode": "content"},
     "tables/reader.py:12:    return hour + 1\ntables/reader.py:31:    late = hour + 1\ntables/ports.py:4:hour", False),
    ("Read", {"file_path": f"{PROJECT}/tables/reader.py"},
     "\n".join(f"{number:>6}→{line}" for number, line in enumerate(READER.splitlines(), start=1)), False),
    ("Edit", {"file_path": f"{PROJECT}/tables/reader.py",
              "old_string": "    # Hours of high water\n    return [7, 19]",
              "new_string": "    # Hours of high water, in UTC\n    hours = [6, 18]\n    return hours"},
     f"The file {PROJECT}/tables/reader.py has been updated.", False),
    ("Write", {"file_path": f"{PROJECT}/notes.md", "content": "# Summer term\n\nOne hour late in three ports.\n"},
     f"File created successfully at: {PROJECT}/notes.md", False),
    ("Bash", {"command": "pytest -q tests/test_ports.py", "description": "Run the tests"},
     "Exit code 1\nF.                                     [100%]\nFAILED tests/test_ports.py::test_summer", True),
    ("Bash", {"command": "git push --force", "description": "Push"}, DENIAL, True),
    ("Task", {"description": "Count the ports", "prompt": "Count the ports in `tables/ports.py`.",
              "subagent_type": "Explore"},
     f"There are **31 ports**.\nagentId: {SUB_AGENT} (use SendMessage to continue this agent)", False),
    ("mcp__tides__get_height", {"port": "Wells", "hour": 6}, "3.1 m", False),
]  # fmt: skip


def write_session(folder: Path, session: str) -> list[Path]:
    """A session of one question with every form of call, and the transcript of its sub-agent."""
    lines: list[dict[str, Any]] = []

    def add(role: str, content: Any, **more: Any) -> None:
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            usage = {"input_tokens": 900 + 300 * len(lines), "output_tokens": 140}
            message |= {
                "id": f"msg_{session}_{more.get('agentId')}_{len(lines)}",
                "model": "claude-sonnet-4-5-20250929",
                "usage": usage,
            }
        lines.append(
            {
                "type": role, "uuid": f"{session}-{len(lines)}",
                "parentUuid": f"{session}-{len(lines) - 1}" if lines else None,
                "sessionId": session, "cwd": PROJECT, "isSidechain": False, "version": "2.0.14", "message": message,
                "timestamp": (STARTED + timedelta(seconds=STEP_SECONDS * len(lines))).isoformat(), **more,
            }
        )  # fmt: skip

    add("user", "Three ports are one hour late in summer. Mend the tables, please.")
    for number, (name, arguments, text, is_error) in enumerate(CALLS):
        add("assistant", [{"type": "tool_use", "id": f"t{number}", "name": name, "input": arguments}])
        add("user", [{"type": "tool_result", "tool_use_id": f"t{number}", "content": text, "is_error": is_error}])
    add("assistant", [{"type": "text", "text": "The tables are mended; one test still fails."}])
    main = folder / "project" / f"{session}.jsonl"
    child = folder / "project" / session / "subagents" / f"agent-{SUB_AGENT}.jsonl"
    child.parent.mkdir(parents=True)
    main.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines.clear()
    side = {"isSidechain": True, "agentId": SUB_AGENT}
    add("user", "Count the ports in `tables/ports.py`.", **side)
    arguments = {"file_path": f"{PROJECT}/tables/ports.py"}
    add("assistant", [{"type": "tool_use", "id": "s0", "name": "Read", "input": arguments}], **side)
    result = {"type": "tool_result", "tool_use_id": "s0", "content": "     1→PORTS = 31", "is_error": False}
    add("user", [result], **side)
    add("assistant", [{"type": "text", "text": "There are **31 ports**."}], **side)
    child.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Of a file that still grows, the end is held back.
    changed = time.time() - 3_600
    for path in (main, child):
        os.utime(path, (changed, changed))
    return [main, child]


def import_session(page_server: PageServer, folder: Path, session: str) -> str:
    engine = page_server.server_state.engine_for(DEFAULT_TENANT)
    page_server.run(import_files(engine, SOURCES["claude-code"], write_session(folder, session)))
    records = page_server.run(engine.store.list_session(session))
    return next(record.id for record in records if record.origin and record.origin.purpose is None)


def open_call(page: Page, name: str, index: int = 0) -> Locator:
    call = page.locator(".steps details.call", has=page.locator(".name", has_text=re.compile(f"^{name}$"))).nth(index)
    call.locator("summary").first.click()
    return call


def test_calls_are_what_people_know_them_as(page: Page, page_server: PageServer, tmp_path: Path) -> None:
    page.goto(page_server.url(import_session(page_server, tmp_path, "forms-of-calls")))
    fold = page.locator(".steps > button")
    expect(fold).to_contain_text("9 calls in 9 steps, 1 failed, 1 denied")
    expect(fold).to_contain_text("3 min 36 s")
    badges = page.locator(".steps details.call .badge")
    expect(badges).to_have_text(["failed", "denied"])
    colours = badges.evaluate_all("all => all.map(each => getComputedStyle(each).backgroundColor)")
    assert len(set(colours)) == 2, "denied is not failed"
    save_picture(page, "calls-folded")
    fold.click()

    edit = open_call(page, "Edit")
    expect(edit.locator("summary").first).to_contain_text(re.compile(r"Edit\s*tables/reader\.py\s*\+3\s*−2\s*done"))
    changes = edit.get_by_role("group", name=f"Changes of {PROJECT}/tables/reader.py")
    expect(changes.locator(".removed")).to_have_text(["-    # Hours of high water", "-    return [7, 19]"])
    expect(changes.locator(".added").nth(1)).to_have_text("+    hours = [6, 18]")
    expect(edit).not_to_contain_text("old_string")
    edit.get_by_text("Raw call").click()
    expect(edit).to_contain_text('"old_string": "    # Hours')

    checklist = open_call(page, "TodoWrite")
    expect(checklist.locator("summary").first).to_contain_text("1 of 3 done")
    expect(checklist.get_by_role("listitem")).to_have_text(
        [re.compile("Read the tables\\s*done"), re.compile("Correct.*in progress"), re.compile("Run.*open")]
    )
    read = open_call(page, "Read").get_by_role("group", name=f"{PROJECT}/tables/reader.py")
    expect(read.locator("code")).to_have_text(READER)
    expect(read.locator(".hljs-keyword").first).to_have_text("import")
    expect(read.locator(".gutter")).to_have_text("1\n2\n3\n4\n5\n6")
    hits = open_call(page, "Grep").get_by_role("listitem")
    expect(hits).to_have_text([re.compile(r"tables/reader\.py\s*12"), re.compile(r"^\s*31"), re.compile("ports")])
    terminal = open_call(page, "Bash").get_by_role("group", name="Terminal")
    expect(terminal).to_contain_text("$ pytest -q tests/test_ports.py")
    expect(terminal).to_contain_text("exit code 1")
    expect(terminal).not_to_contain_text("Exit code 1")
    denied = open_call(page, "Bash", 1)
    expect(denied).to_contain_text("The call was not allowed: Ask Rosa first.")
    other = open_call(page, "mcp__tides__get_height")
    expect(other).to_contain_text('"port": "Wells"')
    expect(other).to_contain_text("3.1 m")
    save_picture(page, "calls-open")

    turn = page.locator(".sub-agent details").first
    turn.locator("summary").first.click()
    expect(turn.locator("summary").first).to_contain_text(re.compile(r"Sub-agent: Count.*1 call in 1 step · 36 s"))
    expect(turn.locator("details.call summary").first).to_contain_text(re.compile(r"Read\s*tables/ports\.py"))
    turn.locator("details.call summary").first.click()
    expect(turn.locator("code")).to_have_text("PORTS = 31")
    expect(turn).to_contain_text("There are 31 ports.")
    save_picture(page, "sub-agent")
    page.get_by_role("link", name="Open the sub-agent’s conversation").click()
    expect(page.get_by_role("article").first).to_contain_text("Parent agent")
    expect(page.get_by_role("article").last).to_contain_text("There are 31 ports.")


def test_messages_have_their_time_and_replies_their_model_and_cost(
    page: Page, page_server: PageServer, tmp_path: Path, demo_conversation: str
) -> None:
    page.goto(page_server.url(import_session(page_server, tmp_path, "times-of-messages")))
    answer = page.get_by_role("article").last
    moment = answer.locator("header time")
    expect(moment).to_have_attribute("datetime", "2026-09-03T09:03:48.000Z")
    expect(moment).to_have_text(re.compile(r"Sep.*\d\d:03"))
    expect(moment).to_have_attribute("title", re.compile(r"2026.*:03:48"))
    expect(answer.locator("header")).to_contain_text("claude-sonnet-4-5-20250929")
    expect(answer.locator("header")).to_contain_text("140 tokens")
    page.locator(".steps > button").click()
    expect(page.locator(".steps details.call time")).to_have_count(len(CALLS))
    turn = page_server.run(create_agent_turn(page_server.server_state.engine_for(DEFAULT_TENANT), calls=4))
    page.goto(page_server.url(turn))
    expect(page.locator(".steps > button")).to_contain_text(re.compile(r"calls in 4 steps.* s · \$0\.\d\d"))
    expect(page.get_by_role("article").last.get_by_title("Cost of this request")).to_have_text(
        re.compile(r"· .*(\$|¢|cent)")
    )
    page.goto(page_server.url(demo_conversation))
    newest = page.get_by_role("article").filter(has=page.locator("header time")).last
    expect(newest.locator("header time")).to_have_text(re.compile(r"^\d\d:\d\d( [AP]M)?$"))
