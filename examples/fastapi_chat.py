"""A chat API in an application of your own: conversations in the path, replies as server-sent events.

Run it with `uvicorn fastapi_chat:app`, then:

    curl -N -d '{"text": "Hello"}' -H 'content-type: application/json' http://127.0.0.1:8000/chats/tuesday
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import quire
from quire.events import TextChunk, TurnEnded, TurnFailed

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


class Question(BaseModel):
    text: str


@asynccontextmanager
async def open_engine(app: FastAPI) -> AsyncIterator[None]:
    async with quire.open(DATABASE_URL, model="gpt-4o", instructions="Be brief.") as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=open_engine)


@app.post("/chats/{name}")
async def send_question(name: str, question: Question, request: Request) -> StreamingResponse:
    conversation = await request.app.state.engine.conversation(name)
    return StreamingResponse(stream_reply(conversation, question.text), media_type="text/event-stream")


@app.get("/chats/{name}")
async def list_messages(name: str, request: Request) -> list[dict[str, str | int]]:
    conversation = await request.app.state.engine.conversation(name)
    return [
        {"number": entry.seq, "role": entry.role, "text": entry.message.text} for entry in await conversation.messages()
    ]


async def stream_reply(conversation: quire.Conversation, text: str) -> AsyncIterator[str]:
    async for event in conversation.stream(text):
        match event:
            case TextChunk(text=chunk):
                yield f"data: {json.dumps({'text': chunk})}\n\n"
            case TurnEnded(reason=reason):
                yield f"data: {json.dumps({'end': reason})}\n\n"
            case TurnFailed(error=error):
                yield f"data: {json.dumps({'error': str(error)})}\n\n"
            case _:
                pass
