"""`quire run` with the real agents and their own logins: credentials go upstream untouched, and nowhere else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.real_agents import SMALL_PROMPT_FLAGS, find_claude, find_codex
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedError,
    ScriptedProvider,
    ScriptedReply,
    WireFormatName,
    run_scripted_provider,
)

pytestmark = pytest.mark.slow

QUIRE = str(Path(sys.executable).with_name("quire"))
CANARY = "sk-ant-oat01-canary-5c1f"
TIMEOUT_SECONDS = 180
AGENTS_OWN_FILES = (".claude", ".claude.json", ".codex")


@dataclass
class UserHome:
    """A home with Quire's settings, where Quire's server writes its log to a file."""

    folder: Path

    def configure(self, provider: ScriptedProvider, speaks: WireFormatName) -> None:
        base_url = provider.url if speaks == "messages" else f"{provider.url}/v1"
        path = self.folder / ".config/quire/quire.toml"
        path.parent.mkdir(parents=True)
        path.write_text(
            f'summarizer = "extract"\n[upstreams."*"]\nbase_url = "{base_url}"\nspeaks = ["{speaks}"]\n'
            'credentials = "client"\n'
        )

    def make_environment(self, **variables: str) -> dict[str, str]:
        agents = [str(path.parent) for path in (find_claude(), find_codex()) if path is not None]
        return {
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
            "HOME": str(self.folder),
            "PATH": ":".join([*agents, os.environ["PATH"]]),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            **variables,
        }

    def run(self, *command: str, stdin: str = "", **variables: str) -> str:
        """Runs a command to its end; returns all of its output."""
        completed = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.make_environment(**variables),
            timeout=TIMEOUT_SECONDS,
        )
        return completed.stdout + completed.stderr

    @contextmanager
    def serve(self) -> Iterator[None]:
        with (self.folder / "server.log").open("w") as log:
            command = [QUIRE, "serve", "--port", "0", "--log-format", "json"]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, env=self.make_environment()
            )
            assert process.stdout is not None
            try:
                process.stdout.readline()
                yield
            finally:
                process.terminate()
                process.communicate(timeout=TIMEOUT_SECONDS)

    def read_quires_files(self) -> dict[str, bytes]:
        """All files that an agent has not written, by path."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        own = [path for path in paths if path.parts[0] not in AGENTS_OWN_FILES]
        return {str(path): (self.folder / path).read_bytes() for path in own}


@pytest.fixture
def home(tmp_path: Path) -> UserHome:
    return UserHome(tmp_path)


def refuse_second_turn(request: ProviderRequest) -> ScriptedReply:
    if b"And again" not in request.raw:
        return ScriptedReply("Ahoy.")
    return ScriptedReply(error=ScriptedError(400, "invalid_request_error", "Not again."))


def assert_only_upstream_has(home: UserHome, provider: ScriptedProvider, output: str, header: str, value: str) -> None:
    assert provider.requests
    for request in provider.requests:
        credentials = {name: request.headers.get(name) for name in ("authorization", "x-api-key", "x-quire-key")}
        assert {name: each for name, each in credentials.items() if each is not None} == {header: value}
        assert "quire_" not in json.dumps(request.headers)
    files = home.read_quires_files()
    assert {".local/share/quire/quire.db", "server.log"} <= set(files)
    assert b"Say ahoy" in b"".join(files.values()), "the conversation is recorded"
    assert [path for path, content in files.items() if CANARY.encode() in content] == []
    assert CANARY not in output


@pytest.mark.skipif(find_claude() is None, reason="CLAUDE CODE IS NOT INSTALLED (`just install-agents`)")
@pytest.mark.parametrize(
    ("variable", "header", "value"),
    [
        ("CLAUDE_CODE_OAUTH_TOKEN", "authorization", f"Bearer {CANARY}"),
        pytest.param("ANTHROPIC_AUTH_TOKEN", "authorization", f"Bearer {CANARY}", marks=pytest.mark.nightly),
        pytest.param("ANTHROPIC_API_KEY", "x-api-key", CANARY, marks=pytest.mark.nightly),
    ],
)
def test_the_login_of_claude_code_is_only_at_the_upstream(home: UserHome, variable: str, header: str, value: str):
    flags = [flag for flag in SMALL_PROMPT_FLAGS if flag != "--bare"]
    with run_scripted_provider(refuse_second_turn) as provider:
        home.configure(provider, "messages")
        with home.serve():
            output = home.run(QUIRE, "run", "claude", "-p", "Say ahoy", *flags, **{variable: CANARY})
            assert "Ahoy." in output
            assert "quire context show" in output
            output += home.run(QUIRE, "run", "claude", "-p", "And again", "--continue", *flags, **{variable: CANARY})
            assert "Not again." in output
    assert_only_upstream_has(home, provider, output, header, value)


@pytest.mark.skipif(find_codex() is None, reason="CODEX IS NOT INSTALLED (`just install-agents`)")
def test_the_login_of_codex_is_only_at_the_upstream(home: UserHome):
    with run_scripted_provider("Ahoy.") as provider:
        home.configure(provider, "responses")
        home.run("codex", "login", "--with-api-key", stdin=CANARY)
        with home.serve():
            output = home.run(QUIRE, "run", "codex", "exec", "--skip-git-repo-check", "Say ahoy")
            assert "Ahoy." in output
    assert_only_upstream_has(home, provider, output, "authorization", f"Bearer {CANARY}")
