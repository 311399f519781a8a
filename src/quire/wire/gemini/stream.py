"""Streams of Google's Gemini API: decodes an upstream's chunks.

A stream is a list of responses, each with the next parts of the candidates: as events with `alt=sse`, else as one JSON
list. The last chunk of a candidate has its finish reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from quire.errors import InvalidEntry, ModelUnavailable
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.wire import Reply, WireMessage
from quire.wire.gemini.parse import parse_reply, read_call_id
from quire.wire.replies import (
    MAX_DELTA_ITEMS,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    StreamDecoder,
    TextPieces,
    join_texts,
)

MAX_CANDIDATES = 8
"""Maximum candidates of a request, the maximum of Google."""
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED",
    404: "NOT_FOUND", 409: "ABORTED", 413: "INVALID_ARGUMENT", 422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_RPC_TYPES = "type.googleapis.com/google.rpc"


def build_status(status: int, detail: str, *, code: str, retry_after: str | None = None) -> dict[str, Any]:
    """Google's `error` object."""
    kind = _STATUSES.get(status, "INVALID_ARGUMENT" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "INTERNAL")
    details = [{"@type": f"{_RPC_TYPES}.ErrorInfo", "reason": code.upper(), "domain": "quire"}]
    if retry_after is not None:
        details.append({"@type": f"{_RPC_TYPES}.RetryInfo", "retryDelay": f"{retry_after}s"})
    return {"code": status, "message": detail, "status": kind, "details": details}


@dataclass(slots=True)
class _CandidateAccumulator:
    """One reply, as far as it has arrived. Its texts are `TextPieces`."""

    parts: list[WireMessage] = field(default_factory=list[WireMessage])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """All fields of the candidate but its content."""
    call_count: int = 0

    def add(self, part: WireMessage) -> None:
        last = self.parts[-1] if self.parts else None
        text = get_text(part, "text")
        # Pieces of one text: nothing else is in either of them.
        if text is not None and last is not None and last.keys() == part.keys() <= {"text", "thought"}:
            last["text"].add(text)
        elif len(self.parts) >= MAX_DELTA_ITEMS:
            raise ModelUnavailable(f"The upstream sent a reply of more than {MAX_DELTA_ITEMS:,} parts; retry.")
        else:
            self.parts.append({**part, "text": TextPieces([text])} if text is not None else part)


class GeminiStreamDecoder(StreamDecoder):
    """Accumulates one stream with `candidate_count` replies. It ends with the connection: nothing marks its end."""

    def __init__(self, candidate_count: int = 1, *, is_translated: bool = False) -> None:
        super().__init__(is_translated=is_translated)
        self._candidates: dict[int, _CandidateAccumulator] = {}
        self._candidate_count = candidate_count
        self._fields: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        ended = sum("finishReason" in each.fields for each in self._candidates.values())
        return ended >= self._candidate_count or bool(get_object(self._fields, "promptFeedback").get("blockReason"))

    @property
    def is_done(self) -> bool:
        return False

    def build_replies(self) -> list[Reply]:
        if not self._fields and not self._candidates:
            return []
        replies: list[Reply] = []
        for response in self.build_responses():
            try:
                replies.append(parse_reply(response))
            except (InvalidEntry, ValueError):
                continue
        return replies

    def build_responses(self) -> list[dict[str, Any]]:
        """One response for each candidate. One without any if the prompt was blocked."""
        candidates = [
            join_texts({**each.fields, "content": {"role": "model", "parts": each.parts}})
            for _, each in sorted(self._candidates.items())
        ]
        fields = join_texts(self._fields)
        return [{**fields, "candidates": [each]} for each in candidates] or [fields]

    def add_event(self, data: dict[str, Any]) -> None:
        if is_object(data.get("error")):
            self.error = data
            return
        self._fields |= {name: value for name, value in data.items() if name != "candidates" and value is not None}
        for candidate in filter_objects(data.get("candidates")):
            index = candidate.get("index")
            index = index if isinstance(index, int) else 0
            if index not in self._candidates and len(self._candidates) >= MAX_CANDIDATES:
                raise ModelUnavailable(f"The upstream sent more than {MAX_CANDIDATES} candidates; retry the request.")
            known = self._candidates.setdefault(index, _CandidateAccumulator())
            known.fields |= {
                name: value for name, value in candidate.items() if name != "content" and value is not None
            }
            for part in filter_objects(get_object(candidate, "content").get("parts")):
                known.add(part)
                if self.is_translated:
                    self._emit_delta(part, known)

    def _emit_delta(self, part: WireMessage, candidate: _CandidateAccumulator) -> None:
        if text := get_text(part, "text"):
            self.emit(ReplyThinking(text) if part.get("thought") is True else ReplyText(text))
        elif is_object(call := part.get("functionCall")):
            arguments = dump_json(call.get("args") or {})
            self.emit(ReplyToolCall(candidate.call_count, read_call_id(call), get_text(call, "name") or "", arguments))
            candidate.call_count += 1


def join_chunks(chunks: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The response of a stream that is one JSON list, or None if it is empty."""
    decoder = GeminiStreamDecoder(MAX_CANDIDATES)
    for chunk in chunks:
        decoder.add_event(chunk)
    responses = decoder.build_responses()
    candidates = [candidate for each in responses for candidate in filter_objects(each.get("candidates"))]
    return {**responses[0], "candidates": candidates} if responses[0] else None
