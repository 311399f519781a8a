"""`quire models`: each fact about a model with its source."""

import json
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli

DOCS_PAGE = Path(__file__).parents[2] / "docs/models.md"
TABLE = '\n[models."gpt-4o"]\nwindow = 64000\n\n[models."my-*"]\ninput_price = 0.5\noutput_price = 1\n'


@pytest.fixture
def home(home: CliHome) -> CliHome:
    home.settings.write_text(home.settings.read_text().replace("context_limit = 1600\n", "") + TABLE)
    return home


def test_it_prints_what_the_docs_show(home: CliHome):
    outcome = invoke_cli("models", "gpt-4o")
    assert outcome.exit_code == 0, outcome.output
    shown = DOCS_PAGE.read_text().partition("$ quire models gpt-4o\n")[2].partition("```")[0]
    assert [line.rstrip() for line in outcome.stdout.splitlines()] == shown.splitlines()


def test_its_json_has_each_value_and_its_source(home: CliHome):
    outcome = invoke_cli("models", "my-own", "--set", "context_limit=9000", "--json")
    document = json.loads(outcome.stdout)
    assert (document["model"], document["served_model"], document["base_url"]) == ("my-own", "my-own", None)
    assert document["window"] == 9_000
    facts = {fact["name"]: (fact["value"], fact["source"]) for fact in document["facts"]}
    assert facts == {
        "window": (None, "unknown"),
        "output_limit": (None, "unknown"),
        "tokenizer": ("estimate", "unknown"),
        "wire_format": ("chat", "the model's name"),
        "input_price": (0.5, 'models."my-*"'),
        "cache_read_price": (None, "unknown"),
        "output_price": (1.0, 'models."my-*"'),
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["claude-sonnet-4-5"], "context window of 200,000 tokens."),
        (["my-own"], "context window that is not known, so nothing is compacted."),
        (["my-own", "--set", "context_limit=9000"], "context window of 9,000 tokens (context_limit)."),
        (["gpt-4", "--set", "context_limit=9000"], "context window of 8,192 tokens."),
        ([], "context window of 64,000 tokens."),
    ],
)
def test_it_says_which_window_requests_use(home: CliHome, arguments: list[str], text: str):
    outcome = invoke_cli("models", *arguments)
    assert outcome.stdout.splitlines()[-1] == f"Requests use a {text}"


def test_a_tokenizer_that_cannot_be_used_says_so(home: CliHome):
    outcome = invoke_cli("models", "--set", 'models={"*": {"tokenizer": "nope"}}')
    assert "nope (cannot be used; estimate)" in outcome.stdout


def test_a_wrong_field_is_named(home: CliHome):
    home.settings.write_text(home.settings.read_text() + "windw = 1\n")
    outcome = invoke_cli("models")
    assert outcome.exit_code == 1
    assert "models.my-*.windw" in outcome.stderr
    assert "did you mean 'window'?" in outcome.stderr
