"""`quire scan` finds what is planted in the sessions of a home, nothing in clean ones, and changes no file."""

import json
import os
import re
import shlex
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.agent_homes import PLANTED_KINDS, ClaudeSession, plant, write_clean_session, write_codex_session
from infra.recorded_files import copy_recorded
from infra.sizes import IS_FULL_SIZE
from quire.cli.app import app
from quire.engine import file_import
from quire.importers.claude_code import ClaudeCodeSource

PLANTED_OF_A_KIND = 6
CLEAN_SESSIONS = 1_000 if IS_FULL_SIZE else 20
MAX_FALSE = 3 if IS_FULL_SIZE else 0


@pytest.fixture
def agent_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("QUIRE_", "XDG_", "CLAUDE_", "CODEX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(home)
    return home


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def scan() -> dict[str, Any]:
    return json.loads(run("scan", "--json"))


def list_versions(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


def test_a_home_is_copied_once_before_its_sessions_are_read_again(agent_home: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(3):
        write_clean_session(agent_home / ".claude" / "projects", number, messages=4)
    cost = scan()["totals"]["cost_usd"]
    reads = ClaudeCodeSource.reads
    monkeypatch.setattr(ClaudeCodeSource, "reads", reads + 1)
    again = CliRunner().invoke(app, ["scan"], catch_exceptions=False)
    notes = " ".join(again.stderr.split())
    [copy] = agent_home.rglob("*.copy")
    assert copy.name in notes.replace(" ", "")
    assert f"3 sessions were read again: cost ${cost:,.2f} as before." in notes
    with closing(sqlite3.connect(copy)) as stored:
        assert stored.execute("SELECT max(reads) FROM quire_imports").fetchone() == (reads,)
    assert copy.stat().st_mode & 0o077 == 0
    assert scan()["totals"]["cost_usd"] == cost
    assert len(list(agent_home.rglob("*.copy"))) == 1
    assert "0 new messages" in run("import", "claude-code")


def test_what_was_never_counted_did_not_cost_nothing(agent_home: Path, monkeypatch: pytest.MonkeyPatch):
    """`quire import` reads sessions and counts no usage; the next version reads them again."""
    write_clean_session(agent_home / ".claude" / "projects", 0, messages=4)
    run("import", "claude-code")
    monkeypatch.setattr(ClaudeCodeSource, "reads", ClaudeCodeSource.reads + 1)
    notes = CliRunner().invoke(app, ["scan"], catch_exceptions=False).stderr
    assert "1 session was read again: cost $" in notes
    assert "as before." in notes


def test_planted_waste_is_found_with_a_command_that_shows_it(agent_home: Path):
    projects = agent_home / ".claude" / "projects"
    planted = {
        (kind, number): plant(projects, kind, number) for kind in PLANTED_KINDS for number in range(PLANTED_OF_A_KIND)
    }
    for number in range(30):
        write_clean_session(projects, number, messages=20)
        write_codex_session(agent_home / ".codex" / "sessions", number, messages=20, age_days=1 + number % 20)
    before = list_versions(agent_home / ".claude")
    report = scan()
    found = {each["kind"]: each for each in report["findings"]}
    missed: list[tuple[str, int]] = []
    for (kind, number), text in planted.items():
        evidence = found[kind]["evidence"] if kind in found else []
        matching = [each for each in evidence if text in each["text"]]
        if not matching:
            missed.append((kind, number))
    assert len(missed) <= 3, missed
    assert list_versions(agent_home / ".claude") == before
    # The most expensive first.
    costs = [each["cost_usd"] for each in report["findings"]]
    assert costs == sorted(costs, reverse=True)
    # Each command runs, and the largest evidence of what is an entry is in its output.
    for kind, finding in found.items():
        output = run(*shlex.split(finding["command"])[1:])
        if kind == "large_file":
            assert "schema_" in output
    assert found["large_file"]["total"] == PLANTED_OF_A_KIND
    # A fact saves nothing, and costs nothing.
    assert found["cache_drop"]["cost_usd"] == 0


def test_a_command_can_be_copied_from_a_narrow_terminal(agent_home: Path, monkeypatch: pytest.MonkeyPatch):
    plant(agent_home / ".claude" / "projects", "large_file", 1)
    plant(agent_home / ".claude" / "projects", "cache_drop", 1)
    findings = scan()["findings"]
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("scan").splitlines()
    assert {finding["kind"] for finding in findings} >= {"large_file", "cache_drop"}
    assert [each["command"] for each in findings if f"    $ {each['command']}" not in lines] == []
    assert any("The provider's cache dropped 1 prompt in 1 session" in line for line in lines)
    assert any("1 file of 5k tokens or more stayed" in line for line in lines)


def test_clean_sessions_have_no_finding(agent_home: Path):
    for number in range(CLEAN_SESSIONS):
        write_clean_session(agent_home / ".claude" / "projects", number, messages=30)
    false = [(each["kind"], each["evidence"][:2]) for each in scan()["findings"] for _ in range(each["total"])]
    assert len(false) <= MAX_FALSE, false


def test_a_second_scan_reads_only_what_changed(agent_home: Path, monkeypatch: pytest.MonkeyPatch):
    projects = agent_home / ".claude" / "projects"
    paths = [write_clean_session(projects, number) for number in range(3)]
    plant(projects, "large_file", 1)
    first = scan()
    read: list[Path] = []
    from quire.importers.claude_code import ClaudeCodeSource

    original = ClaudeCodeSource.read

    def watch(source: ClaudeCodeSource, path: Path, *, since: int | None = None) -> Any:
        read.append(path)
        return original(source, path, since=since)

    monkeypatch.setattr(ClaudeCodeSource, "read", watch)
    assert scan() == first
    assert read == []
    lines = paths[0].read_text().splitlines()
    paths[0].write_text("\n".join(lines[:-1]) + "\n")
    os.utime(paths[0], (1_700_000_000, 1_700_000_000))
    scan()
    assert read == [paths[0]]


def test_nothing_is_concluded_from_a_file_that_begins_in_the_middle(agent_home: Path):
    projects = agent_home / ".claude" / "projects"
    for number in range(2):
        plant(projects, "fixed_prompt", number)
    path = sorted(projects.rglob("*.jsonl"))[0]
    lines = path.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if json.loads(line).get("uuid"))
    lines[first] = json.dumps({**json.loads(lines[first]), "parentUuid": "in another file"})
    path.write_text("\n".join(lines) + "\n")
    found = {each["kind"]: each["total"] for each in scan()["findings"]}
    assert found["fixed_prompt"] == 1


def test_a_purge_erases_what_was_noticed(agent_home: Path):
    projects = agent_home / ".claude" / "projects"
    plant(projects, "large_file", 1)
    [finding] = [each for each in scan()["findings"] if each["kind"] == "large_file"]
    run("conversation", "purge", finding["evidence"][0]["conversation"], "--yes")
    assert not any(each["kind"] == "large_file" for each in scan()["findings"])


def test_an_empty_home_gets_findings_from_quire_alone(agent_home: Path):
    plant(agent_home / ".claude" / "projects", "large_file", 1)
    output = run()
    assert "schema_1.sql" in output
    assert "quire service install" in output
    assert "Usage:" in run()


def test_the_html_file_is_complete_and_shows_hostile_text_as_text(agent_home: Path):
    projects = agent_home / ".claude" / "projects"
    noon = (time.time() // 86_400 - 1) * 86_400 + 43_200
    session = ClaudeSession(1, project="/home/dev/<b>app</b>", started_at=noon)
    session.model = "claude-opus-4-1"
    session.step("Read", {"file_path": "/a/<script>alert(1)<\x1b[31m"}, session.text(6_000))
    session.work(110)
    session.save(projects)
    run("scan", "--html", "report.html")
    page = (agent_home / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert "&lt;script&gt;alert(1)&lt;" in page
    assert "<script" not in page
    assert "<b>app" not in page
    assert not re.search(r"(?:src|href|url)\s*[=(]", page)
    assert not re.search(r"\d{4}-\d\d-\d\d to \d{4}", page), "the only day is named once"
    assert "\x1b" not in page


def test_a_session_that_gemini_cli_deletes_at_its_next_start_is_named(agent_home: Path):
    # Recorded after `gemini --resume`: two files whose names have the same end.
    copy_recorded("gemini", agent_home / ".gemini" / "tmp")
    [finding] = [each for each in scan()["findings"] if each["kind"] == "expiring"]
    assert finding["title"].startswith(
        "Gemini CLI will delete 3 transcripts within a week, the first at the next start"
    )
    assert all("(the session was resumed)" in each["text"] for each in finding["evidence"])
    # The session was imported, so that the command shows it, and its cost counts once.
    shown = run(*shlex.split(finding["command"])[1:])
    assert "Delegate." in shown
    assert "(Greet.)" in shown.splitlines()[0]  # The title is a prompt, not the context that the program adds.
    assert len([each for each in finding["evidence"] if each["cost_usd"]]) == 1


def test_days_are_not_expensive_because_all_are_from_then_on(agent_home: Path):
    # 40 days with one session each, and since then 15 with many.
    for age in range(16, 56):
        write_codex_session(agent_home / ".codex" / "sessions", age, messages=20, age_days=age)
    for age in range(1, 16):
        session = ClaudeSession(age, project="/home/dev/app", started_at=time.time() - age * 86_400)
        session.model = "claude-opus-4-1"
        session.work(300)
        session.save(agent_home / ".claude" / "projects")
    assert not any(each["kind"] == "expensive_day" for each in scan()["findings"])


def test_a_busy_machine_may_read_for_as_long_as_it_takes(agent_home: Path, monkeypatch: pytest.MonkeyPatch):
    # A server stops long work after this time; with none of it, it would stop at once.
    monkeypatch.setattr(file_import, "MAX_WORK_SECONDS", 0.0)
    for number in range(10):
        write_clean_session(agent_home / ".claude" / "projects", number, messages=40)
    assert scan()["conversations"] == 10
    run("import", "claude-code")
