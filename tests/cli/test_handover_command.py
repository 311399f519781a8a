"""`quire resume --print`: text for people and agents, JSON for programs, bounds and errors."""

from cli_fixtures import GREETING_ID, TIDES_ID, TURNS, CliHome, invoke_cli, run_json

from quire.model import Message
from quire.store import SqlStore

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3


def test_the_newest_conversation_is_handed_over(home: CliHome):
    result = invoke_cli("resume", "--print")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("# Hand-over: Tides\n")
    assert f"- First request: {TURNS[0][0]} [#" in result.stdout
    assert "## Last turns" in result.stdout
    assert "of at most 4,000 tokens, extracted." in result.stderr


def test_the_text_is_printed_as_it_is(home: CliHome):
    document = run_json("resume", "--print", TIDES_ID)
    assert max(map(len, document["text"].splitlines())) > 150
    assert invoke_cli("resume", "--print", TIDES_ID).stdout == f"{document['text']}\n"


def test_json_has_the_citations_and_stays_in_its_tokens(home: CliHome):
    document = run_json("resume", "--print", TIDES_ID, "--max-tokens", "300")
    assert document["conversation"] == TIDES_ID
    assert document["sources"]
    assert document["tokens"] <= document["max_tokens"] == 300
    assert document["model"] is None


async def test_secrets_are_masked(home: CliHome):
    async with SqlStore.open(home.url) as store:
        await store.append(GREETING_ID, Message.user(f"The token is {SECRET}"))
    from asyncio import to_thread

    masked = await to_thread(invoke_cli, "resume", "--print", GREETING_ID)
    assert SECRET not in masked.output
    assert "masked" in masked.stdout


def test_errors_say_what_to_do(home: CliHome):
    missing = invoke_cli("resume", "--print", "unknown")
    assert missing.exit_code == 3
    assert "quire conversation list" in missing.stderr
    assert invoke_cli("resume", "--print", "--max-tokens", "5").exit_code == 2
    assert invoke_cli("resume", "--print", "--branch", "9").exit_code == 3
