"""`quire memory`, `config`, `agent`, `conversation`: edits preserve the rest of a file, and purges erase."""

import asyncio
import json
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import GREETING_ID, NEXT_DAY, TIDES_ID, CliHome, invoke_cli, run_json
from hypothesis import given, strategies

from quire.cli.config import replace_value
from quire.cli.memory import split_statements
from quire.log import ConversationOrigin
from quire.model import Message
from quire.settings.toml_template import render_settings_template, to_toml
from quire.store import SqlStore


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


# memory


def test_importing_twice_remembers_once(home: CliHome):
    assert len(run_json("memory", "import", "@preferences.md")["added"]) == 3
    again = run_json("memory", "import", "preferences.md")
    assert (again["added"], again["known"]) == ([], 3)
    assert len(run_json("memory", "search")["memories"]) == 5


def test_what_is_no_longer_in_the_file_is_retired_if_one_says_so(home: CliHome):
    run_json("memory", "import", "@preferences.md")
    (home.project / "preferences.md").write_text("- Heights are given in feet.\n- Times are local, not UTC.\n")
    changed = run_json("memory", "import", "@preferences.md", "--replace")
    assert changed["added"] == ["Heights are given in feet."]
    assert len(changed["retired"]) == 2
    remaining = [
        each["text"] for each in run_json("memory", "search")["memories"] if each["source"] == "preferences.md"
    ]
    assert sorted(remaining) == ["Heights are given in feet.", "Times are local, not UTC."]


def test_an_imported_memory_names_its_file_and_is_found(home: CliHome):
    run_json("memory", "import", "@preferences.md")
    [first, *_] = run_json("memory", "search", "when is the bar crossed")["memories"]
    assert first["source"] == "preferences.md"
    assert first["text"].startswith("Harbour: The bar is crossed")


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 3), (b"\xff\xfe\x00", 1), (b"x " * 150_000, 1), (b"# Only a title\n", 1)],
    ids=["missing", "no text", "too large", "without statements"],
)
def test_a_file_without_statements_is_refused(home: CliHome, content: bytes | None, code: int):
    if content is not None:
        (home.project / "file.md").write_bytes(content)
    failed = invoke_cli("memory", "import", "@file.md", "--json")
    assert (failed.exit_code, failed.stdout) == (code, "")


def test_a_namespace_without_an_agent_can_be_named(home: CliHome):
    run_json("memory", "import", "@preferences.md", "--agent", "someone")
    assert run_json("memory", "search", "--agent", "someone")["namespace"] == "someone"
    assert len(run_json("memory", "search", "--agent", "sailor")["memories"]) == 2
    assert invoke_cli("memory", "search", "--agent", "missing.toml").exit_code == 3


def test_without_an_agent_a_note_says_that_no_request_reads_the_namespace(home: CliHome):
    home.settings.write_text("")
    outcome = invoke_cli("memory", "import", "@preferences.md", "--json")
    assert json.loads(outcome.stdout)["namespace"] == "default"
    assert "No agent is set" in outcome.stderr
    assert run_json("memory", "relevance")["enabled"] is False
    assert "There is no agent" in invoke_cli("memory", "relevance").stdout


def test_retired_memories_are_not_listed_and_all_ids_must_be_there(home: CliHome):
    [newest, oldest] = run_json("memory", "search")["memories"]
    assert invoke_cli("memory", "retire", newest["id"], "nobody").exit_code == 3
    assert len(run_json("memory", "search")["memories"]) == 2
    run_json("memory", "retire", newest["id"])
    assert [each["id"] for each in run_json("memory", "search")["memories"]] == [oldest["id"]]
    assert invoke_cli("memory", "retire", newest["id"]).exit_code == 0


def test_relevance_depends_on_the_question(home: CliHome):
    run_json("memory", "import", "@preferences.md")

    def brought(question: str) -> set[str]:
        return {
            each["text"] for each in run_json("memory", "relevance", "--for", question)["memories"] if each["included"]
        }

    always = "The owner is Ada, and she gets seasick."  # It was there when the conversation began.
    assert always in brought("heights in metres?") & brought("anything")
    assert "Heights are given in metres." in brought("heights in metres?")
    assert "Heights are given in metres." not in brought("anything")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One.\nStill one.\n\nTwo.", ["One. Still one.", "Two."]),
        ("- one\n- two\n  goes on\n* three\n1. four\n2) five", ["one", "two goes on", "three", "four", "five"]),
        ("- [ ] to do\n- [x] done", ["to do", "done"]),
        ("# Title\nUnder it.\n## Part\n- item\n### Deeper ##\ntext", ["Under it.", "Part: item", "Deeper: text"]),
        ("Before.\n```\ncode\n- not an item\n```\nAfter.", ["Before.", "After."]),
        ("~~~\n```\n~~~\nAfter.", ["After."]),
        ("| a | b |\n|---|---|\nText.", ["Text."]),
        ("---\nname: x\n---\nText.", ["Text."]),
        ("same\n\nsame", ["same"]),
        ("a\r\nb\r\n\r\nc", ["a b", "c"]),
    ],
)
def test_statements_are_items_and_paragraphs(text: str, expected: list[str]):
    assert split_statements(text) == expected


@given(strategies.text())
def test_any_text_has_statements_and_none_is_empty_or_twice_there(text: str):
    found = split_statements(text)
    assert all(each.strip() for each in found)
    assert len(set(found)) == len(found)


# config


def test_a_setting_is_changed_where_it_stands_and_the_rest_of_the_file_stays(home: CliHome):
    before = read_lines(home.settings)
    assert run_json("config", "set", "context_limit", "2400")["value"] == 2400
    after = read_lines(home.settings)
    assert [line for line in after if line not in before] == ["context_limit = 2400"]
    assert after.index("context_limit = 2400") == before.index("context_limit = 1600")
    assert run_json("config", "list", "context_limit") == {
        "name": "context_limit",
        "value": 2400,
        "origin": str(home.settings),
    }


def test_in_a_commented_file_the_value_takes_its_comments_place(home: CliHome):
    home.settings.write_text(render_settings_template({"model": "gpt-4o"}))
    before = read_lines(home.settings)
    run_json("config", "set", "context_threshold", "0.8")
    run_json("config", "set", "shares", '{"memory": 0.25}')
    after = read_lines(home.settings)
    assert [line for line in after if line not in before] == ["context_threshold = 0.8", "shares = { memory = 0.25 }"]
    assert len(after) == len(before)
    assert run_json("config", "list", "shares")["value"] == {"memory": 0.25}


def test_a_setting_is_taken_out_again(home: CliHome):
    run_json("config", "set", "context_limit", "--unset")
    assert run_json("config", "list", "context_limit")["origin"] == "default"
    assert "# The user's own settings." in home.settings.read_text()


def test_a_projects_file_goes_before_the_users(home: CliHome):
    run_json("config", "set", "strategy", "discard", "--project")
    assert run_json("config", "list", "strategy")["origin"] == str(home.project / "quire.toml")
    assert 'strategy = "summarize"' in home.settings.read_text()


def test_a_file_is_made_where_there_is_none(home: CliHome):
    home.settings.unlink()
    run_json("config", "set", "model", 'odd "name"')
    assert run_json("config", "list", "model")["value"] == 'odd "name"'


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "no_such"], 3),
        (["set", "no_such", "1"], 3),
        (["set", "context_limit", "many"], 1),
        (["set", "context_threshold", "2"], 1),
        (["set", "strategy", "nonsense"], 1),
        (["set", "context_limit"], 2),
        (["set", "context_limit", "1", "--unset"], 2),
        (["list", "--set", "nonsense"], 1),
    ],
)
def test_what_cannot_be_set_leaves_the_file_alone(home: CliHome, words: list[str], code: int):
    before = home.settings.read_text()
    failed = invoke_cli("config", *words)
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert failed.stderr
    assert home.settings.read_text() == before


def test_a_broken_file_is_named_and_left_alone(home: CliHome):
    home.settings.write_text("strategy = [broken")
    failed = invoke_cli("config", "set", "model", "gpt-4o")
    assert failed.exit_code == 1
    assert "not valid TOML" in failed.stderr
    assert home.settings.read_text() == "strategy = [broken"


def test_one_is_told_when_the_environment_goes_before_the_file(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUIRE_MODEL", "gpt-4.1")
    assert "QUIRE_MODEL" in invoke_cli("config", "set", "model", "gpt-4o").stderr
    assert run_json("config", "list", "model") == {"name": "model", "value": "gpt-4.1", "origin": "QUIRE_MODEL"}


def test_passwords_are_not_shown_in_lists(home: CliHome):
    url = "postgresql://ada:hunter2@db.example/log"
    assert "hunter2" not in invoke_cli("config", "list", "--set", f"database_url={url}", "--json").stdout
    assert invoke_cli("config", "list", "database_url", "--set", f"database_url={url}").stdout == f"{url}\n"


values = strategies.one_of(
    strategies.text(), strategies.integers(-(2**62), 2**62), strategies.booleans(), strategies.floats(0, 1)
)
names = strategies.sampled_from(["model", "strategy", "vault", "agent"])


@given(
    present=strategies.dictionaries(names, values),
    name=names,
    value=values,
    comments=strategies.lists(strategies.sampled_from(["# a note", "", "#model = 1 # old", "# vault ="]), max_size=4),
    table=strategies.sampled_from([None, "settings"]),
)
def test_a_changed_file_says_the_new_value_and_all_that_it_said(
    present: dict[str, Any], name: str, value: Any, comments: list[str], table: str | None
):
    head = f"[{table}]\n" if table else ""
    said = "".join(f"{key} = {to_toml(each)}\n" for key, each in present.items())
    text = "\n".join(comments) + "\n" + head + said
    new = replace_value(text, name, value, table=table)
    read = tomllib.loads(new)
    assert (read[table] if table else read) == {**present, name: value}
    remaining = [line for line in comments if name not in line]
    assert [line for line in new.splitlines() if line in remaining and line] == [line for line in remaining if line]
    assert name not in tomllib.loads(replace_value(new, name, None, table=table)).get(table or name, {})


# agents


def test_an_agents_setting_is_changed_in_its_file_alone(home: CliHome):
    before = read_lines(home.agent)
    run_json("agent", "config", "sailor", "context_threshold", "0.5")
    added = [line for line in read_lines(home.agent) if line not in before]
    assert added == ["context_threshold = 0.5"]
    assert run_json("agent", "show", "sailor")["settings"] == {"recent_messages_to_keep": 2, "context_threshold": 0.5}
    run_json("agent", "config", "sailor", "context_threshold", "--unset")
    assert run_json("agent", "show", "sailor")["settings"] == {"recent_messages_to_keep": 2}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["config", "sailor", "context_threshold", "7"], 1),
        (["config", "sailor", "no_such", "7"], 1),
        (["config", "nobody", "strategy", "discard"], 3),
        (["config", "sailor", "strategy"], 2),
        (["show", "nobody"], 3),
    ],
)
def test_what_cannot_be_done_to_an_agent_changes_no_file(home: CliHome, words: list[str], code: int):
    before = home.agent.read_text()
    failed = invoke_cli("agent", *words)
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert home.agent.read_text() == before


def test_a_new_agent_is_listed_configured_and_used(home: CliHome):
    file = home.agent.parents[1] / "pilot.toml"
    file.write_text('name = "pilot"\n\n[settings]\n# strategy = "hybrid"\n')
    assert [each["name"] for each in run_json("agent", "show")["agents"]] == ["pilot", "sailor"]
    before = read_lines(Path(file))
    run_json("agent", "config", "pilot", "strategy", "discard")
    assert [line for line in read_lines(Path(file)) if line not in before] == ['strategy = "discard"']
    assert len(read_lines(Path(file))) == len(before)
    run_json("config", "set", "agent", str(file))
    assert run_json("context", "show")["manifest"]["policy"]["strategy"] == "discard"


def test_an_agent_that_cannot_be_read_is_listed_with_its_problem(home: CliHome):
    home.agent.write_text("nonsense = 1\n")
    [row] = run_json("agent", "show")["agents"]
    assert "nonsense" in row["problem"]


def test_keys_of_servers_are_not_shown(home: CliHome):
    server = '[servers.files]\ncommand = "files"\nenv = { TOKEN = "geheim" }\n'
    home.agent.write_text(f"{home.agent.read_text()}\n{server}")
    for outcome in (invoke_cli("agent", "show", "sailor"), invoke_cli("agent", "show", "sailor", "--json")):
        assert "files" in outcome.stdout
        assert "geheim" not in outcome.stdout


# conversations


def test_a_purge_asks_for_confirmation_and_does_nothing_without_a_terminal(home: CliHome):
    refused = invoke_cli("conversation", "purge", TIDES_ID)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    assert not any(each["purged"] for each in run_json("context", "show", "--messages")["entries"])


def test_what_is_purged_is_gone_from_the_file_and_the_chain_still_verifies(home: CliHome):
    secret = b"half a metre to what"
    assert secret in home.database.read_bytes()
    run_json("conversation", "purge", TIDES_ID, "--yes")
    assert secret not in home.database.read_bytes()
    assert all(
        each["purged"]
        for each in run_json("context", "show", "--messages", TIDES_ID)["entries"]
        if each["kind"] == "message"
    )
    assert run_json("conversation", "verify", TIDES_ID) == {
        "conversations": [TIDES_ID],
        "faults": [],
        "notes": [],
    }
    # What was purged whole is listed no more.
    assert run_json("conversation", "verify", "--all")["faults"] == []


def test_an_entry_that_was_altered_is_named(home: CliHome):
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("UPDATE quire_entries SET body = replace(body, 'spring', 'neap') WHERE seq = 3")
        connection.commit()
    found = invoke_cli("conversation", "verify", "--json")
    assert found.exit_code == 1
    [fault] = json.loads(found.stdout)["faults"]
    assert (fault["conversation"], fault["seq"]) == (TIDES_ID, 3)
    assert invoke_cli("conversation", "verify").exit_code == 1
    assert invoke_cli("conversation", "verify", GREETING_ID).exit_code == 0


def test_a_fork_shares_what_came_before_it(home: CliHome):
    made = run_json("conversation", "fork", "3")
    forked = run_json("context", "show", "--messages", "--branch", str(made["number"]), "--first", "1")
    main = run_json("context", "show", "--messages", "--first", "1")
    assert forked["entries"] == main["entries"][:3]
    assert (made["fork_seq"], made["parent"], forked["state"]["active_compaction"]) == (3, 0, None)
    assert main["state"]["active_compaction"]["covers"]["last"] > 3
    assert invoke_cli("conversation", "fork", "99").exit_code == 3


def test_a_title_is_changed(home: CliHome):
    run_json("conversation", "edit", "--title", "Hello", GREETING_ID)
    assert [each["title"] for each in run_json("conversation", "list")["conversations"]] == ["Tides", "Hello"]


def test_tags_are_replaced_listed_and_in_a_transcript(home: CliHome):
    assert run_json("conversation", "edit", "--tags", "Water, release,water", GREETING_ID)["tags"] == [
        "water",
        "release",
    ]
    listed = run_json("conversation", "list", "--tag", "water")["conversations"]
    assert [(each["id"], each["tags"]) for each in listed] == [(GREETING_ID, ["water", "release"])]
    assert "[water] [release]" in invoke_cli("conversation", "list").output
    assert "Tags: water, release" in invoke_cli("export", GREETING_ID, "--format", "markdown").output
    transcript = invoke_cli("export", GREETING_ID, "--format", "json").stdout
    assert json.loads(transcript)["tags"] == ["water", "release"]
    assert run_json("conversation", "edit", "--tags", "", GREETING_ID)["tags"] == []
    assert "Tags" not in invoke_cli("export", GREETING_ID, "--format", "markdown").output


async def test_side_calls_of_an_agent_are_listed_only_on_request(home: CliHome):
    home.clock.now = NEXT_DAY
    async with SqlStore.open(home.url) as store:
        for purpose, text in (("side", "Tides"), ("subagent", "Count the boats.")):
            origin = ConversationOrigin(client="claude-code", session="s", purpose=purpose)
            await store.create_conversation(purpose, origin=origin)
            await store.append(purpose, Message.user(text))
    listed = await asyncio.to_thread(run_json, "conversation", "list")
    assert [each["id"] for each in listed["conversations"]] == [TIDES_ID, GREETING_ID]
    listed = await asyncio.to_thread(run_json, "conversation", "list", "--all")
    assert {each["id"] for each in listed["conversations"]} == {"side", "subagent", TIDES_ID, GREETING_ID}
    # A call for a title has the same first words as the conversation that it names.
    for name in ([], ["Tides"]):
        shown = await asyncio.to_thread(run_json, "context", "show", "--messages", *name)
        assert shown["conversation"] == TIDES_ID
    shown = await asyncio.to_thread(run_json, "context", "show", "--messages", "sub")
    assert shown["conversation"] == "subagent"


def test_a_transcript_can_be_read_in_pieces(home: CliHome):
    first = invoke_cli("context", "show", "--messages", "--first", "1", "--limit", "3").stdout
    assert "continue with --first 4" in first
    assert "continue" not in invoke_cli("context", "show", "--messages", "--first", "4").stdout
    newest = run_json("context", "show", "--messages", "--limit", "2")["entries"]
    assert [each["seq"] for each in newest] == [11, 12]


def test_without_a_conversation_the_message_says_how_to_start_one(home: CliHome):
    home.database.unlink()
    assert run_json("conversation", "list") == {"conversations": []}
    assert "`quire run claude`" in invoke_cli("conversation", "list").stdout
    failed = invoke_cli("context", "show")
    assert (failed.exit_code, failed.stdout) == (3, "")
    assert "`quire run claude`" in failed.stderr
