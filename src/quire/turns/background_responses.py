"""Requests of background responses, stored until a server process has answered them.

A row is the only trace of a request that no process runs at the moment. It is deleted when its response is recorded,
and has an outcome if there is nothing to record: the response was cancelled, or failed.
"""

from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from quire.db.dialects import sanitize_text
from quire.db.schema import background_responses
from quire.db.store_part import StorePart, read, write
from quire.errors import InvalidRequest
from quire.log.tenant_masker import mask_text
from quire.model.ids import now

EXPIRY_SECONDS = 86_400
"""Seconds for which the outcome of a response without a reply can be read."""


class BackgroundRequest(NamedTuple):
    response: str
    conversation: str
    created_at: int
    request: str
    """JSON of the request, and of what is known of its caller."""
    outcome: str | None
    """JSON of the response that was cancelled or failed."""


def add_request(connection: Connection, tenant: str, response: str, conversation: str, request: str) -> int:
    """Stores a request, and deletes old outcomes. Returns the number of the tenant's requests without one."""
    if mask_text(connection, request) != request:
        raise InvalidRequest(
            "A background request is stored until it is answered, and this one contains a secret, which is masked "
            "before anything is stored (`tenant_masking`); send it without `background`."
        )
    columns, at = background_responses.c, now()
    is_old = (columns.created_at < at - EXPIRY_SECONDS * 1_000_000) & columns.outcome.is_not(None)
    connection.execute(delete(background_responses).where(columns.tenant == tenant, is_old))
    row = {"tenant": tenant, "response": response, "conversation": conversation, "created_at": at}
    connection.execute(insert(background_responses), row | {"request": sanitize_text(request)})
    is_open = (columns.tenant == tenant, columns.outcome.is_(None))
    return connection.execute(select(func.count()).select_from(background_responses).where(*is_open)).scalar_one()


def get_request(connection: Connection, tenant: str, response: str) -> BackgroundRequest | None:
    columns = background_responses.c
    query = select(*(columns[name] for name in BackgroundRequest._fields))
    row = connection.execute(query.where(columns.tenant == tenant, columns.response == response)).first()
    return BackgroundRequest._make(row) if row is not None else None


def set_outcome(connection: Connection, tenant: str, response: str, outcome: str) -> None:
    """Ends a response without a reply. Its request is not needed any more."""
    columns = background_responses.c
    ended = update(background_responses).where(columns.tenant == tenant, columns.response == response)
    connection.execute(ended.values(outcome=sanitize_text(mask_text(connection, outcome)), request=""))


def delete_request(connection: Connection, tenant: str, response: str) -> None:
    columns = background_responses.c
    connection.execute(delete(background_responses).where(columns.tenant == tenant, columns.response == response))


def delete_requests(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the requests of a conversation, for a purge. Their responses are not created any more."""
    columns = background_responses.c
    connection.execute(
        delete(background_responses).where(columns.tenant == tenant, columns.conversation == conversation)
    )


class BackgroundRequests(StorePart):
    """Requests of background responses."""

    add = write(add_request)
    get = read(get_request)
    set_outcome = write(set_outcome)
    delete = write(delete_request)
