"""The address of a run: what an agent gets while its server works, stops, and is replaced."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from threading import Thread

import pytest

from quire.cli import run_proxy
from quire.cli.run_proxy import RunProxy

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[socket.socket, bytes], None]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunProxy]:
    monkeypatch.setattr(run_proxy, "WAIT_SECONDS", 0.5)
    with RunProxy() as proxy:
        yield proxy


@pytest.fixture
def start_server() -> Iterator[Callable[[Answer], int]]:
    """Starts a server that reads one request a connection and answers as it is given; returns its port."""
    with ExitStack() as stack:

        def start(answer: Answer) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        answer(connection, connection.recv(100_000))

            Thread(target=serve, daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield start


def ask(proxy: RunProxy, body: bytes = b"{}") -> tuple[int, bytes, str | None]:
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)) as connection:
        connection.request("POST", "/run/1/v1/messages", body)
        with connection.getresponse() as response:
            return response.status, response.read(), response.getheader("retry-after")


def test_bytes_pass_unchanged(proxy: RunProxy, start_server: Callable[[Answer], int]):
    seen: list[bytes] = []

    def answer(connection: socket.socket, request: bytes) -> None:
        seen.append(request)
        connection.sendall(REPLY)

    proxy.set_server(start_server(answer))
    assert ask(proxy, b"x" * 1_000)[:2] == (200, b"ok")
    assert seen[0].startswith(b"POST /run/1/v1/messages HTTP/1.1\r\n")
    assert seen[0].endswith(b"x" * 1_000)


def test_a_request_waits_for_the_next_server(proxy: RunProxy, start_server: Callable[[Answer], int]):
    port = start_server(lambda connection, _: connection.sendall(REPLY))
    answers: list[tuple[int, bytes, str | None]] = []
    asking = Thread(target=lambda: answers.append(ask(proxy)))
    asking.start()
    asking.join(0.1)
    assert not answers
    proxy.set_server(port)
    asking.join(20)
    assert answers[0][:2] == (200, b"ok")


@pytest.mark.parametrize("body", [b"{}", b"x" * 3_000_000], ids=["short", "long"])
def test_without_a_server_the_agent_is_asked_to_retry(proxy: RunProxy, body: bytes):
    status, answer, retry_after = ask(proxy, body)
    assert (status, retry_after) == (503, "2")
    assert "retry" in json.loads(answer)["error"]["message"]


def test_a_port_that_refuses_is_a_server_that_stopped(proxy: RunProxy):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    proxy.set_server(port)
    assert ask(proxy)[0] == 503


def test_a_server_that_ends_before_its_answer_is_a_reason_to_retry(
    proxy: RunProxy, start_server: Callable[[Answer], int]
):
    proxy.set_server(start_server(lambda connection, _: connection.close()))
    status, answer, retry_after = ask(proxy)
    assert (status, retry_after) == (503, "2")
    assert "before the answer began" in json.loads(answer)["error"]["message"]


def test_an_answer_that_breaks_off_stays_broken(proxy: RunProxy, start_server: Callable[[Answer], int]):
    """Nothing of ours may stand in the middle of a reply."""
    proxy.set_server(start_server(lambda connection, _: connection.sendall(REPLY[:-1])))
    with pytest.raises(http.client.IncompleteRead) as broken:
        ask(proxy)
    assert broken.value.partial == b"o"
