"""`quire hook claude-code` and `codex`: passes an event of an agent's hook to the hook service, within a time limit.

The agent waits for this process, so it imports only the standard library and leaves the work to the service, a
background process that it starts if none is running. It never fails the agent: any error is a line in the log.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any
from zlib import adler32, crc32

AGENTS = ("claude-code", "codex")
RECALL_EVENTS = ("UserPromptSubmit", "SessionStart")
"""Events whose answer may contain recalled messages; the others only announce a changed transcript."""
MAX_EVENT_BYTES = 4_000_000
"""Maximum size of an event on standard input; a larger one is not processed."""
MAX_ANSWER_BYTES = 200_000
CONNECT_SECONDS = 0.5
RECALL_SECONDS = {"UserPromptSubmit": 1.0, "SessionStart": 3.0}
"""Time limit of an answer; after a compaction, which takes seconds itself, an answer may take longer."""
MAX_LOG_BYTES = 1_000_000
_RETRY_SECONDS = 0.02
_SETTINGS_FILENAME = "quire.toml"
_IDENTITY_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def run_hook(agent: str) -> None:
    """Handles one event from standard input. The exit code is 0 whatever happens."""
    try:
        data = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
        if len(data) > MAX_EVENT_BYTES:
            raise ValueError(f"the event has more than {MAX_EVENT_BYTES} bytes")
        event: dict[str, Any] = json.loads(data)
        context = send_event(agent, event)
        if context:
            output = {"hookEventName": event["hook_event_name"], "additionalContext": context}
            sys.stdout.write(json.dumps({"hookSpecificOutput": output}) + "\n")
            sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 (an agent must not fail because of a hook)
        write_log(f"{agent}: {type(error).__name__}: {error}")


def send_event(agent: str, event: dict[str, Any]) -> str:
    """Sends the event to the service and returns the context that it answers, if it does in time."""
    name = event.get("hook_event_name")
    wants_context = name in RECALL_EVENTS and (name != "SessionStart" or event.get("source") == "compact")
    # Before a compaction the answer says that the transcript is safe, because the agent may rewrite it.
    waits = wants_context or name == "PreCompact"
    deadline = time.monotonic() + RECALL_SECONDS.get(str(name), CONNECT_SECONDS)
    folder = str(event.get("cwd") or Path.cwd())
    path = get_socket_path(folder)
    line = json.dumps({"agent": agent, "event": event}).encode() + b"\n"
    if path is None:
        start_service("", folder, line)
        return ""
    connection = _connect(path)
    if connection is None:
        start_service(path, folder, b"" if wants_context else line)
        if not wants_context:
            return ""
        while connection is None and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
            connection = _connect(path)
        if connection is None:
            return ""
    with connection:
        connection.sendall(line)
        return _read_context(connection, deadline) if waits else ""


def get_socket_path(folder: str) -> str | None:
    """The socket of the service with the settings that apply in this folder; None without Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    runtime = get_runtime_folder()
    folders = (Path(folder), *Path(folder).parents)
    project = next((file for each in folders if (file := each / _SETTINGS_FILENAME).is_file()), None)
    # Where the user's settings may be, as `quire.cli.paths` finds them with a library.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (tested with HOME alone)
    configured = os.environ.get("QUIRE_CONFIG")
    library = home / "Library" / "Application Support"
    user_folders = (os.environ.get("XDG_CONFIG_HOME") or home / ".config", library)
    data_folders = (os.environ.get("XDG_DATA_HOME") or home / ".local" / "share", library)
    users = [Path(configured)] if configured else [Path(each, "quire", _SETTINGS_FILENAME) for each in user_folders]
    files = [project, *users, *(Path(each, "quire", "trust.json") for each in data_folders)]
    # A service that has read other settings is not used any more, and ends when it is idle.
    times = [(str(file), file.stat().st_mtime_ns) for file in files if file is not None and file.is_file()]
    variables = [item for item in os.environ.items() if item[0].startswith("QUIRE_") or item[0] in _IDENTITY_VARIABLES]
    identity = json.dumps([sys.prefix, times, sorted(variables)]).encode()
    # Checksums, because `hashlib` takes longer to import than the rest.
    return str(runtime / f"hook-{crc32(identity):08x}{adler32(identity):08x}.sock")


def get_runtime_folder() -> Path:
    """A folder of this user alone, created if needed."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base, "quire") if base else Path(os.environ.get("TMPDIR") or "/tmp", f"quire-{os.getuid()}")  # noqa: S108
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not private to this user")
    return folder


def start_service(path: str, folder: str, first_line: bytes) -> None:
    """Starts the service in the background and passes it the first event.

    It runs in the project's folder, whose settings apply, and imports nothing from there (`-P`).
    """
    import subprocess

    process = subprocess.Popen(  # noqa: S603 (our own module)
        [sys.executable, "-P", "-m", "quire.cli.hook_service", path],
        cwd=folder if os.path.isdir(folder) else None,  # noqa: PTH112 (pathlib is slower to import)
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(first_line)
    process.stdin.close()
    # The service outlives this process; without this, the interpreter would warn at its end.
    process.returncode = 0


def write_log(line: str) -> None:
    """Appends a line to the log of hooks; a log that cannot be written is no error."""
    try:
        path = get_log_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(line.split())[:1_000]}\n")
    except OSError:
        pass


def get_log_path() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path(os.path.expanduser("~"), ".local", "share")  # noqa: PTH111
    return Path(data, "quire", "hook.log")


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _read_context(connection: socket.socket, deadline: float) -> str:
    data = b""
    while not data.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or len(data) > MAX_ANSWER_BYTES:
            return ""
        connection.settimeout(remaining)
        try:
            received = connection.recv(65_536)
        except TimeoutError:
            return ""
        if not received:
            return ""
        data += received
    return str(json.loads(data).get("context") or "")
