"""One local model for a whole test run: the process that owns the session starts it on first use.

Under xdist that is the controller. Its workers cannot call it directly, so it serves the model's address on loopback.
"""

import json
import socket
from contextlib import suppress
from threading import Lock, Thread

from infra.llama import LocalModel, LocalModelAddress, LocalModelError

CONTEXT_TOKENS = 4096
SLOT_COUNT = 2
"""Two slots, so that two workers neither wait for each other nor evict each other's prompt cache."""


class SharedLocalModel:
    def __init__(self) -> None:
        self._model = LocalModel(context=CONTEXT_TOKENS, slots=SLOT_COUNT)
        self._listener: socket.socket | None = None
        self._start_lock = Lock()

    def get_address(self) -> LocalModelAddress:
        with self._start_lock:
            if not self._model.url:
                self._model.start()
        return self._model.address

    def serve_address(self) -> int:
        """Serves the address of the model to other processes; returns the port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        return self._listener.getsockname()[1]

    def close(self) -> None:
        if self._listener is not None:
            # Closing alone does not wake the thread from `accept`.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._model.stop()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.sendall(json.dumps(self._address_payload()).encode())

    def _address_payload(self) -> dict[str, object]:
        try:
            return self.get_address()._asdict()
        except LocalModelError as exc:
            return {"error": str(exc)}


def fetch_address(port: int) -> LocalModelAddress:
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile() as response:
        payload = json.load(response)
    if "error" in payload:
        raise LocalModelError(payload["error"])
    return LocalModelAddress(**payload)
