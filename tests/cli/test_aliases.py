"""Other names of settings and commands: dotted and camel-case setting names, `@agent`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json
from scripted_server import ScriptedServer, scripted_server

from quire.cli.ask import split_words
from quire.errors import InvalidConfiguration, InvalidRequest
from quire.settings import Settings
from quire.settings.sources import SETTING_ALIASES, SettingsLayer, load_settings, parse_options, read_settings_file


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server("Aye.") as server:
        yield server


def test_every_alias_is_one_of_a_setting() -> None:
    assert set(SETTING_ALIASES.values()) <= set(Settings.model_fields)
    assert not set(SETTING_ALIASES) & set(Settings.model_fields)


def test_aliases_hold_in_files_options_and_commands(home: CliHome, tmp_path: Path) -> None:
    file = tmp_path / "seed.toml"
    file.write_text('maxPromptTokens = 8192\n[context]\nstrategy = "discard"\nmemory_integration = false\n')
    loaded = load_settings([read_settings_file(file), parse_options(["context.max_tokens=4096"])])
    assert (loaded.settings.strategy, loaded.settings.memory_integration) == ("discard", False)
    assert loaded.settings.context_limit == 4_096
    assert loaded.origins["strategy"] == str(file)
    run_json("config", "set", "context.strategy", "hybrid")
    run_json("config", "set", "context.max_tokens", "8192")
    assert run_json("config", "list", "strategy")["value"] == "hybrid"
    assert run_json("config", "list", "context.max_tokens") | {"origin": ""} == {
        "name": "context_limit", "value": 8_192, "origin": "",
    }  # fmt: skip
    run_json("agent", "config", "sailor", "context.strategy", "summarize")
    assert run_json("agent", "show", "sailor")["settings"]["strategy"] == "summarize"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"strategy": "discard", "context": {"strategy": "hybrid"}},
            "sets 'strategy' twice, once as",
        ),
        ({"context": {"colour": 1}}, "'context.colour', which is not a setting"),
        ({"context": 1}, "'context', which is not a setting"),
    ],
)
def test_an_unknown_or_doubled_alias_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        load_settings([SettingsLayer("a file", values)])


def test_a_question_goes_to_the_agent_that_it_names(
    home: CliHome, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BASE_URL", server.url)
    monkeypatch.setenv("QUIRE_MODEL", "miller-1")
    (home.agent.parent.parent / "cook.toml").write_text('instructions = "You are a cook."\n')
    for words in (
        ("@cook", "What is for dinner?"),
        ("--show-context", "@cook", "What is for dinner?"),
        ("ask", "@cook", "What is for dinner?"),
    ):
        result = invoke_cli(*words)
        assert result.exit_code == 0, result.output
        assert result.stdout == "Aye.\n"
        assert "You are a cook." in server.requests[-1]["messages"][0]["content"]
        assert server.requests[-1]["messages"][-1]["content"] == "What is for dinner?"
    assert invoke_cli("@nobody", "Hello?").exit_code == 3


def test_a_question_that_begins_with_a_file_is_one(home: CliHome) -> None:
    assert split_words([]) == (None, None, None)
    assert split_words(["@notes.md is what?", "tides"]) == (None, "@notes.md is what?", "tides")
    assert split_words(["@sailor"]) == ("sailor", None, None)
    assert split_words(["@notes.md"]) == (None, "@notes.md", None)
    assert split_words(["@sailor", "Where?", "tides"]) == ("sailor", "Where?", "tides")
    with pytest.raises(InvalidRequest, match="in quotes"):
        split_words(["Where", "are", "we?"])
