"""The programs in examples/, each with an empty folder, against a provider on loopback."""

import io
import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import httpx2
import pytest

from infra.llama import LocalModelAddress
from infra.postgres import find_free_port
from infra.scripted_provider import ProviderRequest, ScriptedProvider, run_scripted_provider
from infra.scripted_provider_formats import ScriptedCall, ScriptedReply

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = str(Path(sys.executable).with_name("quire"))
TIDE_ANSWER = "At 06:12 and 18:40."
pytestmark = pytest.mark.slow


def choose_reply(request: ProviderRequest) -> ScriptedReply:
    """Calls the first tool that the question needs, then answers."""
    results, names = len(request.newest_results), request.tool_names
    if "read_tide_table" in names:
        return ScriptedReply(TIDE_ANSWER) if results else call("read_tide_table", harbour="Gullhaven")
    if "send_mail" in names:
        if not results:
            return call("get_weather", city="Ghent")
        if "Rain" in request.newest_results[-1]:
            return call("send_mail", to="ann@example.com", text="Take an umbrella.")
    return ScriptedReply("A short answer about the relay port.")


def call(name: str, **arguments: str) -> ScriptedReply:
    return ScriptedReply(calls=(ScriptedCall(name, arguments),))


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with run_scripted_provider(choose_reply) as running:
        yield running


def make_environment(folder: Path, openai_url: str, anthropic_url: str = "http://127.0.0.1:9") -> dict[str, str]:
    return os.environ | {
        "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": openai_url,
        "ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": anthropic_url, "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }  # fmt: skip


def run_example(name: str, folder: Path, environment: dict[str, str]) -> str:
    """What the program prints. It runs in this process, which has loaded what takes most of its time."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        for variable, value in environment.items():
            patch.setenv(variable, value)
        patch.chdir(folder)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


def test_every_example_is_listed_and_run() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert len(names) == 10
    assert names == set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text()))
    assert names == set(re.findall(r'"(\w+\.py)"', Path(__file__).read_text())) | {"fastapi_chat.py"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anthropic_chat.py", "A short answer"),
        ("agent_with_tools.py", "answered after 3 steps"),
        ("notes_in_a_vault.py", "data/levels.csv"),
        ("langchain_agent.py", "40 messages in the state"),
        ("openai_agents_agent.py", "40 items in the session"),
        ("pydantic_ai_agent.py", "40 messages in the conversation"),
    ],
)
def test_runs_and_fits(name: str, expected: str, tmp_path: Path, provider: ScriptedProvider) -> None:
    printed = run_example(name, tmp_path, make_environment(tmp_path, provider.openai_url, provider.url))
    assert expected in printed
    assert provider.requests
    assert (tmp_path / "examples.db").exists()


def test_continues_its_conversation(tmp_path: Path, provider: ScriptedProvider) -> None:
    environment = make_environment(tmp_path, provider.openai_url)
    assert "4 messages stored" in run_example("openai_chat.py", tmp_path, environment)
    assert "8 messages stored" in run_example("openai_chat.py", tmp_path, environment)


@pytest.mark.nightly
@pytest.mark.real_model
def test_local_model_compacts(tmp_path: Path, local_model: LocalModelAddress) -> None:
    printed = run_example("llama_cpp_chat.py", tmp_path, make_environment(tmp_path, local_model.url))
    tokens = [int(each) for each in re.findall(r"(\d+) tokens sent", printed)]
    assert len(tokens) == 12
    assert max(tokens) <= 512 - 64
    assert "24 messages stored" in printed
    assert "0 compactions" not in printed


def test_chat_application(tmp_path: Path, provider: ScriptedProvider) -> None:
    port = find_free_port()
    arguments = [sys.executable, "-m", "uvicorn", "fastapi_chat:app", "--app-dir", str(EXAMPLES), "--port", str(port)]
    environment = make_environment(tmp_path, provider.openai_url)
    with subprocess.Popen(arguments, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/openapi.json")
            lines = httpx2.post(f"{url}/chats/tuesday", json={"text": "Hello"}, timeout=60).text.split("\n\n")
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
            assert "".join(event.get("text", "") for event in events) == "A short answer about the relay port."
            assert events[-1] == {"end": "answered"}
            stored = httpx2.get(f"{url}/chats/tuesday", timeout=60).json()
            assert [each["role"] for each in stored] == ["user", "assistant"]
        finally:
            process.terminate()


def test_team_server(tmp_path: Path, provider: ScriptedProvider) -> None:
    port = find_free_port()
    environment = make_environment(tmp_path, provider.openai_url) | {
        "QUIRE_DATABASE_URL": f"sqlite:///{tmp_path}/team.db", "QUIRE_BASE_URL": provider.openai_url,
    }  # fmt: skip
    created = subprocess.run(
        [PROGRAM, "key", "create", "laptop", "--scope", "read", "--scope", "chat", "--json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    environment |= {"QUIRE_KEY": json.loads(created.stdout)["key"], "QUIRE_URL": f"http://127.0.0.1:{port}"}
    arguments = [PROGRAM, "serve", "--keys", "--port", str(port)]
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz")
            run_example("team_server.py", tmp_path, environment)
            printed = run_example("team_server.py", tmp_path, environment)
        finally:
            process.terminate()
    assert "A short answer" in printed
    assert "Which port did we choose" in printed


def wait_for(url: str) -> None:
    while True:
        try:
            if httpx2.get(url, timeout=5).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
