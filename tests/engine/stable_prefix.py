"""The beginning of a request that the next request repeats, as bytes."""

from quire.engine.request import Request


def encode_stable_prefix(request: Request) -> bytes:
    rendered = request.assembly.rendered
    head = repr((rendered.model, rendered.wire_format.name, rendered.system, rendered.tools)).encode()
    return head + b"".join(message.encoded for message in rendered.messages[: rendered.stable_messages])
