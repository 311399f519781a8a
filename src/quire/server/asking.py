"""What routes ask for by name in their parameters: the caller with a scope, its engine, its conversation."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from quire.engine import Conversation, Engine
from quire.log import MAIN
from quire.server.identity import Caller, caller_with
from quire.server.serving import Serving

Reading = Annotated[Caller, Depends(caller_with("read"))]
Writing = Annotated[Caller, Depends(caller_with("write"))]
Chatting = Annotated[Caller, Depends(caller_with("chat"))]
Managing = Annotated[Caller, Depends(caller_with("admin"))]


def serving_of(request: Request) -> Serving:
    return request.app.state.serving


Shared = Annotated[Serving, Depends(serving_of)]
ConversationId = Annotated[str, Path(min_length=1, max_length=200, description="The conversation's id.")]
BranchNumber = Annotated[int, Query(ge=0, le=2**31 - 1, description="The branch; 0 is the main one.")]
Seq = Annotated[int, Path(ge=1, le=2**62, description="The entry's number on its branch.")]


def engine_of(serving: Serving, caller: Caller, *, model: str | None = None) -> Engine:
    return serving.engine(caller.tenant, model=model)


async def conversation_of(
    serving: Serving, caller: Caller, conversation: str, branch: int = MAIN, *, model: str | None = None
) -> Conversation:
    """A conversation that is there; `NotFound` if the caller's tenant has none of that id, or no such branch."""
    engine = engine_of(serving, caller, model=model)
    await engine.store.branch(conversation, branch)
    return Conversation(engine, conversation, branch)
