"""The address that a run gives its agent: it stays the same while servers stop and start behind it.

A connection of the agent is passed on to the server, byte by byte. Without a server it waits a little for the next one,
and then gets an answer on which agents retry, so that no server's end ends an agent.
"""

import json
import socket
import time
from contextlib import suppress
from threading import Event, Thread

WAIT_SECONDS = 10.0
"""Time that a connection waits for a server that starts."""
CONNECT_SECONDS = 5.0
CHUNK_BYTES = 65_536
LINGER_SECONDS = 5.0
"""Time for the agent to read an answer that ends its connection."""
RETRY_SECONDS = 2
NO_SERVER = "Quire's server stopped and is started again. Nothing was sent to the model by this request; retry it."
CUT_OFF = "Quire's server stopped before the answer began. It is started again; retry the request."


class RunProxy:
    """Listens for an agent, and passes its connections on to the server that serves the run now."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server_port = 0
        self._has_server = Event()
        Thread(target=self._accept, daemon=True).start()

    def set_server(self, port: int | None) -> None:
        """Names the port of the server; None while there is none."""
        self._server_port = port or 0
        (self._has_server.clear if port is None else self._has_server.set)()

    def __enter__(self) -> "RunProxy":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            # Wakes the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(agent,), daemon=True).start()

    def _serve(self, agent: socket.socket) -> None:
        with agent:
            agent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = self._connect()
            if server is None:
                _refuse(agent, NO_SERVER)
                return
            with server:
                _Passage(agent, server).run()

    def _connect(self) -> socket.socket | None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self._has_server.wait(max(deadline - time.monotonic(), 0)):
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), CONNECT_SECONDS)
            except OSError:
                # It has just stopped: the run will learn that, too.
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.05)
                continue
            server.settimeout(None)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return server
        return None


class _Passage:
    """One connection of the agent and the one to the server that belongs to it."""

    def __init__(self, agent: socket.socket, server: socket.socket) -> None:
        self._agent, self._server = agent, server
        self._is_answered = True
        """Whether the server has said something since the agent last did."""

    def run(self) -> None:
        sending = Thread(target=self._pass_requests, daemon=True)
        sending.start()
        try:
            while chunk := self._server.recv(CHUNK_BYTES):
                self._is_answered = True
                self._agent.sendall(chunk)
        except OSError:
            pass
        if not self._is_answered:
            _refuse(self._agent, CUT_OFF)
        for each in (self._agent, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        sending.join()

    def _pass_requests(self) -> None:
        try:
            while chunk := self._agent.recv(CHUNK_BYTES):
                self._is_answered = False
                self._server.sendall(chunk)
            self._server.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def _refuse(agent: socket.socket, reason: str) -> None:
    """Answers 503 in a form that clients of every provider understand, and waits until the agent has read it."""
    body = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": reason}}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_SECONDS}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        agent.sendall(head.encode() + body)
        agent.shutdown(socket.SHUT_WR)
        agent.settimeout(LINGER_SECONDS)
        # A request that is closed unread resets the connection, and the answer may be lost with it.
        while agent.recv(CHUNK_BYTES):
            pass
