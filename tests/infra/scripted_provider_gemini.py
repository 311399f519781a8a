"""Replies of the scripted provider in Google's Gemini format."""

import json
from collections.abc import Iterator, Sequence

from infra.scripted_provider_formats import (
    Json,
    ReplyContext,
    ScriptedError,
    ScriptedReply,
    get_input_tokens,
    split_words,
)


class GeminiEncoder:
    """Google's `generateContent`. The first of parallel calls has the signature of the thoughts, as Google sends it."""

    def encode_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]:
        for chunk in self.make_chunks(reply, context):
            yield f"data: {json.dumps(chunk)}\r\n\r\n".encode()

    def make_chunks(self, reply: ScriptedReply, context: ReplyContext) -> list[Json]:
        chunks: list[Json] = []
        for part in self._make_parts(reply, context):
            pieces = [{**part, "text": word} for word in split_words(part["text"])] if "text" in part else [part]
            chunks += [self._make_response([piece], context) for piece in pieces]
        end = self._make_response([{"text": ""}], context, finish="STOP")
        return [*chunks, end | {"usageMetadata": self._make_usage(reply, context)} | reply.fields]

    def make_body(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        body = self._make_response(self._make_parts(reply, context), context, finish="STOP")
        return body | {"usageMetadata": self._make_usage(reply, context)} | reply.fields

    def _make_parts(self, reply: ScriptedReply, context: ReplyContext) -> Sequence[Json]:
        if reply.content:
            return reply.content
        parts: list[Json] = [{"text": reply.thinking, "thought": True}] if reply.thinking else []
        parts += [{"text": reply.text}] if reply.text else []
        for index, call in enumerate(reply.calls):
            body = {"id": context.make_id("call_", index), "name": call.name, "args": call.arguments}
            signature = {"thoughtSignature": context.make_id("c2ln")} if reply.thinking and index == 0 else {}
            parts.append({"functionCall": body, **signature})
        return parts

    def _make_response(self, parts: Sequence[Json], context: ReplyContext, finish: str | None = None) -> Json:
        candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return {"candidates": [candidate], "modelVersion": context.model, "responseId": context.make_id("resp_")}

    def _make_usage(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        sent = get_input_tokens(reply, context)
        return {
            "promptTokenCount": sent,
            "candidatesTokenCount": reply.usage.output_tokens,
            "totalTokenCount": sent + reply.usage.output_tokens,
            **({"cachedContentTokenCount": reply.usage.cached_tokens} if reply.usage.cached_tokens else {}),
        }

    def make_error(self, error: ScriptedError, context: ReplyContext) -> Json:
        return {"error": {"code": error.status, "message": error.message, "status": error.type}}

    def make_overflow(self, *, tokens: int, window_tokens: int) -> ScriptedError:
        detail = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window_tokens})."
        return ScriptedError(400, "INVALID_ARGUMENT", detail)
