"""Runs an agent program through the user's server, or through one that is started for this run.

`quire run` takes this way before anything else is imported: the server loads the settings of the folder, creates the
key and answers with the program's environment (`quire.cli.run_host`), so that a run costs little more than the program.
The program talks to a port of this process (`quire.cli.run_proxy`), so that it outlives the server.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from threading import Event, Thread
from types import FrameType
from typing import Any, NamedTuple

from quire import __version__
from quire.cli.run_proxy import RunProxy
from quire.cli.service_client import Connection, connect_service

STOP_SECONDS = 20.0
"""Seconds after which a server that does not stop is killed."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0
"""Pause between two attempts to get a server."""
LOST_SERVER = (
    "Quire's server stopped before the end of the run. What passed before is recorded; see `quire context show`."
)
EXIT_FAILED = 1


class RunWords(NamedTuple):
    """The words after `quire run`."""

    program: str
    arguments: Sequence[str] = ()
    model: str | None = None
    overrides: Sequence[str] = ()
    quiet: bool = False


def parse_words(words: Sequence[str]) -> RunWords | None:
    """Parses a plain command line; None for one that the full command has to parse, such as `--help`."""
    values: dict[str, list[str]] = {"--model": [], "--set": []}
    quiet, rest = False, list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word == "--quiet":
            quiet = True
        elif word in values and rest:
            values[word].append(rest.pop(0))
        else:
            return None
    if not rest:
        return None
    return RunWords(rest[0], rest[1:], next(reversed(values["--model"]), None), values["--set"], quiet)


def run(words: RunWords, *, is_confirmed: bool = False) -> int | None:
    """Runs the program; returns its exit code.

    None if the full command has to take over: the program does not exist, or the user must first decide about the
    settings file of the folder, which `is_confirmed` says was done.
    """
    from quire.cli.paths import get_user_settings_path

    executable = shutil.which(words.program)
    if executable is None:
        return None
    with RunProxy() as proxy:
        link = RunLink(
            proxy,
            {
                "command": "launch",
                "version": __version__,
                "proxy_port": proxy.port,
                "program": words.program,
                "model": words.model,
                "overrides": words.overrides,
                "folder": os.getcwd(),  # noqa: PTH109
                "environ": dict(os.environ),
                "settings_path": str(get_user_settings_path(os.environ)),
                "is_confirmed": is_confirmed,
            },
            quiet=words.quiet,
        )
        try:
            answer = link.register()
            if answer.get("needs_confirmation"):
                return None
            if "error" in answer:
                _print_notes([f"quire: {answer['error']}"], quiet=False)
                return int(answer.get("exit_code", EXIT_FAILED))
            _print_notes(answer["notes"], quiet=words.quiet)
            exit_code = _run_program([executable, *answer["options"], *words.arguments], answer["environ"])
            _print_notes(link.finish(), quiet=words.quiet)
            return exit_code
        finally:
            link.close()


class RunLink:
    """The registration of a run with the server that serves it. If the server ends, the run gets the next one."""

    def __init__(self, proxy: RunProxy, request: dict[str, Any], *, quiet: bool) -> None:
        self._proxy, self._request, self._quiet = proxy, request, quiet
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._conversations: dict[str, None] = {}
        self._is_ending = False
        self._serves_others = False
        """Whether the server that this run started has runs that began later."""
        self._notes: list[str] | None = None
        self._ended = Event()
        """Set with the notes, and if the server ends before it has sent them."""

    def register(self) -> dict[str, Any]:
        """Registers the run; returns the answer with what the program is started with."""
        connection, answer = connect_service(), None
        if connection is not None:
            answer = connection.ask(self._request)
        if answer is not None and "other_version" in answer:
            _print_notes(
                [f"quire: The service is Quire {answer['other_version']}; `quire service install` restarts it. "
                 "This run starts its own server."], quiet=self._quiet,
            )  # fmt: skip
        if connection is None or answer is None or "other_version" in answer:
            if connection is not None:
                connection.close()
            self._process, connection, log_path = _start_server()
            answer = connection.ask(self._request) or {"error": f"The server could not start; its log is {log_path}."}
        self._connection = connection
        if "port" in answer:
            self._request |= {name: answer[name] for name in ("run", "key", "since")}
            self._proxy.set_server(answer["port"])
            Thread(target=self._follow, daemon=True).start()
        return answer

    def finish(self) -> list[str]:
        """Says that the program has ended; returns the server's notes on the run."""
        self._is_ending = True
        if self._connection is not None:
            self._connection.send({"command": "finish"})
            self._ended.wait(STOP_SECONDS)
        return self._notes if self._notes is not None else [LOST_SERVER]

    def close(self) -> None:
        self._is_ending = True
        if self._connection is not None:
            self._connection.end()
        if self._process is not None and not self._serves_others:
            _stop_server(self._process)
            if self._connection is not None:
                self._connection.close()

    def _follow(self) -> None:
        """Reads what the server says, and replaces it when it ends before the run."""
        while True:
            message = self._connection.receive() if self._connection is not None else None
            if message is None and self._is_ending:
                self._ended.set()
                return
            if message is None:
                self._proxy.set_server(None)
                self._drop_server()
                self._register_again()
            elif "notes" in message:
                self._notes, self._serves_others = message["notes"], message["stays"]
                self._ended.set()
                return
            elif name := message.get("conversation"):
                self._conversations.pop(name, None)
                self._conversations[name] = None

    def _register_again(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._is_ending:
            request = {**self._request, "conversations": list(self._conversations)}
            for start in (_connect_running, _start_server):
                try:
                    self._process, connection, _ = start()
                except OSError:
                    continue
                answer = connection.ask(request) if connection is not None else None
                self._connection = connection
                if answer is not None and "port" in answer:
                    self._proxy.set_server(answer["port"])
                    return
                self._drop_server()
            time.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE_SECONDS)

    def _drop_server(self) -> None:
        connection, process, self._connection, self._process = self._connection, self._process, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            _stop_server(process)


def _connect_running() -> "tuple[None, Connection | None, str]":
    return None, connect_service(), ""


def _start_server() -> "tuple[subprocess.Popen[bytes], Connection, str]":
    """Starts a server for this run. It ends when its standard input is closed, also if this process is killed."""
    from quire.cli.paths import get_servers_folder

    folder = get_servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path = folder / f"{os.getpid()}.log"
    process = subprocess.Popen(  # noqa: S603 (our own module)
        [sys.executable, "-P", "-c", "from quire.cli.run_host import serve_run; serve_run()", str(log_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in the terminal is the program's.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    return process, Connection(process.stdout, process.stdin), str(log_path)


def _stop_server(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run_program(argv: list[str], environ: dict[str, str]) -> int:
    """Runs the program and returns its exit code. Ctrl-C is the program's; SIGTERM is passed on to it."""
    process = subprocess.Popen(argv, env=environ)  # noqa: S603 (the user typed it)

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # The terminal sends Ctrl-C to the program as well.
        if number != signal.SIGINT:
            process.send_signal(number)

    # A handler even for Ctrl-C: a program would inherit an ignored signal.
    previous: dict[int, Any] = {
        number: signal.signal(number, handle_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _print_notes(notes: Sequence[str], *, quiet: bool) -> None:
    for each in notes if not quiet else ():
        sys.stderr.write(f"{each}\n")
    sys.stderr.flush()
