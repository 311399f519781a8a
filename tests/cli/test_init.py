"""`quire init`: detection, the choice of a model, the written file and the output."""

import json
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest
from cli_fixtures import invoke_cli
from scripted_server import ScriptedServer, scripted_server

from quire.cli import init as module
from quire.cli.init import (
    DEFAULT_SERVER_ADDRESSES,
    PROVIDER_KEYS,
    LocalModelServer,
    ProviderKey,
    ServerAddress,
    choose_model,
    find_local_servers,
    find_provider_keys,
    write_initial_settings,
)
from quire.errors import InvalidRequest, ModelRequestRejected
from quire.llm import get_model
from quire.schemas.setup import InitSchema
from quire.settings import Settings
from quire.settings.sources import load_settings, read_settings_file

OPENAI = ProviderKey("OPENAI_API_KEY", "OpenAI", "openai:gpt-4o")
OLLAMA = LocalModelServer(ServerAddress("Ollama", "http://127.0.0.1:11434/v1"), ("llama3.2", "qwen3"), 4_096)


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, no servers, and a home of its own."""
    for key in PROVIDER_KEYS:
        monkeypatch.delenv(key.variable, raising=False)
    for name in ("XDG_CONFIG_HOME", "QUIRE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(
        module, "write_initial_settings", lambda *args, **more: write_initial_settings(*args, addresses=(), **more)
    )
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server("Hello.", models=("text-embed-3", "miller-1", "miller-2")) as server:
        yield server


def invoke_init(*words: str) -> tuple[int, str]:
    outcome = invoke_cli("init", *words)
    return outcome.exit_code, outcome.output


def find_free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return free.getsockname()[1]


def load_written_settings(path: Path) -> Settings:
    return load_settings([read_settings_file(path)]).settings


def test_a_key_in_the_environment_chooses_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-value")
    code, output = invoke_init()
    path = tmp_path / ".config/quire/quire.toml"
    assert code == 0
    assert f"Wrote {path}." in output
    assert "Model: anthropic:claude-sonnet-4-5 (ANTHROPIC_API_KEY is set in the environment)." in output
    assert load_written_settings(path).model == "anthropic:claude-sonnet-4-5"
    assert "secret-value" not in output + path.read_text()


def test_without_a_model_the_file_is_written_all_the_same(tmp_path: Path):
    code, output = invoke_init()
    assert code == 0
    assert "No model was found: no API key is set" in output
    assert "Without a model everything works except sending messages;" in output
    assert "Summaries:" not in output
    assert load_written_settings(tmp_path / ".config/quire/quire.toml") == Settings()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path):
    path = tmp_path / ".config/quire/quire.toml"
    path.parent.mkdir(parents=True)
    path.write_text('model = "mine"\n')
    code, output = invoke_init()
    assert code == 1
    assert "already exists; overwrite it with `quire init --force`" in output
    assert path.read_text() == 'model = "mine"\n'
    assert invoke_init("--force")[0] == 0
    assert "mine" not in path.read_text()


def test_the_folder_of_notes_is_kept_whole(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    assert invoke_init("--model", "gpt-4o", "--vault", "notes")[0] == 0
    assert load_written_settings(tmp_path / ".config/quire/quire.toml").vault == str(tmp_path / "notes")
    assert invoke_init("--force", "--vault", "nowhere")[0] == 1


def test_the_file_explains_every_setting_and_can_be_read(tmp_path: Path):
    invoke_init("--model", 'odd "name"')
    text = (tmp_path / ".config/quire/quire.toml").read_text()
    assert tomllib.loads(text) == {"model": 'odd "name"'}
    for name in Settings.model_fields:
        assert f"{name} =" in text


def test_a_server_is_asked_for_its_models(tmp_path: Path, server: ScriptedServer):
    server.window = 1_536
    code, output = invoke_init("--base-url", server.url)
    assert code == 0
    assert f"Model: miller-1 (a server answers at {server.url})." in output
    assert "Context window: 1,536 tokens" in output
    assert "Summaries: by miller-1 too; name another model with `summarizer`." in output
    assert f"quire init --force --base-url {server.url} --model miller-2" in output
    written = load_written_settings(tmp_path / ".config/quire/quire.toml")
    assert (written.model, written.base_url, written.context_limit) == ("miller-1", server.url, 1_536)


def test_a_server_that_does_not_answer_is_said_and_nothing_is_written(tmp_path: Path):
    code, output = invoke_init("--base-url", f"http://127.0.0.1:{find_free_port()}/v1")
    assert code == 1
    assert "No OpenAI-compatible server answers" in output
    assert not (tmp_path / ".config").exists()
    assert invoke_init("--base-url", f"http://127.0.0.1:{find_free_port()}/v1", "--model", "later")[0] == 0


def test_the_document_for_programs_fits_its_schema():
    code, output = invoke_init("--json")
    document = json.loads(output)
    jsonschema.validate(document, InitSchema.model_json_schema(mode="serialization"))
    assert (code, document["source"], document["model"]) == (0, "none", None)


def test_a_key_goes_before_a_server_and_the_server_is_named():
    chosen = choose_model([OPENAI], [OLLAMA])
    assert (chosen.source, chosen.settings) == ("key", {"model": "openai:gpt-4o"})
    assert choose_model([], [OLLAMA]).settings == {
        "model": "llama3.2", "base_url": "http://127.0.0.1:11434/v1", "context_limit": 4_096,
    }  # fmt: skip
    assert choose_model([OPENAI], [], model="other").settings == {"model": "other"}
    with pytest.raises(InvalidRequest):
        choose_model([], [], base_url="http://127.0.0.1:1/v1")


def test_what_else_was_found_is_named_with_its_command(tmp_path: Path, server: ScriptedServer):
    environ = {"OPENAI_API_KEY": "x", "GROQ_API_KEY": "y"}
    done = write_initial_settings(tmp_path / "q.toml", environ, addresses=[ServerAddress("vLLM", server.url)])
    assert done.model == "openai:gpt-4o"
    assert [each.name for each in done.alternatives] == ["Groq (GROQ_API_KEY)", "miller-1 (vLLM)", "miller-2 (vLLM)"]


def test_an_empty_key_is_none():
    assert find_provider_keys({"OPENAI_API_KEY": " ", "MISTRAL_API_KEY": "x"}) == [
        ProviderKey("MISTRAL_API_KEY", "Mistral", "mistral:mistral-large-latest")
    ]


def test_the_usual_places_are_on_this_machine_alone():
    assert [place.url for place in DEFAULT_SERVER_ADDRESSES] == [
        f"http://127.0.0.1:{port}/v1" for port in (11434, 1234, 8080, 8000)
    ]


def test_servers_that_hang_are_not_waited_for():
    with closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        began = time.monotonic()
        places = [ServerAddress("deaf", f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")] * 3
        assert find_local_servers(places, timeout=0.2) == []
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "answer",
    [b"", b"not http", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n[]", b"HTTP/1.1 200 OK\r\n\r\n{}",
     b'HTTP/1.1 200 OK\r\n\r\n{"data": 3}', b'HTTP/1.1 200 OK\r\n\r\n{"data": [3, {"id": 4}, {"id": ""}]}',
     b'HTTP/1.1 404 No\r\n\r\n{"data": [{"id": "x"}]}', b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_list_of_models_is_no_server(answer: bytes):
    from threading import Thread

    with closing(socket.create_server(("127.0.0.1", 0))) as odd:

        def speak() -> None:
            connection, _ = odd.accept()
            connection.recv(4_096)
            connection.sendall(answer)
            connection.close()

        Thread(target=speak, daemon=True).start()
        assert find_local_servers([ServerAddress("odd", f"http://127.0.0.1:{odd.getsockname()[1]}/v1")]) == []


def test_a_window_that_the_list_tells_is_taken(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch):
    def answer(url: str, seconds: float) -> object:
        return {"data": [{"id": "m", "max_model_len": 32_768}]} if url.endswith("/models") else None

    monkeypatch.setattr("quire.cli.local_models._fetch_json", answer)
    assert find_local_servers([ServerAddress("vLLM", server.url)])[0].window == 32_768


@pytest.mark.parametrize("key", PROVIDER_KEYS, ids=lambda key: key.variable)
def test_every_model_that_is_chosen_is_one_that_can_be_asked(key: ProviderKey, monkeypatch: pytest.MonkeyPatch):
    """With its key set, the model is there, or the error names the package that its provider needs."""
    monkeypatch.setenv(key.variable, "secret")
    assert _name_model(key.model) in (key.model, "a package is missing")


def _name_model(model: str) -> str:
    try:
        return get_model(model).name
    except ModelRequestRejected as error:
        return "a package is missing" if "needs a package that is not installed" in str(error) else str(error)
