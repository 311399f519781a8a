"""Route dependencies (caller with a scope, engine, server state, conversation) and cursor pagination."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from quire.engine import Conversation, Engine
from quire.errors import InvalidRequest
from quire.log import MAIN_BRANCH
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.server.auth import require_action
from quire.server.caller import Caller
from quire.server.state import ServerState, get_server_state

ReadCaller = Annotated[Caller, Depends(require_action("read"))]
WriteCaller = Annotated[Caller, Depends(require_action("write"))]
ChatCaller = Annotated[Caller, Depends(require_action("chat"))]
PurgeCaller = Annotated[Caller, Depends(require_action("purge"))]


def engine_for_caller(server_state: ServerState, caller: Caller, *, model: str | None = None) -> Engine:
    """The engine of the caller's tenant, whose calls are charged to the caller's key."""
    engine = server_state.engine_for(caller.tenant, model=model)
    return engine if caller.spending_key is None else engine.with_changes(spending_key=caller.spending_key)


def require_engine(action: str) -> Callable[[Request, Caller], Awaitable[Engine]]:
    """Returns the dependency that authorizes the caller for an action and gives the caller's engine."""

    async def get_engine(request: Request, caller: Annotated[Caller, Depends(require_action(action))]) -> Engine:
        return engine_for_caller(get_server_state(request), caller)

    return get_engine


ReadEngine = Annotated[Engine, Depends(require_engine("read"))]
WriteEngine = Annotated[Engine, Depends(require_engine("write"))]
ChatEngine = Annotated[Engine, Depends(require_engine("chat"))]
EditEngine = Annotated[Engine, Depends(require_engine("edit"))]
"""For what changes the next request of an agent."""
ExportEngine = Annotated[Engine, Depends(require_engine("export"))]
TranscriptEngine = Annotated[Engine, Depends(require_engine("read_transcript"))]
SearchEngine = Annotated[Engine, Depends(require_engine("search"))]
PurgeEngine = Annotated[Engine, Depends(require_engine("purge"))]
StateDep = Annotated[ServerState, Depends(get_server_state)]
ConversationId = Annotated[str, Path(min_length=1, max_length=200, description="ID of the conversation.")]
BranchQuery = Annotated[int, Query(ge=0, le=2**31 - 1, description="Branch number. 0 is the main branch.")]
EntrySeq = Annotated[int, Path(ge=1, le=2**62, description="Sequence number of the entry on its branch.")]
ModelQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_MODEL_NAME_CHARS,
        description="Name of the model. Default: the model in the settings.",
    ),
]
PageLimit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items on the page.")]
PageCursor = Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page.")]
AfterSeq = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**62,
        description="Idempotency key: the last entry known to the client, 0 for none. The messages are recorded once, "
        "right after that entry, so that the request can be retried. 409 if other entries follow it.",
    ),
]


async def load_conversation(engine: Engine, conversation: str, branch: int = MAIN_BRANCH) -> Conversation:
    """Opens an existing conversation. Raises `NotFound` if the engine's tenant has no such conversation or branch."""
    await engine.store.get_branch(conversation, branch)
    return Conversation(engine, conversation, branch)


ItemT = TypeVar("ItemT")
PositionT = TypeVar("PositionT")


class Page(BaseModel, Generic[ItemT]):
    items: list[ItemT]
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null on the last page.")


def encode_cursor(position: Mapping[str, object] | None) -> str | None:
    """Encodes the position of a page's last item as the cursor of the next page."""
    return urlsafe_b64encode(json.dumps(position).encode()).decode() if position is not None else None


def decode_cursor(cursor: str | None, position_type: type[PositionT]) -> PositionT | None:
    """Decodes a cursor of `encode_cursor` and validates it: it comes from the client."""
    if cursor is None:
        return None
    try:
        return TypeAdapter(position_type).validate_json(urlsafe_b64decode(cursor))
    except (ValueError, ValidationError):
        raise InvalidRequest("The cursor is invalid; use `next_cursor` of a page, or start without one.") from None
