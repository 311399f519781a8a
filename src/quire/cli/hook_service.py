"""The hook service: a background process that imports transcripts as they grow and answers recall for agents' hooks.

`quire.cli.hook_client` starts it, one for each set of settings, and talks to it over a Unix socket that only the user
can open. It ends after `IDLE_SECONDS` without an event.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.hook_client import AGENTS, MAX_EVENT_BYTES, RECALL_EVENTS, write_log

if TYPE_CHECKING:
    from quire.engine import Engine

IDLE_SECONDS = 600.0
IMPORT_WAIT_SECONDS = {"UserPromptSubmit": 0.5, "SessionStart": 2.0}
"""Time that a recall waits for the import of what the transcript has gained."""
SETTLE_SECONDS = 11.0
"""Time after the last event of a session when its transcript is imported once more: an agent may write after its hooks
ran, and a reader holds back a reply that may be incomplete."""
MAX_SUB_AGENT_FILES = 1_000
_READ_SECONDS = 5.0


class HookService:
    """Imports and recalls for all sessions of one user and one set of settings."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._imports: dict[Path, asyncio.Task[None]] = {}
        self._changed: set[Path] = set()
        self._fingerprints: dict[Path, tuple[int, int]] = {}
        self._settling: dict[Path, asyncio.TimerHandle] = {}
        self.active = asyncio.Event()
        """Set by each event; the idle timer clears it."""

    async def handle_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), _READ_SECONDS)
            context = await self.handle_line(line)
            # A hook that expects no context, or whose time is over, has closed the connection.
            with contextlib.suppress(OSError):
                writer.write(json.dumps({"context": context}).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, LookupError, TimeoutError) as error:
            write_log(f"service: {type(error).__name__}: {error}")
        finally:
            writer.close()

    async def handle_line(self, line: bytes) -> str:
        """Handles one event; returns the context for the agent."""
        self.active.set()
        request = json.loads(line)
        agent, event = request["agent"], request["event"]
        if agent not in AGENTS:
            raise ValueError(f"unknown agent {agent!r}")
        name, path = event.get("hook_event_name"), event.get("transcript_path")
        importing = self._start_import(agent, Path(path), copy=name == "PreCompact") if path else None
        if name == "PostCompact":
            await self._record_compaction(agent, event)
        if name not in RECALL_EVENTS or (name == "SessionStart" and event.get("source") != "compact"):
            return ""
        if importing is not None:
            await asyncio.wait([importing], timeout=IMPORT_WAIT_SECONDS[name])
        return await self._recall(agent, event)

    async def wait_for_imports(self) -> None:
        while self._imports:
            await asyncio.wait(self._imports.values())

    async def _record_compaction(self, agent: str, event: dict[str, Any]) -> None:
        """Records the agent's compaction in the session that passed through the gateway, so that it can be undone
        before the agent's next request."""
        from quire.errors import QuireError
        from quire.log import ConversationOrigin
        from quire.proxy.client_compactions import record_announced

        session, summary = event.get("session_id"), event.get("compact_summary")
        if isinstance(session, str) and session and isinstance(summary, str):
            try:
                origin = ConversationOrigin(client=agent, session=session)
                await record_announced(self._engine.store, origin, summary)
            except QuireError as error:
                write_log(f"compaction: {error}")

    async def _recall(self, agent: str, event: dict[str, Any]) -> str:
        from quire.engine.recall import recall_session
        from quire.errors import QuireError

        session, prompt = event.get("session_id"), event.get("prompt")
        if not isinstance(session, str) or not session:
            return ""
        try:
            return await recall_session(
                self._engine, client=agent, session=session, prompt=prompt if isinstance(prompt, str) else None
            )
        except QuireError as error:
            write_log(f"recall: {error}")
            return ""

    def _start_import(self, agent: str, path: Path, *, copy: bool) -> asyncio.Task[None] | None:
        """Imports the transcript in the background; an import of the same file that runs already is repeated after."""
        if copy and agent == "codex":
            # Codex may rewrite the file while it compacts.
            try:
                snapshot = Path(shutil.copy2(path, tempfile.mkdtemp(prefix=_SNAPSHOT_PREFIX)))
                return self._run_import(agent, snapshot)
            except OSError as error:
                write_log(f"import: {path}: {error}")
        self._settle_later(agent, path)
        running = self._imports.get(path)
        if running is None:
            return None if self._fingerprints.get(path) == _get_fingerprint(path) else self._run_import(agent, path)
        self._changed.add(path)
        return running

    def _settle_later(self, agent: str, path: Path) -> None:
        if path in self._settling:
            self._settling[path].cancel()

        def import_again() -> None:
            del self._settling[path]
            if path in self._imports:
                self._changed.add(path)
            else:
                self._run_import(agent, path)

        self._settling[path] = asyncio.get_running_loop().call_later(SETTLE_SECONDS, import_again)

    def _run_import(self, agent: str, path: Path) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._import(agent, path))
        self._imports[path] = task
        task.add_done_callback(lambda _: self._imports.pop(path, None))
        return task

    async def _import(self, agent: str, path: Path) -> None:
        from quire.engine.file_import import import_files
        from quire.sources.registry import SOURCES

        try:
            while True:
                self._changed.discard(path)
                fingerprint = _get_fingerprint(path)
                # Claude Code writes the transcripts of sub-agents to a folder with the session's name.
                sub_agents = path.with_suffix("") / "subagents"
                files = [path, *sorted(sub_agents.glob("*.jsonl"))[:MAX_SUB_AGENT_FILES]]
                report = await import_files(self._engine, SOURCES[agent], [each for each in files if each.is_file()])
                for error in report.errors:
                    write_log(f"import: {error.item}: {error.reason}")
                self._fingerprints[path] = fingerprint
                if path not in self._changed:
                    return
        except Exception as error:  # noqa: BLE001 (the next event imports again)
            write_log(f"import: {path}: {type(error).__name__}: {error}")
        finally:
            if path.parent.name.startswith(_SNAPSHOT_PREFIX):
                shutil.rmtree(path.parent, ignore_errors=True)


_SNAPSHOT_PREFIX = "quire-snapshot-"


def _get_fingerprint(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@contextlib.asynccontextmanager
async def open_service() -> AsyncGenerator[HookService]:
    from quire.cli.engine_setup import open_engine_from_settings
    from quire.cli.workspace_trust import ProjectFile

    def ignore(file: ProjectFile) -> bool:
        write_log(f"service: {file.path} is not trusted, so these settings are ignored: {', '.join(file.restricted)}")
        return False

    async with open_engine_from_settings(decide=ignore) as engine:
        service = HookService(engine)
        yield service
        await service.wait_for_imports()
        await engine.wait_for_background()


async def serve(path: str, first_line: bytes) -> None:
    """Handles the first event, then events from the socket until none comes for `IDLE_SECONDS`."""
    async with open_service() as service:
        server = None
        if path:
            _remove_socket(path)
            server = await asyncio.start_unix_server(service.handle_connection, path, limit=MAX_EVENT_BYTES)
        try:
            if first_line:
                await service.handle_line(first_line)
            while server is not None:
                service.active.clear()
                try:
                    await asyncio.wait_for(service.active.wait(), IDLE_SECONDS)
                except TimeoutError:
                    break
        finally:
            if server is not None:
                _remove_socket(path)
                server.close()


def _remove_socket(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def main() -> None:
    path, first_line = sys.argv[1], sys.stdin.buffer.read(MAX_EVENT_BYTES + 1_000)
    try:
        with _lock(path) as is_first:
            if is_first:
                os.umask(0o077)
                asyncio.run(serve(path, first_line))
            elif first_line:
                # Another service is about to listen: two hooks found none at the same time.
                asyncio.run(_forward(path, first_line))
    except Exception as error:  # noqa: BLE001 (there is no terminal to print it to)
        write_log(f"service: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _lock(path: str) -> Any:
    """Yields whether this is the only service of the socket; the file holds its process id, the lock ends with it."""
    if not path:
        yield True
        return
    import fcntl

    with Path(f"{path}.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield True


async def _forward(path: str, line: bytes) -> None:
    for _ in range(100):
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.write(line)
        await reader.readline()
        writer.close()
        return


if __name__ == "__main__":
    main()
