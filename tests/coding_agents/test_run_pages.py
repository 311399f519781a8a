"""The pages docs/run-*.md as written: their commands and settings with the real agents, from an empty home.

Every provider that a page names is a scripted one on loopback. A request must reach a provider that the settings of its
block name, with the credential that the page says, and no other; what goes to any other host ends at a proxy.
"""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from infra.real_agents import find_claude, find_codex, find_gemini, find_opencode
from infra.scripted_provider import ProviderRequest, ScriptedProvider, ScriptedReply, run_scripted_provider
from infra.sizes import IS_FULL_SIZE

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(?P<language>console|toml)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_SECONDS = 400
CANARY = "canary-credential-81c4"
LOCAL_URL, SERVER_URL = "http://127.0.0.1:11434/v1", "http://127.0.0.1:8300"
PROVIDER_URLS = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "chatgpt": "https://chatgpt.com/backend-api/codex",
    "google": "https://generativelanguage.googleapis.com",
    "local": LOCAL_URL,
}
BASE_URL_VARIABLES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
}
"""Where a program finds its own provider, and so does Quire if the settings name none."""


class Agent(NamedTuple):
    page: str
    binary: Path | None
    provider: str
    prompt: str
    """What makes a command without a question answer one, and end."""
    key_variable: str
    login: dict[str, str]
    """Environment variables with a login of the agent's own."""
    own_hosts: frozenset[str] = frozenset()
    """What the agent itself calls, whatever its model, as the page says."""


AGENTS = {
    "claude": Agent(
        "run-claude-code.md",
        find_claude(),
        "anthropic",
        '-p "Say ahoy"',
        "ANTHROPIC_API_KEY",
        {"CLAUDE_CODE_OAUTH_TOKEN": CANARY},
    ),
    "codex": Agent(
        "run-codex.md",
        find_codex(),
        "openai",
        'exec "Say ahoy"',
        "OPENAI_API_KEY",
        {},
        frozenset({"chatgpt.com", "ab.chatgpt.com", "github.com", "api.github.com"}),
    ),
    "gemini": Agent(
        "run-gemini-cli.md",
        find_gemini(),
        "google",
        '-p "Say ahoy"',
        "GEMINI_API_KEY",
        {},
        frozenset({"play.googleapis.com"}),
    ),
    "opencode": Agent(
        "run.md",
        find_opencode(),
        "openai",
        'run -m openai/gpt-5 "Say ahoy"',
        "OPENAI_API_KEY",
        {},
        frozenset({"registry.npmjs.org"}),
    ),
}


class Block(NamedTuple):
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def read_blocks(agent: Agent) -> list[Block]:
    text = (DOCS / agent.page).read_text()
    return [Block(found["language"], found["text"]) for found in BLOCK.finditer(text)]


class _ProxyHandler(BaseHTTPRequestHandler):
    hosts: list[str]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def refuse(self) -> None:
        self.hosts.append(self.path.removesuffix(":443"))
        self.send_error(502)

    do_CONNECT = do_GET = do_POST = do_HEAD = refuse  # noqa: N815 (names of the standard library)


@dataclass
class World:
    """An empty home, one stand-in for each provider, and a proxy for all other hosts."""

    folder: Path
    providers: dict[str, ScriptedProvider]
    proxy_url: str
    other_hosts: list[str]
    server_url: str = SERVER_URL
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def localize(self, text: str) -> str:
        """The text of a page with the stand-ins in place of the providers."""
        for name, url in PROVIDER_URLS.items():
            stand_in = self.providers[name]
            text = text.replace(url, stand_in.url if name in ("anthropic", "google") else stand_in.openai_url)
        return text.replace(SERVER_URL, self.server_url)

    def write_settings(self, toml: str) -> None:
        path = self.folder / ".config/quire/quire.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.localize(toml))

    def make_environment(self) -> dict[str, str]:
        binaries = [each.binary.parent for each in AGENTS.values() if each.binary is not None]
        return {
            "HOME": str(self.folder),
            "PATH": ":".join([*map(str, binaries), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), self.proxy_url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            **self.variables,
        }

    def run(self, *commands: str, stdin: str = "") -> str:
        """Runs the commands in one shell; returns their output."""
        completed = subprocess.run(
            ["bash", "-ec", self.localize("\n".join(commands))],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.make_environment(),
            timeout=TIMEOUT_SECONDS,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == 0, output
        return output

    @contextmanager
    def serve(self) -> Iterator[None]:
        command = ["quire", "serve", "--port", "0"]
        environment = self.make_environment()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.folder, env=environment) as process:
            assert process.stdout is not None
            try:
                found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
                assert found is not None
                self.server_url = found[0]
                yield
            finally:
                process.terminate()

    def take_hosts(self, *, credential: str | None) -> set[str]:
        """The providers that got requests since the last call, each with this credential and never with Quire's."""
        found = {name for name, each in self.providers.items() if each.requests}
        for name in found:
            for request in self.providers[name].requests:
                sent = [request.headers.get(each, "") for each in ("authorization", "x-api-key", "x-goog-api-key")]
                assert [each.removeprefix("Bearer ") for each in sent if each] == [credential] * (
                    credential is not None
                )
                assert "quire_" not in " ".join(request.headers.values())
            self.providers[name].received.clear()
        return found


def answer(request: ProviderRequest) -> ScriptedReply:
    """Gemini CLI has a small model rate the question, until the reply is JSON."""
    is_rated = b"complexity_score" in request.raw
    return ScriptedReply('{"complexity_reasoning": "short", "complexity_score": 5}' if is_rated else "Ahoy.")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    hosts: list[str] = []
    handler = type("Handler", (_ProxyHandler,), {"hosts": hosts})
    with ExitStack() as stack:
        providers = {name: stack.enter_context(run_scripted_provider(answer)) for name in PROVIDER_URLS}
        providers["local"].listed_window = 32_768
        proxy = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=proxy.serve_forever, daemon=True).start()
        stack.callback(proxy.shutdown)
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
        yield World(tmp_path, providers, f"http://127.0.0.1:{proxy.server_port}", hosts)


def complete(command: str, name: str, agent: Agent) -> str:
    """The command with a question, if it would open the agent's screen."""
    words = shlex.split(command)
    return command if words[-1] != name else f"{command} {agent.prompt}"


@pytest.mark.parametrize("name", AGENTS if IS_FULL_SIZE else ["claude"])
def test_the_page_of_an_agent_runs_as_written(world: World, name: str):
    agent = AGENTS[name]
    if agent.binary is None:
        pytest.skip(f"{name.upper()} IS NOT INSTALLED (`just install-agents`)")
    blocks = read_blocks(agent)
    runs = [complete(each, name, agent) for each in blocks[0].commands if name in each]
    assert runs
    size = None if IS_FULL_SIZE else 1
    runs = runs[:size]
    provider = world.providers[agent.provider]
    own_provider = {
        BASE_URL_VARIABLES[agent.provider]: provider.openai_url if agent.provider == "openai" else provider.url
    }
    # Without settings: the agent's own provider, with a key and with a login.
    logins = {"key": {agent.key_variable: CANARY}, "login": agent.login}
    for credentials in filter(None, logins.values() if IS_FULL_SIZE else [logins["key"]]):
        world.variables = credentials | own_provider
        for command in runs:
            assert "Ahoy." in world.run(command)
            assert world.take_hosts(credential=CANARY) == {agent.provider}
    # The settings of the page: traffic goes to the upstream that they name.
    for block in [each for each in blocks if each.language == "toml" and "[upstreams" in each.text][:size]:
        world.write_settings(block.text)
        named = {host for host, url in PROVIDER_URLS.items() if url in block.text}
        uses_login = 'credentials = "client"' in block.text and bool(agent.login)
        world.variables = (agent.login if uses_login else logins["key"]) | own_provider
        assert "Ahoy." in world.run(runs[-1])
        hosts = world.take_hosts(credential=None if named == {"local"} else CANARY)
        assert hosts
        assert hosts <= named
    if not IS_FULL_SIZE:
        return
    # A local model for one run. A key in the environment goes nowhere.
    for command in (each for block in blocks for each in block.commands if LOCAL_URL in each and name in each):
        world.variables = logins["key"] | own_provider
        assert "Ahoy." in world.run(complete(command, name, agent))
        assert world.take_hosts(credential=None) == {"local"}
    # Without `quire run`, from a server with the page's settings for a local model.
    for block in blocks[1:]:
        if block.language == "console" and SERVER_URL in block.text and "…" not in block.text:
            [settings] = [each.text for each in blocks if each.language == "toml" and LOCAL_URL in each.text]
            world.write_settings(settings)
            world.variables = {}
            with world.serve():
                assert "Ahoy." in world.run(*(complete(each, name, agent) for each in block.commands))
            assert world.take_hosts(credential=None) == {"local"}
    assert set(world.other_hosts) <= agent.own_hosts
    page = (DOCS / agent.page).read_text()
    assert [host for host in agent.own_hosts if f"`{host}`" not in page] == []


@pytest.mark.nightly
def test_a_chatgpt_login_of_codex_goes_to_chatgpt_as_the_page_says(world: World):
    agent = AGENTS["codex"]
    if agent.binary is None:
        pytest.skip("CODEX IS NOT INSTALLED (`just install-agents`)")
    token = write_chatgpt_login(world.folder / ".codex")
    [settings] = [each.text for each in read_blocks(agent) if PROVIDER_URLS["chatgpt"] in each.text]
    world.write_settings(settings)
    assert "Ahoy." in world.run(f"quire run codex exec -m codex-mini-latest {shlex.quote('Say ahoy')}")
    [request] = world.providers["chatgpt"].requests
    assert request.headers["chatgpt-account-id"] == "account-of-the-user"
    assert world.take_hosts(credential=token) == {"chatgpt"}
    assert set(world.other_hosts) <= agent.own_hosts


def write_chatgpt_login(folder: Path) -> str:
    """Writes what `codex login` stores; returns the token that Codex sends."""
    claims = {
        "email": "kay@example.org",
        "exp": int(time.time()) + 86_400,
        "https://api.openai.com/auth": {"chatgpt_plan_type": "pro", "chatgpt_account_id": "account-of-the-user"},
    }
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims, "signature")
    )
    tokens = {
        "id_token": token,
        "access_token": token,
        "refresh_token": "refresh",
        "account_id": "account-of-the-user",
    }
    refreshed = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    folder.mkdir()
    (folder / "auth.json").write_text(json.dumps({"tokens": tokens, "last_refresh": refreshed}))
    return token
