"""Output limits of models that providers publish, and the tokens that a model may use for thinking before it answers.

The table of prices has no output limits. A model that is not listed here gets `DEFAULT_OUTPUT_TOKENS`, which every chat
model accepts.
"""

import re
from functools import lru_cache

from quire.model.policy import MAX_MODEL_NAME_CHARS

DEFAULT_OUTPUT_TOKENS = 2_048
"""Output limit of a model whose limit is unknown: the smallest one that a provider publishes for a chat model."""
DEFAULT_THINKING_OUTPUT_TOKENS = 8_192
"""Output limit of a thinking model whose limit is unknown: the smallest one that a provider publishes for those."""
THINKING_TOKENS = 8_192
"""Tokens reserved for the thinking before a summary."""

# The first match counts. The names are those of the vendors, without a provider's prefix.
_OUTPUT_LIMITS: tuple[tuple[str, int], ...] = (
    (r"gpt-4o-2024-05-13|gpt-4-(?:turbo|1106|0125|vision)|gpt-3\.5", 4_096),
    (r"gpt-4o-(?:audio|realtime|transcribe|search)|gpt-4-32k", 4_096),
    (r"(?:chatgpt-)?gpt-4o|chatgpt-4o|gpt-4\.5|gpt-[5-9][\w.]*-chat", 16_384),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4(?![\w.])", 8_192),
    (r"gpt-[5-9]", 128_000),
    (r"o1-preview", 32_768),
    (r"o1-mini", 65_536),
    (r"o[134](?![\w.])", 100_000),
    (r"claude-(?:2|instant|3-(?:opus|sonnet|haiku))", 4_096),
    (r"claude-3[.-]5", 8_192),
    (r"claude-(?:opus-4(?:-1|-0|-2025|$)|4-opus)", 32_000),
    (r"claude-(?:3[.-]7|[a-z]+-\d|4)", 64_000),
    (r"gemini-(?:1\.5|2\.0)", 8_192),
    (r"gemini-(?:2\.5|[3-9])", 65_535),
    (r"deepseek-chat", 8_192),
)
_OUTPUT_LIMIT_PATTERNS = tuple((re.compile(pattern), tokens) for pattern, tokens in _OUTPUT_LIMITS)

_THINKING_NAME = re.compile(
    r"o[134](?![\w.])|gpt-[5-9](?![\w.]*-chat)|gpt-oss|deepseek-(?:r1|reasoner)|qwq|qwen-?3|magistral|glm-(?:4\.[5-9]|[5-9])"
    r"|gemini-(?:2\.5|[3-9])|grok-(?:3-mini|4)|kimi-k2-thinking|minimax-m"
)
_THINKING_WORDS = ("thinking", "reasoning", "reasoner")


def output_limit_for(model: str) -> int:
    """Maximum tokens of one answer of this model, with its thinking."""
    published = published_output_limit_for(model)
    if published is not None:
        return published
    return DEFAULT_THINKING_OUTPUT_TOKENS if thinking_tokens_for(model) else DEFAULT_OUTPUT_TOKENS


def published_output_limit_for(model: str) -> int | None:
    name = _strip_provider(model)
    return next((tokens for pattern, tokens in _OUTPUT_LIMIT_PATTERNS if pattern.match(name)), None)


def thinking_tokens_for(model: str) -> int:
    """Tokens to reserve for thinking; 0 for a model that answers at once."""
    name = _strip_provider(model)
    thinks = _THINKING_NAME.match(name) is not None or any(word in name for word in _THINKING_WORDS)
    return THINKING_TOKENS if thinks and "non-reasoning" not in name else 0


@lru_cache(maxsize=1024)
def _strip_provider(model: str) -> str:
    """The name without prefixes such as `openai:`, `openrouter/openai/` and `us.anthropic.`; empty if it is too
    long."""
    if len(model) > MAX_MODEL_NAME_CHARS:
        return ""
    name = model.strip().lower().rpartition("/")[2]
    provider, colon, rest = name.partition(":")
    name = rest if colon and not any(map(str.isdigit, provider)) else name
    *prefixes, last = re.split(r"\.(?=[a-z])", name)
    return last if all(prefix.isalpha() for prefix in prefixes) else name
