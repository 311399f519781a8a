"""Token counts of content blocks and tools in Anthropic's Messages format.

Tokens are charged by block and never by message, so that merging adjacent messages of one role does not change the sum.
"""

from quire.model.json_values import dump_json
from quire.wire.base import WireMessage
from quire.wire.fields import count_other_fields
from quire.wire.media import count_claude_image, count_file, read_encoded_size
from quire.wire.tokens import TokenCounter

# At or above what Anthropic's token counting API reports, so that a sum errs upward.
TOKENS_PER_REQUEST = 4
OPENER_TOKENS = 12
TOKENS_PER_BLOCK = 4
TOKENS_PER_CALL = 12
TOKENS_PER_RESULT = 12
TOKENS_PER_TOOL = 12
TOOL_LIST_TOKENS = 346
"""Instructions that Anthropic adds if the request has any tool."""
SIGNATURE_CHARS_PER_TOKEN = 5
"""Characters of a signature, or of redacted thinking, for each token of the thinking encrypted in it."""


def count_block(block: WireMessage, counter: TokenCounter, model: str) -> int:
    match block:
        case {"type": "text", "text": str(text)}:
            known, tokens = ("type", "text"), counter.count(text)
        case {"type": "thinking", "thinking": str(text), "signature": str(seal)}:
            known, tokens = (
                ("type", "thinking", "signature"),
                max(counter.count(text), 1 + len(seal) // SIGNATURE_CHARS_PER_TOKEN),
            )
        case {"type": "redacted_thinking", "data": str(seal)}:
            known, tokens = ("type", "data"), 1 + len(seal) // SIGNATURE_CHARS_PER_TOKEN
        case {"type": "tool_use", "name": str(name), "input": input_}:
            known, tokens = ("type", "id", "name", "input"), counter.count(name) + counter.count(dump_json(input_))
            tokens += TOKENS_PER_CALL
        case {"type": "tool_result", "content": list()}:
            content: list[WireMessage] = block["content"]
            known, tokens = ("type", "tool_use_id", "content", "is_error"), TOKENS_PER_RESULT
            tokens += sum(count_block(inner, counter, model) for inner in content)
        case {"type": "image", "source": {"type": str(), **source}}:
            known, tokens = (
                ("type", "source"),
                count_claude_image(read_encoded_size(source.get("data")), model=model),
            )
        case {"type": "document", "source": {"type": "base64" | "url", **source}}:
            known, tokens = ("type", "source"), count_file(source.get("data"))
        case _:
            known, tokens = (), 0
    return TOKENS_PER_BLOCK + tokens + count_other_fields(block, (*known, "cache_control"), counter)


def count_tool(tool: WireMessage, counter: TokenCounter) -> int:
    texts = (str(tool.get("name", "")), str(tool.get("description", "")), dump_json(tool.get("input_schema")))
    return (
        TOKENS_PER_TOOL
        + sum(map(counter.count, texts))
        + count_other_fields(tool, ("name", "description", "input_schema", "cache_control"), counter)
    )
