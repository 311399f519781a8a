"""Parses Google's Gemini format, requests and responses, into Quire messages.

A content of the user that has function responses becomes tool messages and a message of the user. Adjacent contents of
one role are one message, because clients of streams send each chunk back as a content. A part without a matching Quire
part becomes a text part that shows or names it, with the part in its provider fields, so that it is sent back
unchanged. Signatures of thoughts stay on the part that they came with.

IDs of calls are optional here. A call without one gets a digest of itself, and so does a call to which Gemini CLI gave
an ID: the log has the reply as it came, and the list that the client sends next must equal it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple, cast

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object, to_plain_json
from quire.model.messages import ToolResultContent
from quire.wire.base import Reply
from quire.wire.billed_calls import SERVER_TOOLS_FIELD, WEB_SEARCHES_FIELD
from quire.wire.fields import MADE_ID_PREFIX, collect_unknown_fields
from quire.wire.gemini import FORMAT
from quire.wire.media import build_data_url

RESULT_FIELD, ERROR_FIELD = "output", "error"
"""Fields of a function response that has one text."""
RESULT_FORM = "form"
"""Provider field of a result: the name of another field that has its only text, or `JSON_FORM`."""
JSON_FORM = "json"
"""Form of a result whose text is the JSON of the whole response."""

_ID_DIGEST_CHARS = 16
_CLIENT_ID = re.compile(r"[-_]\d{10,20}[-_][0-9a-f]{1,20}", re.ASCII)
"""What follows the name of the function in an ID by Gemini CLI: a time in milliseconds, and a number."""
_URL_SAFE_CHARS = str.maketrans("-_", "+/")
_ROLES = {"user": "user", "function": "user", "model": "model", None: "user"}
_PART_FIELDS = ("thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution")
"""Fields of a part other than its content."""
_USAGE_FIELDS = (
    "promptTokenCount", "candidatesTokenCount", "totalTokenCount", "cachedContentTokenCount", "toolUsePromptTokenCount",
)  # fmt: skip
_ENVELOPE_FIELDS = ("candidates", "usageMetadata", "modelVersion")
_SOURCE_FIELDS = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
"""Fields of a candidate that name the sources of its text."""
_BILLED_BY_PROMPT = re.compile(r"(models/)?gemini-[12]\b", re.ASCII)
"""Models for which Google bills a prompt with any number of searches once. Newer ones are billed by the search."""
MAX_COUNT = 10**10


class _PendingCall(NamedTuple):
    """A call of the last reply that has no result yet."""

    wire_id: str | None
    name: str
    id: str


def parse_reply(response: object) -> Reply:
    """Parses a response with one candidate. One whose prompt was blocked has an empty reply."""
    body = to_plain_json(response)
    if not is_object(body):
        raise InvalidEntry("The response is not an object, so it contains no reply.")
    candidates = filter_objects(body.get("candidates"))
    blocked = get_text(get_object(body, "promptFeedback"), "blockReason")
    if not candidates and blocked is None:
        raise InvalidEntry("The response has no candidates, so it contains no reply; see the provider's error.")
    candidate = candidates[0] if candidates else {"finishReason": blocked}
    parts = filter_objects(get_object(candidate, "content").get("parts"))
    message = Message(role="assistant", parts=tuple(_parse_reply_parts(parts)))
    return Reply(message, parse_usage(body), get_text(candidate, "finishReason"))


def parse_usage(body: dict[str, Any]) -> Usage | None:
    """The usage of a response, with its searches and the sources that they found.

    The prompt includes cached tokens. Thoughts are stated apart from the candidates.
    """
    if not is_object(counts := body.get("usageMetadata")):
        return None

    def read(name: str) -> int:
        value = counts.get(name)
        return value if isinstance(value, int) and 0 <= value <= MAX_COUNT else 0

    others = {key: value for key, value in body.items() if key not in _ENVELOPE_FIELDS and value is not None}
    fields: dict[str, Any] = {key: value for key, value in counts.items() if key not in _USAGE_FIELDS}
    searches: list[object] = []
    for candidate in filter_objects(body.get("candidates")):
        if (reason := get_text(candidate, "finishReason")) not in (None, "STOP"):
            others["finishReason"] = reason
        for name in _SOURCE_FIELDS:
            if source := get_object(candidate, name):
                # The entry point is a page of HTML for showing the searches.
                others[name] = {key: value for key, value in source.items() if key != "searchEntryPoint"}
        queries = get_object(candidate, "groundingMetadata").get("webSearchQueries")
        searches += [each for each in cast("list[object]", queries) if each] if isinstance(queries, list) else []
    if searches:
        is_billed_once = _BILLED_BY_PROMPT.match(get_text(body, "modelVersion") or "") is not None
        fields[SERVER_TOOLS_FIELD] = {WEB_SEARCHES_FIELD: 1 if is_billed_once else len(searches)}
    return Usage(
        model=get_text(body, "modelVersion"),
        input_tokens=read("promptTokenCount") + read("toolUsePromptTokenCount"),
        output_tokens=read("candidatesTokenCount") + read("thoughtsTokenCount"),
        cache_read_tokens=min(read("cachedContentTokenCount"), read("promptTokenCount")),
        provider_fields={**fields, "response": others},
    )


class ContentRun(NamedTuple):
    """Adjacent contents of one role."""

    role: str
    parts: list[dict[str, Any]]


def group_contents(contents: Sequence[object]) -> Iterator[ContentRun]:
    """Joins adjacent contents of one role. Raises `InvalidEntry` for a content without a known role."""
    for index, content in enumerate(contents):
        if not is_object(content) or content.get("role") not in _ROLES:
            role = content.get("role") if is_object(content) else None
            raise InvalidEntry(f"Content {index} has the role {role!r}; use user or model.")
    for role, run in groupby(filter_objects(list(contents)), key=lambda content: _ROLES[content.get("role")]):
        yield ContentRun(role, [part for content in run for part in filter_objects(content.get("parts"))])


def drop_repeated_results(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts without results that are there twice: Gemini CLI sends them for a session that it resumes."""
    answered: dict[str, dict[str, Any]] = {}
    remaining: list[dict[str, Any]] = []
    for part in parts:
        result = get_object(part, "functionResponse")
        id_ = get_text(result, "id")
        if id_ is None or answered.get(id_) != result:
            remaining.append(part)
        if id_ is not None:
            answered[id_] = result
    return remaining


class ContentParser:
    """Parses the runs of a list in order: a result names the call before it."""

    def __init__(self) -> None:
        self._pending: list[_PendingCall] = []

    def parse(self, run: ContentRun) -> list[Message]:
        if run.role == "model":
            parts = tuple(_parse_reply_parts(run.parts))
            wire_calls = (part["functionCall"] for part in run.parts if is_object(part.get("functionCall")))
            calls = [part for part in parts if isinstance(part, ToolCallPart)]
            self._pending = [
                _PendingCall(get_text(wire, "id"), call.name, call.id)
                for wire, call in zip(wire_calls, calls, strict=True)
            ]
            return [Message(role="assistant", parts=parts)] if parts else []
        messages: list[Message] = []
        for is_result, group in groupby(
            drop_repeated_results(run.parts), key=lambda part: is_object(part.get("functionResponse"))
        ):
            if is_result:
                messages += [Message(role="tool", parts=(self._parse_result(part),)) for part in group]
            else:
                messages.append(Message(role="user", parts=tuple(map(_parse_content, group))))
        return messages

    def _parse_result(self, part: dict[str, Any]) -> ToolResultPart:
        result = get_object(part, "functionResponse")
        wire_id, name = get_text(result, "id"), get_text(result, "name") or ""
        matches = (
            [each for each in self._pending if wire_id and each.wire_id == wire_id]
            or [each for each in self._pending if each.name == name and not (wire_id and each.wire_id)]
            or [each for each in self._pending if wire_id and each.id == _normalize_id(wire_id, name)]
        )
        call_id = matches[0].id if matches else _normalize_id(wire_id, name) or f"{MADE_ID_PREFIX}{name}"
        if matches:
            self._pending.remove(matches[0])
        fields = (collect_unknown_fields(result, ("id", "name", "response", "parts"), FORMAT) or {}).get(FORMAT, {})
        fields = {"name": name, **(fields if is_object(fields) else {})}
        response = get_object(result, "response")
        match response:
            case {"output": str(text)} if len(response) == 1:
                is_error = False
            case {"error": str(text)} if len(response) == 1:
                is_error = True
            case _:
                is_error, text = False, dump_json(response)
                fields[RESULT_FORM] = JSON_FORM
                if len(response) == 1:
                    (key, value), *_ = response.items()
                    if isinstance(value, str) and key != JSON_FORM:
                        fields[RESULT_FORM], text = key, value
        media = [_parse_content(each) for each in filter_objects(result.get("parts"))]
        return ToolResultPart(
            call_id=call_id,
            content=(TextPart(text=text), *media),
            is_error=is_error,
            provider_fields={FORMAT: fields},
        )


def parse_messages(contents: Sequence[object], *, system: object = None) -> list[Message]:
    """Parses the contents of a request. Each function response becomes a tool message."""
    plain = to_plain_json(system) if system else None
    texts = plain if isinstance(plain, str) else "\n\n".join(list_texts(plain) if is_object(plain) else ())
    messages = [Message(role="system", parts=(TextPart(text=texts),))] if texts else []
    parser = ContentParser()
    for run in group_contents([to_plain_json(content) for content in contents]):
        messages += parser.parse(run)
    return messages


def list_texts(content: dict[str, Any]) -> list[str]:
    """The texts of a content, without thoughts."""
    parts = filter_objects(content.get("parts"))
    return [text for part in parts if not part.get("thought") and (text := get_text(part, "text"))]


def _normalize_id(id_: str | None, name: str) -> str | None:
    """The ID of a call as the provider gave it, or None if the client made it."""
    own = (id_ or "").removeprefix(f"{name}__")
    return own if own and not (own.startswith(name) and _CLIENT_ID.fullmatch(own, len(name))) else None


def read_call_id(call: dict[str, Any]) -> str:
    """The ID of a call, or a digest of the call if the provider gave none. Equal calls have the same digest."""
    name = get_text(call, "name") or ""
    if (id_ := _normalize_id(get_text(call, "id"), name)) is not None:
        return id_
    text = json.dumps([name, call.get("args") or {}], sort_keys=True)
    return f"{MADE_ID_PREFIX}{sha256(text.encode()).hexdigest()[:_ID_DIGEST_CHARS]}"


def _parse_reply_parts(raw_parts: Sequence[dict[str, Any]]) -> list[Part]:
    """Parses the parts of a reply. Adjacent pieces of a text without a signature are one text, as in no stream."""
    parts: list[Part] = []
    for raw in raw_parts:
        match raw:
            case {"functionCall": dict()}:
                call = get_object(raw, "functionCall")
                parts.append(
                    ToolCallPart(
                        id=read_call_id(call),
                        name=get_text(call, "name") or "",
                        arguments=dump_json(call.get("args") or {}),
                        provider_fields=collect_unknown_fields(raw, ("functionCall",), FORMAT),
                    )
                )
            case {"text": str(text), "thought": True}:
                fields = collect_unknown_fields(raw, ("text", "thought"), FORMAT)
                _append_text(parts, ThinkingPart(text=text, provider_fields=fields))
            case {"text": str(text)} if not text and not raw.get("thoughtSignature"):
                pass
            case {"text": str(text)}:
                _append_text(parts, TextPart(text=text, provider_fields=_collect_text_fields(raw)))
            case _:
                parts.append(_parse_content(raw))
    return parts


def _append_text(parts: list[Part], part: TextPart | ThinkingPart) -> None:
    last = parts[-1] if parts else None
    if isinstance(last, type(part)) and last.provider_fields is None:
        parts[-1] = last.model_copy(update={"text": last.text + part.text, "provider_fields": part.provider_fields})
    else:
        parts.append(part)


def _collect_text_fields(raw: dict[str, Any]) -> dict[str, Any] | None:
    return collect_unknown_fields(raw, ("text", *(["thought"] if not raw.get("thought") else [])), FORMAT)


def _parse_content(raw: dict[str, Any]) -> ToolResultContent:
    """Parses a text, an image or a file, if Quire's parts can hold it."""
    match raw:
        case {"text": str(text)}:
            return TextPart(text=text, provider_fields=_collect_text_fields(raw))
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}} if data:
            blob = get_object(raw, "inlineData")
            fields = collect_unknown_fields(raw, ("inlineData",), FORMAT)
            return _make_media(
                build_data_url(kind, to_standard_base64(data)), kind, get_text(blob, "displayName"), fields
            )
        case {"fileData": {"fileUri": str(url)}} if url:
            file = get_object(raw, "fileData")
            fields = collect_unknown_fields(raw, ("fileData",), FORMAT)
            return _make_media(url, get_text(file, "mimeType"), get_text(file, "displayName"), fields)
        case _:
            kind = next((name for name in raw if name not in _PART_FIELDS), "empty")
            value = raw.get(kind)
            text = (get_text(value, "code") or get_text(value, "output")) if is_object(value) else None
            return TextPart(text=text or f"[{kind}]", provider_fields={FORMAT: {"type": kind, **raw}})


def to_standard_base64(data: str) -> str:
    """The same bytes in the alphabet that every provider reads: Google's own clients send the one for URLs."""
    return data.translate(_URL_SAFE_CHARS) + "=" * (-len(data) % 4) if "-" in data or "_" in data else data


def _make_media(
    url: str, media_type: str | None, name: str | None, fields: dict[str, Any] | None
) -> ImagePart | FilePart:
    if media_type is not None and media_type.startswith("image/"):
        return ImagePart(url=url, media_type=media_type, provider_fields=fields)
    return FilePart(url=url, media_type=media_type, name=name, provider_fields=fields)
