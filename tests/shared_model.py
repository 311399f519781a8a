"""One local model for a whole run: the process that owns the session starts it when it is first asked for.

Under xdist that is the controller. Its workers cannot call it, so it answers at a port on loopback.
"""

import json
import socket
from contextlib import suppress
from threading import Lock, Thread

from quire.testing.llama import Address, LocalModel, LocalModelError

CONTEXT = 4096
SLOTS = 2
"""So that two workers do not wait for each other, nor push each other's prompt out of the cache."""


class SharedModel:
    def __init__(self) -> None:
        self._model = LocalModel(context=CONTEXT, slots=SLOTS)
        self._desk: socket.socket | None = None
        self._starting = Lock()

    def address(self) -> Address:
        with self._starting:
            if not self._model.url:
                self._model.start()
        return self._model.address

    def open_desk(self) -> int:
        """The port at which other processes are told the address."""
        if self._desk is None:
            self._desk = socket.create_server(("127.0.0.1", 0))
            Thread(target=self._answer, args=(self._desk,), daemon=True).start()
        return self._desk.getsockname()[1]

    def close(self) -> None:
        if self._desk is not None:
            # Closing alone would leave the thread in `accept`.
            with suppress(OSError):
                self._desk.shutdown(socket.SHUT_RDWR)
            self._desk.close()
        self._model.stop()

    def _answer(self, desk: socket.socket) -> None:
        while True:
            try:
                connection, _ = desk.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.sendall(json.dumps(self._told()).encode())

    def _told(self) -> dict[str, object]:
        try:
            return self.address()._asdict()
        except LocalModelError as exc:
            return {"error": str(exc)}


def ask_for_address(port: int) -> Address:
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile() as answer:
        told = json.load(answer)
    if "error" in told:
        raise LocalModelError(told["error"])
    return Address(**told)
