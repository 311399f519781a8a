"""What the user's server does for commands of that user: it hosts the runs of `quire run`, each with its own settings.

A run sends its folder and environment over the socket of `quire.cli.service_client`. The server loads the settings that
apply there, and serves the run under a separate path: with a separate application where it has other settings than the
server, so that every run finds the server whatever its settings. The run ends when it says so, or with its connection.
If the server ends before, the run registers with the next one, under the same path and with the same key.
"""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire import __version__
from quire.cli.agent_programs import (
    AGENT_PROGRAMS,
    OTHER_PROGRAM,
    RUN_KEY_PREFIX,
    AgentProgram,
    Gateway,
    Route,
    choose_upstreams,
    find_answering_model,
    find_set_window,
    list_routes,
)
from quire.cli.common import run_async, to_exit_code
from quire.cli.local_models import is_local
from quire.cli.output import pluralize, sanitize, to_one_line
from quire.cli.server_setup import ServeOptions, build_options, check_server_extra, open_app, preload_modules
from quire.cli.service_client import HAS_UNIX_SOCKETS, MAX_MESSAGE_BYTES, UserSocket
from quire.cli.workspace_trust import ignore_untrusted, is_trusted, read_project_file
from quire.errors import ConversationNotFound, InvalidConfiguration, QuireError
from quire.model.ids import new_id, now
from quire.model.json_values import is_object
from quire.server.addresses import bind_socket, server_url, sign_challenge, socket_url

if TYPE_CHECKING:
    from fastapi import FastAPI

    from quire.engine.client_compactions import ClientCompaction
    from quire.log import ConversationRecord
    from quire.server.state import ServerState
    from quire.settings import Settings
    from quire.store import SqlStore

GRACE_SECONDS = 5.0
"""Graceful shutdown of a run: time for replies that are still recorded."""
PROBE_SECONDS = 1.0
"""Seconds to connect to a model server on this machine."""
MAX_TITLE_CHARS = 60
"""Length of a conversation's title in the note at the end."""
MAX_NAMED_REFUSALS, MAX_REFUSAL_CHARS = 3, 300
"""Reasons of refused requests that the note at the end names, and the length of each."""
MAX_NAMED_FACTS, MAX_FACT_CHARS = 5, 100
"""Facts that the note at the end names, and the length of each."""
KEY_DAYS = 30
"""Validity of the key of a run, which is revoked at the end of the run."""
RUN_PREFIX = "/run/"
TURN_PATH = re.compile(r"/(messages|responses|chat/completions)$|:(stream)?[gG]enerateContent")
"""Paths that create a reply. Others, such as those that count tokens, are never recorded."""
SendMessage = Callable[[Mapping[str, Any] | str], None]
"""Sends an answer: an object, or the text of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run as its settings have it."""

    name: str
    program: AgentProgram
    options: ServeOptions
    environ: Mapping[str, str]
    """Environment variables of the run."""

    @property
    def routes(self) -> list[Route]:
        return list_routes(self.options.settings, self.program)


def plan_run(message: Mapping[str, Any]) -> RunPlan | None:
    """Loads the settings of a run; None if the user must first decide about the settings file of its folder."""
    folder, environ = Path(message["folder"]), message["environ"]
    program = AGENT_PROGRAMS.get(message["program"], OTHER_PROGRAM)
    variables = {**environ, "QUIRE_CONFIG": message["settings_path"]}
    file = read_project_file(folder, variables)
    is_undecided = file is not None and file.restricted and not is_trusted(file, ignore_untrusted)
    if is_undecided and not message["is_confirmed"]:
        return None
    options = build_options(
        message["overrides"],
        local=True,
        grace_seconds=GRACE_SECONDS,
        log_format="json",
        folder=folder,
        environ=variables,
        decide=ignore_untrusted,
    )
    settings = choose_upstreams(options.settings, program, environ, model=message["model"])
    if (bypass := program.find_bypass(folder, environ)) is not None:
        path, variable = bypass
        raise InvalidConfiguration(
            f"{path} sets {variable}, so that the program would send its requests past Quire; remove it there, and "
            "name the address as an upstream in Quire's settings."
        )
    options = replace(options, settings=settings)
    return RunPlan(name=Path(message["program"]).name, program=program, options=options, environ=environ)


def describe_problems(settings: "Settings", program: AgentProgram, routes: Sequence[Route]) -> Iterator[str]:
    """Says before the start what an agent would report only after minutes of retries, or not at all.

    These are model servers on this machine that do not answer, and a window into which the program's own instructions
    and tools do not fit, which Quire never shortens.
    """
    from urllib.parse import urlsplit

    for url in {each.base_url for each in settings.upstreams.values()} or {settings.base_url or ""}:
        address = urlsplit(url)
        if is_local(url) and address.port is not None:
            try:
                socket.create_connection((address.hostname or "", address.port), timeout=PROBE_SECONDS).close()
            except OSError:
                yield f"quire: No model server answers at {url}; start it, or correct the address in the settings."
    for names, upstream in routes:
        if upstream is None or names not in program.provider_models:
            continue
        window = find_set_window(settings, upstream.model or names)
        if window is not None and window <= program.prompt_tokens:
            yield (
                f"quire: {upstream.model or names} at {upstream.base_url} has a window of {window:,} tokens. The "
                f"program's own instructions and tools have about {program.prompt_tokens:,}, so its requests will be "
                "refused; start the model with a larger window, or choose another."
            )
            return


@dataclass(frozen=True, slots=True)
class HostedRun:
    """A run that the server serves now."""

    app: "FastAPI"
    send: SendMessage
    conversations: dict[str, None]
    """Its conversations, in the order of their last requests. The run keeps them for the next server."""
    requests: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    unrecorded: list[float] = field(default_factory=list[float])
    """When requests for a reply passed unrecorded, in seconds since 1970."""

    def note_conversation(self, name: str) -> None:
        if next(reversed(self.conversations), None) != name:
            self.conversations.pop(name, None)
            self.conversations[name] = None
            self.send({"conversation": name})


class RunHost:
    """ASGI application in front of the server's own: it serves each run under its own path."""

    def __init__(self, app: "FastAPI", options: ServeOptions, url: str) -> None:
        self._app, self._options, self._url = app, options, url
        self._runs: dict[str, HostedRun] = {}
        self._is_unused = asyncio.Event()
        """Set while there is no run."""
        self._is_unused.set()
        self.release_socket: Callable[[], None] | None = None
        """Lets another server have the user's socket; None for a server that stays."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        path: str = scope.get("path", "")
        if not path.startswith(RUN_PREFIX):
            await app(scope, receive, send)
            return
        run_id, _, rest = path.removeprefix(RUN_PREFIX).partition("/")
        run = self._runs.get(run_id)
        if run is None:
            await PlainTextResponse("This run has ended.", status_code=404)(scope, receive, send)
            return
        from quire.server.gateway.upstream import decode_conversation_header

        task = asyncio.current_task()
        assert task is not None
        run.requests.add(task)

        async def observe_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                name = headers.get("x-quire-conversation")
                if name is not None:
                    run.note_conversation(decode_conversation_header(name))
                if headers.get("x-quire-recorded") == "no" and TURN_PATH.search(rest):
                    run.unrecorded.append(time.time())
            await send(message)

        try:
            raw = scope.get("raw_path", path.encode())[len(RUN_PREFIX) + len(run_id) :]
            await run.app({**scope, "path": f"/{rest}", "raw_path": raw or b"/"}, receive, observe_send)
        finally:
            run.requests.discard(task)

    async def serve_messages(self, reader: StreamReader, send: SendMessage) -> None:
        """Answers the messages of one connection."""
        message = await _read_message(reader)
        match (message or {}).get("command"):
            case "launch":
                assert message is not None
                await self._serve_launch(message, reader, send)
            case "statusline":
                assert message is not None
                from quire.cli.session_status import format_status_line

                state = await self._find_state(message["event"])
                budget = state.settings.daily_budget
                send(await format_status_line(state.store, message["event"], daily_budget=budget))
            case "release":
                if self.release_socket is not None:
                    self.release_socket()
                send({"is_released": self.release_socket is not None})
            case "describe":
                host, _, port = self._url.removeprefix("http://").rpartition(":")
                send(
                    {
                        "url": self._url,
                        "page": server_url(host.strip("[]"), int(port), self._options.local_token),
                        "port": int(port),
                        "database": self._options.database_digest,
                        "version": __version__,
                        "pid": os.getpid(),
                        "stays": self.release_socket is None,
                    }
                )
            case _:
                pass

    async def _find_state(self, event: object) -> "ServerState":
        """The application whose database has the session of a status line; else the server's own."""
        session: object = event.get("session_id") if is_object(event) else None
        for app in dict.fromkeys([self._app, *(run.app for run in self._runs.values())]):
            state: ServerState = app.state.server_state
            if isinstance(session, str) and session and await state.store.list_session(session):
                return state
        return self._app.state.server_state

    async def _serve_launch(self, message: Mapping[str, Any], reader: StreamReader, send: SendMessage) -> None:
        # A run that registers again may be of the version before an upgrade.
        if "run" not in message and message.get("version") != __version__:
            send({"other_version": __version__})
            return
        notes: list[str] | None = None
        try:
            plan = await asyncio.to_thread(plan_run, message)
            if plan is None:
                send({"needs_confirmation": True})
                return
            started_at: int = message.get("since") or now()
            async with self._open_run(plan, message, send) as (run_id, run):
                state: ServerState = run.app.state.server_state
                async with _hold_key(state, plan.name, message.get("key")) as secret:
                    answer = {"run": run_id, "key": secret, "since": started_at, "port": self._port}
                    if "run" not in message:
                        answer |= await self._prepare_launch(plan, run_id, secret, message["proxy_port"])
                    send(answer)
                    is_finished = await _read_message(reader) is not None
                    # A reply may be recorded after the program has read it.
                    if run.requests:
                        await asyncio.wait(run.requests, timeout=GRACE_SECONDS)
                if is_finished:
                    result = await _describe_result(
                        state, plan.options.settings, [*run.conversations], since=started_at
                    )
                    if run.unrecorded:
                        result.append(describe_gap(run.unrecorded))
                    notes = [sanitize(each) for each in result]
        except QuireError as error:
            send({"error": sanitize(str(error)), "exit_code": to_exit_code(error), "notes": []})
        if notes is not None:
            send({"notes": notes, "stays": bool(self._runs)})

    @property
    def _port(self) -> int:
        return int(self._url.rpartition(":")[2])

    async def _prepare_launch(self, plan: RunPlan, run_id: str, secret: str, proxy_port: int) -> dict[str, Any]:
        """What the program is started with: its requests go to the run's own port, which passes them on."""
        settings, program = plan.options.settings, plan.program
        problems = await asyncio.to_thread(lambda: [*describe_problems(settings, program, plan.routes)])
        named = [name for name in settings.upstreams if not set("*?[") & set(name)]
        gateway = Gateway(
            url=f"http://127.0.0.1:{proxy_port}{RUN_PREFIX}{run_id}",
            key=secret,
            passes_credentials=any(each.credentials == "client" for each in settings.upstreams.values()),
            models=tuple(dict.fromkeys([settings.model, *named])),
            answering_model=find_answering_model(settings, program),
        )
        launch = program.connect(gateway, plan.environ)
        environ = launch.build_environment(plan.environ)
        return {"options": list(launch.options), "environ": environ, "notes": [sanitize(each) for each in problems]}

    @asynccontextmanager
    async def _open_run(
        self, plan: RunPlan, message: Mapping[str, Any], send: SendMessage
    ) -> AsyncGenerator[tuple[str, HostedRun]]:
        """Serves a run while the context is open: by the server's own application, if it has the same settings."""
        run_id: str = message.get("run") or new_id()
        async with (
            _borrow(self._app)
            if plan.options.configuration == self._options.configuration
            else open_app(plan.options, streams=self._app.state.streams)
        ) as app:
            run = self._runs[run_id] = HostedRun(app, send, dict.fromkeys(message.get("conversations", ())))
            self._is_unused.clear()
            try:
                yield run_id, run
            finally:
                del self._runs[run_id]
                if not self._runs:
                    self._is_unused.set()

    async def wait_for_runs(self) -> None:
        """Returns when the last run has ended."""
        await self._is_unused.wait()


@asynccontextmanager
async def _borrow(app: "FastAPI") -> "AsyncGenerator[FastAPI]":
    yield app


@asynccontextmanager
async def _hold_key(state: "ServerState", name: str, secret: str | None) -> AsyncGenerator[str]:
    """An API key for the run: a new one, or the one that it has from another server. It is revoked with the run."""
    keys = state.store.keys
    if secret is None:
        key, secret = await keys.create(
            f"{RUN_KEY_PREFIX}{name}"[:200], ["chat"], expires_at=now() + KEY_DAYS * 86_400_000_000
        )
    elif (key := await keys.verify(secret)) is None:
        raise InvalidConfiguration("the key of this run is not in the database that the settings name now.")
    is_stopped = False
    try:
        yield secret
    except asyncio.CancelledError:
        # The server stops, not the run: the next server gets the run with this key.
        is_stopped = True
        raise
    finally:
        if not is_stopped:
            await keys.revoke(key.id)


async def _describe_result(
    state: "ServerState", settings: "Settings", conversations: Sequence[str], *, since: int
) -> list[str]:
    """Names the conversation of the run's last request, and what the agent's own compactions lost of it.

    Conversations of sub-agents and side calls do not count.
    """
    newest = None
    for name in reversed(conversations):
        # A request that failed may have created none.
        with suppress(ConversationNotFound):
            record = await state.store.get_conversation(name)
            branches = await state.store.list_branches(name)
            if record.is_main and any(each.head_seq for each in branches):
                [newest] = await state.store.fill_titles(record)
                break
    if newest is None:
        upstreams = [f"{pattern} at {each.base_url}" for pattern, each in settings.upstreams.items()]
        lines = [f"Quire recorded no reply in this run. Upstreams: {', '.join(upstreams) or settings.base_url}"]
        return lines + await describe_refusals(state.store, conversations, since=since)
    title = to_one_line(newest.title, MAX_TITLE_CHARS)
    commands = f"  `quire context show {newest.id} --messages`, or `quire serve --open`"
    lines = [f"Quire recorded “{title}”\n{commands}", *await describe_losses(state.store, newest, since=since)]
    return lines + await describe_refusals(state.store, conversations, since=since)


async def describe_refusals(store: "SqlStore", conversations: Sequence[str], *, since: int) -> list[str]:
    """Says which requests got no whole reply, and what came back. Those that the client left do not count."""
    found = [
        each
        for conversation in conversations
        for each in await store.list_unanswered(conversation=conversation, since=since)
        if each.outcome in ("refused", "broken", "unanswered")
    ]
    lines: list[str] = []
    described = Counter((each.outcome == "refused", each.describe()) for each in found)
    for (is_refused, text), count in described.most_common(MAX_NAMED_REFUSALS):
        verb, result = "was" if count == 1 else "were", "refused" if is_refused else "not answered"
        lines.append(f"{pluralize(count, 'request')} {verb} {result}: {to_one_line(text, MAX_REFUSAL_CHARS)}")
    if found:
        lines.append(f"  `quire context show {found[-1].conversation}` shows where.")
    return lines


def describe_gap(times: Sequence[float]) -> str:
    """Says from when to when requests passed without being recorded."""
    first, last = (time.strftime("%H:%M:%S", time.localtime(each)) for each in (min(times), max(times)))
    count = "1 request passed" if len(times) == 1 else f"{len(times)} requests passed"
    period = f"at {first}" if first == last else f"from {first} to {last}"
    return f"{count} unrecorded {period}: the database did not answer, or Quire could not read them."


async def describe_losses(store: "SqlStore", conversation: "ConversationRecord", *, since: int) -> list[str]:
    """What the compactions of an agent's session lost, except for what an undo has brought back."""
    from quire.engine.client_compactions import find_client_compactions

    epochs = [branch.state.epoch for branch in await store.list_branches(conversation.id)]
    spans = [each.summary.restored for each in epochs if each is not None and each.summary is not None]
    restored = {seq for span in spans if span is not None for seq in range(span.first, span.last + 1)}
    compactions = await find_client_compactions(store, conversation, since=since)
    return [format_lost_facts(each) for each in compactions if {fact.seq for fact in each.lost.facts} - restored]


def format_lost_facts(compaction: "ClientCompaction") -> str:
    """Says what a compaction of the agent lost, and how to bring it back."""
    facts, total = compaction.lost
    strongest = facts[:MAX_NAMED_FACTS]
    named = [f"  #{fact.seq} {to_one_line(fact.text, MAX_FACT_CHARS)}" for fact in strongest]
    more = [f"  and {total - len(strongest)} more"] if total > len(strongest) else []
    numbers = ",".join(str(seq) for seq in sorted({fact.seq for fact in facts}))
    return "\n".join(
        [
            f"The agent replaced {compaction.messages} messages with its summary, which lacks:",
            *named,
            *more,
            f"Bring them back: `quire context restore {numbers} {compaction.conversation}`",
        ]
    )


def _to_line(message: Mapping[str, Any] | str) -> bytes:
    return (to_one_line(message) if isinstance(message, str) else json.dumps(message)).encode() + b"\n"


async def _read_message(reader: StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end of the connection."""
    try:
        line = await reader.readline()
        return json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None


async def serve_with_runs(options: ServeOptions, listener: socket.socket, user_socket: UserSocket) -> None:
    """Serves until a signal, and answers commands of the user, unless another server does so already."""
    from quire.server.lifecycle import run_server

    async with open_app(options) as app:
        host = RunHost(app, options, socket_url(listener))
        async with listen_for_commands(host, user_socket):
            await run_server(app, listener, grace_seconds=options.grace_seconds, entry=host)


@asynccontextmanager
async def listen_for_commands(host: RunHost, user_socket: UserSocket) -> AsyncGenerator[None]:
    """Answers on the user's socket, until another server takes it over or the context ends."""
    tasks, listener = set[asyncio.Task[Any]](), user_socket.listener

    async def handle(reader: StreamReader, writer: StreamWriter) -> None:
        def send(message: Mapping[str, Any] | str) -> None:
            writer.write(_to_line(message))

        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if HAS_UNIX_SOCKETS or await _authenticate(reader, send, user_socket.token):
                await host.serve_messages(reader, send)
            with suppress(OSError):
                await writer.drain()
        finally:
            tasks.discard(task)
            writer.close()

    server = None
    if listener is not None:
        start = asyncio.start_unix_server if HAS_UNIX_SOCKETS else asyncio.start_server
        server = await start(handle, sock=listener, limit=MAX_MESSAGE_BYTES)

    def release_socket() -> None:
        if server is not None:
            server.close()
        user_socket.release()

    if not user_socket.takes_over:
        host.release_socket = release_socket
    try:
        yield
    finally:
        if server is not None:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _authenticate(reader: StreamReader, send: SendMessage, token: str) -> bool:
    """Proves knowledge of the token and asks for it, where other users can connect."""
    message = await _read_message(reader)
    if message is None:
        return False
    send({"proof": sign_challenge(token, str(message.get("challenge")))})
    message = await _read_message(reader)
    is_accepted = message is not None and message.get("token") == token
    send({"is_accepted": is_accepted})
    return is_accepted


def serve_run() -> None:
    """Entry point of a server that a run starts. The run's messages come from standard input.

    Where the user has no other server, this one answers the other commands as well, and serves runs that start
    meanwhile. It stops with the last of them.
    """
    # As in `quire.cli.main`: collecting garbage among the imported objects would only delay the start.
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # The terminal is the program's.
    log_path = Path(sys.argv[1])
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())

    def send(message: Mapping[str, Any] | str) -> None:
        with suppress(OSError):
            answers.write(_to_line(message))
            answers.flush()

    run_async(_serve_run(send))
    log_path.unlink(missing_ok=True)


async def _serve_run(send: SendMessage) -> None:
    from quire.server.lifecycle import run_server
    from quire.server.telemetry.logs import configure_logging

    configure_logging("json")
    loop, reader = asyncio.get_running_loop(), StreamReader(MAX_MESSAGE_BYTES)
    line = sys.stdin.buffer.readline()
    try:
        check_server_extra("Running an agent")
        plan = await asyncio.to_thread(plan_run, json.loads(line)) if line else None
    except QuireError as error:
        send({"error": sanitize(str(error)), "exit_code": to_exit_code(error), "notes": []})
        return
    if plan is None:
        send({"needs_confirmation": True})
        return

    def feed() -> None:
        for each in iter(sys.stdin.buffer.readline, b""):
            loop.call_soon_threadsafe(reader.feed_data, each)
        loop.call_soon_threadsafe(reader.feed_eof)

    reader.feed_data(line)
    Thread(target=feed, daemon=True).start()
    with bind_socket("127.0.0.1", 0) as listener, UserSocket() as user_socket:
        async with open_app(plan.options) as app:
            host = RunHost(app, plan.options, socket_url(listener))

            async def serve() -> None:
                try:
                    await host.serve_messages(reader, send)
                    await host.wait_for_runs()
                finally:
                    signal.raise_signal(signal.SIGTERM)

            # The agent takes a second to its first request, too.
            loop.run_in_executor(None, preload_modules, plan.options.settings)
            serving = asyncio.ensure_future(serve())
            async with listen_for_commands(host, user_socket):
                await run_server(app, listener, grace_seconds=GRACE_SECONDS, entry=host)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
