"""Real agents as processes, each with a home of its own, against a server on loopback.

`just install-agents` installs Claude Code, whose binary is in the wheel `claude-agent-sdk`, and Codex and Gemini CLI,
which are npm packages. opencode is used where `.cache/codex` has it, too.
"""

import asyncio
import importlib.util
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CODEX_FOLDER = Path(__file__).parents[2] / ".cache" / "codex"
RUN_TIMEOUT_SECONDS = 240.0
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Of an agent's output: one line may have a whole message."""

CLAUDE_MODEL = "claude-sonnet-5-5"
"""A name that Claude Code knows: it sends the newest forms, such as messages of the system's in the middle."""
CODEX_MODEL = "local-model"
"""A name that Codex does not know: it sends its own default prompt and tools."""

_PASSED_VARIABLES = ("PATH", "LANG", "TERM", "TMPDIR")


def find_claude() -> Path | None:
    """Finds Claude Code's binary without importing the package that holds it."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / "_bundled" / "claude").is_file()), None)


def find_codex() -> Path | None:
    path = CODEX_FOLDER / "node_modules" / ".bin" / "codex"
    return path if path.exists() and shutil.which("node") else None


def find_opencode() -> Path | None:
    """Finds the binary of opencode for this platform; the package's own script is completed by an install script."""
    return next(iter(sorted(CODEX_FOLDER.glob("node_modules/opencode-linux-x64/bin/opencode"))), None)


def find_gemini() -> Path | None:
    path = CODEX_FOLDER / "node_modules" / ".bin" / "gemini"
    return path if path.exists() and shutil.which("node") else None


@dataclass(frozen=True)
class AgentRun:
    """A finished run. `events` are the JSON lines of its output."""

    stdout: str
    stderr: str
    exit_code: int
    events: tuple[dict[str, Any], ...]
    session_id: str | None
    answer: str
    """Text of the final reply."""


@dataclass(frozen=True)
class McpServer:
    """An MCP server that an agent starts and speaks with through pipes."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])


HARBOUR_SERVER = McpServer(
    "harbour", (sys.executable, "-m", "infra.mcp_echo_server"), {"PYTHONPATH": str(Path(__file__).parents[1])}
)
"""An MCP server with the one tool `measure_tide`."""


@dataclass
class _Agent:
    """An agent with a home and a working folder of its own, both under `folder`."""

    folder: Path
    base_url: str
    """Of the server, without `/v1`."""
    key: str = "test-key"
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for each in (self.home, self.work):
            each.mkdir(parents=True, exist_ok=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def make_environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        return {**passed, "HOME": str(self.home), "NO_PROXY": "*", **self.env}

    async def start(
        self, command: Sequence[str], *, stdin: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        """Starts the agent in a process group of its own, without a terminal, and by default without any input."""
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.work,
            env=self.make_environment(),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if stdin == asyncio.subprocess.PIPE else asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )

    async def _finish(self, command: Sequence[str], timeout_seconds: float) -> tuple[str, str, int]:
        process = await self.start(command)
        try:
            async with asyncio.timeout(timeout_seconds):
                stdout, stderr = await process.communicate()
        finally:
            # The agent's own children, such as MCP servers, end with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        assert process.returncode is not None
        return stdout.decode(), stderr.decode(), process.returncode


@dataclass
class Claude(_Agent):
    """Claude Code in print mode. Of the tools that act, it may run only `allowed_tools`."""

    allowed_tools: str = "Bash(echo:*),Bash(seq:*)"
    model: str = CLAUDE_MODEL

    def make_environment(self) -> dict[str, str]:
        return {
            **super().make_environment(),
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": self.key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            **self.env,
        }

    def make_command(self, prompt: str, *flags: str) -> list[str]:
        binary = find_claude()
        assert binary is not None, "Claude Code is not installed"
        options = ["--model", self.model, "--output-format", "json", "--allowed-tools", self.allowed_tools]
        return [str(binary), "-p", prompt, *options, *flags]

    async def run(self, prompt: str, *flags: str, timeout_seconds: float = RUN_TIMEOUT_SECONDS) -> AgentRun:
        """Runs one prompt to its end. `--continue` and `--resume ID` continue a session; `/compact` is a prompt."""
        stdout, stderr, exit_code = await self._finish(self.make_command(prompt, *flags), timeout_seconds)
        parsed = json.loads(stdout) if stdout.startswith(("{", "[")) else {}
        events: list[dict[str, Any]] = parsed if isinstance(parsed, list) else [parsed]
        result = events[-1] if events else {}
        return AgentRun(
            stdout, stderr, exit_code, tuple(events), result.get("session_id"), str(result.get("result") or "")
        )

    @asynccontextmanager
    async def converse(self, *flags: str) -> AsyncIterator[Callable[[str], Awaitable[dict[str, Any]]]]:
        """Runs one process for many prompts; yields what sends a prompt and waits for its result."""
        binary, _, _, *options = self.make_command("", *flags)
        formats = ["--output-format", "stream-json", "--input-format", "stream-json", "--verbose"]
        command = [binary, "-p", *options, *formats]
        process = await self.start(command, stdin=asyncio.subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        sink, source = process.stdin, process.stdout

        async def ask(prompt: str) -> dict[str, Any]:
            line = json.dumps({"type": "user", "message": {"role": "user", "content": prompt}})
            sink.write(line.encode() + b"\n")
            async with asyncio.timeout(RUN_TIMEOUT_SECONDS):
                while output := await source.readline():
                    event = json.loads(output)
                    if event["type"] == "result":
                        return event
            raise AssertionError("Claude Code ended")

        try:
            yield ask
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


SMALL_PROMPT_FLAGS = ("--bare", "--system-prompt", "Be brief.", "--tools", "Bash")
"""Make Claude Code's request 2.5 kB instead of 47 kB, for a small model."""


@dataclass
class Codex(_Agent):
    """`codex exec` in its read-only sandbox, with a configuration of its own."""

    mcp_servers: Sequence[McpServer] = ()
    context_window_tokens: int | None = None
    config: Sequence[str] = ()
    """Further settings as `key=value`, in TOML."""
    model: str = CODEX_MODEL

    def make_environment(self) -> dict[str, str]:
        return {**super().make_environment(), "CODEX_HOME": str(self.home), "QUIRE_TEST_KEY": self.key, **self.env}

    def make_config(self) -> list[str]:
        provider = "model_providers.quire"
        lines = [
            'model_provider="quire"',
            f'{provider}.name="quire"',
            f'{provider}.base_url="{self.base_url}/v1"',
            f'{provider}.env_key="QUIRE_TEST_KEY"',
            f'{provider}.wire_api="responses"',
        ]
        if self.context_window_tokens is not None:
            lines.append(f"model_context_window={self.context_window_tokens}")
        for server in self.mcp_servers:
            table = f"mcp_servers.{server.name}"
            command, *arguments = server.command
            lines += [f"{table}.command={json.dumps(command)}", f"{table}.args={json.dumps(arguments)}"]
            lines += [f"{table}.env.{name}={json.dumps(value)}" for name, value in server.env.items()]
            # Else the first request may leave before the server has listed its tools.
            lines += [f'{table}.default_tools_approval_mode="approve"', f"{table}.required=true"]
        return [*lines, *self.config]

    @asynccontextmanager
    async def open_terminal(self, prompt: str) -> AsyncIterator[None]:
        """Runs Codex as a person sees it, in a terminal of its own that answers its questions."""
        (self.home / "config.toml").write_text(f'[projects."{self.work}"]\ntrust_level = "trusted"\n')
        config = [word for line in self.make_config() for word in ("-c", line)]
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            str(find_codex()), "--model", self.model, *config, prompt,
            cwd=self.work, env={**self.make_environment(), "TERM": "xterm-256color"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)

        def answer() -> None:
            with suppress(OSError):
                output = os.read(master, 65_536)
                for question, reply in ((b"\x1b[6n", b"\x1b[1;1R"), (b"\x1b[c", b"\x1b[?62;c")):
                    if question in output:
                        os.write(master, reply)

        loop = asyncio.get_running_loop()
        loop.add_reader(master, answer)
        try:
            yield
        finally:
            loop.remove_reader(master)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            os.close(master)

    def make_command(self, prompt: str, *flags: str, resume: str | None = None, fork: str | None = None) -> list[str]:
        binary = find_codex()
        assert binary is not None, "Codex is not installed"
        config = [word for line in self.make_config() for word in ("-c", line)]
        common = ["--json", "--skip-git-repo-check", "--model", self.model, *config, *flags]
        if resume is not None:
            return [str(binary), "exec", "resume", *common, resume, prompt]
        if fork is not None:
            return [str(binary), "exec", "fork", *common, fork, prompt]
        return [str(binary), "exec", *common, prompt]

    async def run(
        self,
        prompt: str,
        *flags: str,
        resume: str | None = None,
        fork: str | None = None,
        timeout_seconds: float = RUN_TIMEOUT_SECONDS,
    ) -> AgentRun:
        """Runs one prompt to its end, in a new session, in the one to resume, or in a fork of one."""
        command = self.make_command(prompt, *flags, resume=resume, fork=fork)
        stdout, stderr, exit_code = await self._finish(command, timeout_seconds)
        events = tuple(json.loads(line) for line in stdout.splitlines() if line.startswith("{"))
        threads = [event["thread_id"] for event in events if event.get("type") == "thread.started"]
        texts = [
            event["item"]["text"]
            for event in events
            if event.get("type") == "item.completed" and event["item"]["type"] == "agent_message"
        ]
        return AgentRun(stdout, stderr, exit_code, events, threads[0] if threads else None, texts[-1] if texts else "")


@dataclass
class OpenCode(_Agent):
    """opencode with one provider that speaks chat completions."""

    model: str = "local-model"

    def __post_init__(self) -> None:
        super().__post_init__()
        model = {"attachment": True, "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{self.base_url}/v1", "apiKey": self.key},
            "models": {self.model: model},
        }
        config = {"model": f"local/{self.model}", "provider": {"local": provider}, "autoupdate": False}
        (self.work / "opencode.json").write_text(json.dumps(config))

    def make_environment(self) -> dict[str, str]:
        switches = ("MODELS_FETCH", "DEFAULT_PLUGINS", "AUTOUPDATE", "LSP_DOWNLOAD")
        disabled = {f"OPENCODE_DISABLE_{name}": "1" for name in switches}
        return {**super().make_environment(), **disabled, **self.env}

    async def import_session(self, *arguments: str, timeout_seconds: float = RUN_TIMEOUT_SECONDS) -> str:
        stdout, stderr, exit_code = await self._finish([str(find_opencode()), *arguments], timeout_seconds)
        assert exit_code == 0, stdout + stderr
        return stdout

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Runs opencode's own server, which its terminal is a client of; yields its address."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [str(find_opencode()), "serve", "--port", str(port)]
        with subprocess.Popen(
            command, cwd=self.work, env=self.make_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                assert process.stdout is not None
                assert any(b"listening" in line for line in process.stdout), "opencode does not serve"
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()


@dataclass
class Gemini(_Agent):
    """Gemini CLI with an API key."""

    model: str = "gemini-2.5-pro"

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        (self.home / ".gemini").mkdir(exist_ok=True)
        (self.home / ".gemini" / "settings.json").write_text(json.dumps(settings))

    def make_environment(self) -> dict[str, str]:
        return {
            **super().make_environment(),
            "GEMINI_API_KEY": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.base_url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            **self.env,
        }

    async def run(self, prompt: str, *flags: str, timeout_seconds: float = RUN_TIMEOUT_SECONDS) -> AgentRun:
        """Runs one prompt to its end; `--resume ID` continues a session."""
        command = [str(find_gemini()), "--model", self.model, *flags, "-p", prompt]
        stdout, stderr, exit_code = await self._finish(command, timeout_seconds)
        return AgentRun(stdout, stderr, exit_code, (), None, stdout.strip())
