"""Resources: conversations, their messages, summaries and requests as URIs, and the completion of their ids."""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from mcp_types import Completion, Resource, ResourceTemplate

from quire.errors import InvalidRequest, NotFound
from quire.log.types import MAIN_BRANCH, ConversationRecord
from quire.mcp_server import history
from quire.mcp_server.access import HistoryAccess
from quire.mcp_server.answers import DATA_NOTICE
from quire.mcp_server.arguments import MAX_ID_CHARS, MAX_READ_TOKENS, HistoryReadCall
from quire.mcp_server.tools import explain_request
from quire.model import Compaction
from quire.view.labels import label_text

URI_PREFIX = "quire://conversations/"
RESOURCE_PAGE_SIZE = 50
MAX_COMPLETIONS = 50
"""Values of one completion; the protocol allows 100."""
MAX_COMPLETED_CONVERSATIONS = 200
"""Recently used conversations among which an id is completed."""
MAX_URI_CHARS = 3 * MAX_ID_CHARS + 100
MAX_SUMMARY_CHARS = 30_000
"""Characters of a summary in a resource, about 7,500 tokens."""

_URI = re.compile(r"quire://conversations/([^/?#]+)(?:/(messages|requests)/([0-9]{1,15})|/(summary))?", re.ASCII)

TEMPLATES = tuple(
    ResourceTemplate(uri_template=f"{URI_PREFIX}{{id}}{path}", name=name, description=description, mime_type=mime_type)
    for path, name, description, mime_type in (
        ("", "conversation", "The newest messages of a conversation.", "text/plain"),
        ("/messages/{n}", "message", "One message.", "text/plain"),
        ("/summary", "summary", "The summary of the messages that a compaction archived.", "text/plain"),
        ("/requests/{n}", "request", "What the model request of reply {n} had in its context.", "application/json"),
    )
)


class ResourceContent(NamedTuple):
    text: str
    mime_type: str = "text/plain"


class _Address(NamedTuple):
    conversation: str
    kind: str
    number: int


def conversation_uri(conversation: str) -> str:
    return f"{URI_PREFIX}{quote(conversation, safe='')}"


async def list_resources(access: HistoryAccess, cursor: str | None) -> tuple[list[Resource], str | None]:
    """One page of conversations, the most recently used first, and the cursor of the next page."""
    store = access.engine.store
    before = await store.get_conversation(cursor[:MAX_ID_CHARS]) if cursor else None
    records = await store.list_conversations(limit=RESOURCE_PAGE_SIZE, before=before, main_only=True)
    resources = [
        Resource(
            uri=conversation_uri(each.id),
            name=access.to_label(each.title) or each.id,
            description=_describe_origin(access, each),
            mime_type="text/plain",
        )
        for each in await access.load_titles(*records)
    ]
    return resources, records[-1].id if len(records) == RESOURCE_PAGE_SIZE else None


def _describe_origin(access: HistoryAccess, record: ConversationRecord) -> str | None:
    origin = record.origin
    facts = (access.to_label(origin.client), access.to_label(origin.project)) if origin is not None else ()
    return ", ".join(fact for fact in facts if fact) or None


async def read_resource(access: HistoryAccess, uri: str) -> ResourceContent:
    address = _parse_uri(uri)
    match address.kind:
        case "messages":
            arguments = {"conversation": address.conversation, "from": address.number, "start": 0}
            call = HistoryReadCall.model_validate({**arguments, "max_tokens": MAX_READ_TOKENS})
            return ResourceContent((await history.read(access, call)).render())
        case "requests":
            answer = await explain_request(access, address.conversation, address.number, branch=MAIN_BRANCH)
            return ResourceContent(json.dumps(answer.to_json(), ensure_ascii=False), "application/json")
        case "summary":
            return await _read_summary(access, address.conversation)
        case _:
            call = HistoryReadCall(conversation=address.conversation, max_tokens=MAX_READ_TOKENS)
            return ResourceContent((await history.read(access, call)).render())


def _parse_uri(uri: str) -> _Address:
    match = _URI.fullmatch(uri[: MAX_URI_CHARS + 1]) if len(uri) <= MAX_URI_CHARS else None
    conversation = unquote(match[1], errors="replace") if match is not None else ""
    if match is None or len(conversation) > MAX_ID_CHARS or not conversation.isprintable():
        raise InvalidRequest(
            f"The URI is none of Quire's; the forms are {', '.join(each.uri_template for each in TEMPLATES)}."
        )
    return _Address(conversation, match[2] or match[4] or "", int(match[3] or 0))


async def _read_summary(access: HistoryAccess, conversation: str) -> ResourceContent:
    window = await access.engine.store.read_window(conversation, max_tokens=0)
    body = window.compaction.body if window.compaction is not None else None
    if not isinstance(body, Compaction) or not body.summary:
        raise NotFound(
            f"The conversation {conversation!r} has no summary, because nothing of it is archived; "
            f"read {conversation_uri(conversation)}."
        )
    text = access.mask(body.summary)[:MAX_SUMMARY_CHARS]
    return ResourceContent(f"{DATA_NOTICE}\n{label_text('summary', text, conversation=conversation)}")


async def complete_argument(
    access: HistoryAccess, name: str, value: str, resolved: Mapping[str, str], *, template: str
) -> Completion:
    """Completes the id of a conversation by its beginning or its title, or the number of a message or reply."""
    if name in ("id", "conversation"):
        values = await _complete_ids(access, value[:MAX_ID_CHARS])
    elif name == "n" and "id" in resolved:
        values = await _complete_numbers(
            access, resolved["id"][:MAX_ID_CHARS], value, of_replies="/requests/" in template
        )
    else:
        values = []
    return Completion(values=values[:MAX_COMPLETIONS], total=len(values), has_more=len(values) > MAX_COMPLETIONS)


async def _complete_ids(access: HistoryAccess, value: str) -> list[str]:
    records = await access.engine.store.list_conversations(limit=MAX_COMPLETED_CONVERSATIONS, main_only=True)
    titled = await access.load_titles(*records)
    matching = [each.id for each in titled if each.id.startswith(value)]
    by_title = [each.id for each in titled if value and value.lower() in each.title.lower()]
    return list(dict.fromkeys([*matching, *by_title]))


async def _complete_numbers(access: HistoryAccess, conversation: str, value: str, *, of_replies: bool) -> list[str]:
    store = access.engine.store
    if of_replies:
        numbers = [seq for seq, _ in await store.list_manifests(conversation, limit=MAX_COMPLETIONS)]
    else:
        tail = await store.read_tail(conversation, MAX_COMPLETIONS, kinds=["message"])
        numbers = [entry.seq for entry in tail]
    return [str(each) for each in reversed(numbers) if str(each).startswith(value)]
