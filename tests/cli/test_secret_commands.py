"""`quire conversation secrets`, `share` and `purge --value-from`: planted secrets are listed, masked and erased."""

import asyncio
import json
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest
from cli_fixtures import CliHome, invoke_cli

from infra.sizes import IS_FULL_SIZE
from quire.cli.engine_setup import load_cli_settings, resolve_database_url
from quire.model import FilePart, Message, ThinkingPart, ToolCallPart
from quire.store import SqlStore
from secret_samples import SecretSample, list_samples

SAMPLES = [sample for seed in range(2) for sample in list_samples(seed)]


def get_database_url() -> str:
    return resolve_database_url(load_cli_settings().settings)


def plant(number: int, sample: SecretSample) -> Message:
    """A message with the secret, each time in another kind of part."""
    match number % 3:
        case 0:
            return Message.user(f"Use this:\n{sample.text}\nThanks.")
        case 1:
            arguments = json.dumps({"command": f"cat .env\n{sample.text}\n"})
            return Message(role="assistant", parts=(ToolCallPart(id=str(number), name="bash", arguments=arguments),))
        case _:
            return Message.tool(str(number), json.dumps({"stdout": f"line\n{sample.text}\n"}))


@pytest.fixture
def planted(home: CliHome) -> list[SecretSample]:
    """A hundred secrets of more than twenty formats, in two conversations."""

    async def write() -> None:
        async with SqlStore.open(get_database_url()) as store:
            for name, samples in (("first", SAMPLES[::2]), ("second", SAMPLES[1::2])):
                await store.create_conversation(name, title=f"The {name}")
                await store.append(name, Message.user("Nothing secret."))
                await store.append(name, *(plant(number, sample) for number, sample in enumerate(samples)))
            blob = await store.put_blob(SAMPLES[0].text.encode(), media_type="text/plain")
            await store.append("second", Message(role="user", parts=(FilePart(blob=blob, name="key.txt"),)))
            await store.append("second", Message(role="assistant", parts=(ThinkingPart(text="I think."),)))

    asyncio.run(write())
    return SAMPLES


def test_a_hundred_secrets_are_listed_without_being_printed(planted: list[SecretSample]):
    assert len(planted) >= 100
    assert len({sample.kind for sample in planted}) >= 20
    outcome = invoke_cli("conversation", "secrets", "--all", "--json")
    found = json.loads(outcome.stdout)
    listed = {(each["conversation"], each["seq"], each["kind"]) for each in found["secrets"]}
    for name, samples in (("first", planted[::2]), ("second", planted[1::2])):
        missing = [sample for seq, sample in enumerate(samples, 2) if (name, seq, sample.kind) not in listed]
        assert missing == []
        assert (name, 1) not in {place[:2] for place in listed}
    assert ("second", len(planted[1::2]) + 2, planted[0].kind) in listed
    table = invoke_cli("conversation", "secrets", "first", "second").stdout
    for output in (outcome.stdout, table):
        assert not any(sample.value in output for sample in planted)


@pytest.mark.parametrize("name", ["first.md", "first.json"])
def test_a_shared_transcript_has_no_secret(planted: list[SecretSample], tmp_path: Path, name: str):
    path = tmp_path / name
    document = json.loads(invoke_cli("export", "first", "-o", str(path), "--json").stdout)
    text = path.read_text()
    samples = planted[::2]
    assert not any(sample.value in text for sample in samples)
    assert not any(line in text for sample in samples for line in sample.value.split("\n") if len(line) > 30)
    assert document["masked_secrets"] >= len(samples)
    assert "Nothing secret." in text
    assert "[masked GitHub token]" in text
    if name.endswith(".json"):
        shared = json.loads(text)
        assert shared["masked"] is True
        assert shared["masked_secrets"] == document["masked_secrets"]
        assert len(shared["messages"]) == len(samples) + 1
    else:
        assert "Secrets of known formats are masked" in text
    again = invoke_cli("export", "first", "-o", str(path))
    assert again.exit_code == 1
    assert "already exists" in again.output
    assert invoke_cli("import", str(path), "--as", "copy").exit_code == 1


def test_thinking_and_attachments_are_not_shared(planted: list[SecretSample]):
    outcome = invoke_cli("export", "second", "--format", "markdown")
    assert "I think." not in outcome.stdout
    assert "[file key.txt]" in outcome.stdout
    assert planted[0].value not in outcome.stdout


@pytest.mark.slow
def test_each_secret_can_be_erased_by_value(planted: list[SecretSample], tmp_path: Path):
    path = Path(get_database_url().removeprefix("sqlite:///"))
    purged = planted if IS_FULL_SIZE else planted[::40]
    for sample in purged:
        value_file = tmp_path / "value"
        value_file.write_text(sample.value)
        outcome = invoke_cli("conversation", "purge", "--value-from", str(value_file), "--yes", "--json")
        assert outcome.exit_code == 0, outcome.output
        assert json.loads(outcome.stdout)["remaining"] == []
    with closing(connect(path)) as connection:
        dump = "\n".join(connection.iterdump())
    files = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.name.startswith(path.name))
    assert not any(sample.value in dump or sample.value.encode() in files for sample in purged)
    remaining = json.loads(invoke_cli("conversation", "secrets", "--all", "--json").stdout)["secrets"]
    assert bool(remaining) is not IS_FULL_SIZE
    assert invoke_cli("conversation", "verify", "--all").exit_code == 0
    assert "Nothing secret." in invoke_cli("context", "show", "--messages", "first", "--first", "1").stdout


def test_the_value_is_read_from_standard_input_and_never_an_argument(home: CliHome):
    assert invoke_cli("conversation", "purge", "ghp_0123456789abcdef", "--value-from", "-", "--yes").exit_code == 2
    outcome = invoke_cli("conversation", "purge", "--value-from", "-", input="a-value-nobody-wrote\n")
    assert "pass --yes" in outcome.output
    assert (
        invoke_cli("conversation", "purge", "--value-from", "-", "--yes", input="a-value-nobody-wrote\n").exit_code == 0
    )
    assert invoke_cli("conversation", "purge", "--value-from", "-", "--yes", input="short\n").exit_code == 1
    assert invoke_cli("conversation", "purge", "--yes", "--value-from", "missing.txt").exit_code == 1
