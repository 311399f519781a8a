"""The client's end of an exchange: what it is sent, and how it is known that it has gone."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Answering = Callable[["Client"], Awaitable[None]]


class Client:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.send(body, last=True)

    async def refuse(self, response: Response, headers: Mapping[str, str]) -> None:
        own = {name: value for name, value in response.headers.items() if name != "content-length"}
        await self.answer(response.status_code, {**own, **headers}, bytes(response.body))


class Answer(Response):
    """Answers by calling a function, which is cancelled if the client goes away meanwhile."""

    def __init__(self, request: Request, answering: Answering) -> None:
        super().__init__()
        self._request, self._answering = request, answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._answering(Client(send)))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait((work,))
            raise
        finally:
            gone.cancel()
        if not work.cancelled():
            work.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
