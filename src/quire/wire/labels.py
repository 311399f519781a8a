"""Labels that mark text as data: summaries, memories, documents, recalled messages; and stubs of what was dropped.

The key of a label is a hash of its text, so no text can contain its own closing label (prompt injection).
"""

import json
from hashlib import sha256

LABEL_PREFIX = "quire"
MAX_STUB_CHARS = 120
"""Characters of a call in the stub of its result."""


def label_text(kind: str, text: str, **attributes: object) -> str:
    """Wraps `text`, unchanged, in an opening and a closing label."""
    key = sha256(f"{kind}\n{text}".encode()).hexdigest()[:16]
    quoted = "".join(f" {name}={_quote_attribute(value)}" for name, value in attributes.items() if value is not None)
    return f"<{LABEL_PREFIX}:{kind} key={key}{quoted}>\n{text}\n</{LABEL_PREFIX}:{kind} key={key}>"


def _quote_attribute(value: object) -> str:
    """Quotes a value on one line without `<` and `>`, so that no file name can close a label."""
    return json.dumps(str(value), ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")


def describe_drop(source: str, *, chars: int, message: int) -> str:
    """The stub of a message that the user dropped. `source` is the call of a tool result."""
    source = " ".join(source.split())
    source = source if len(source) <= MAX_STUB_CHARS else f"{source[: MAX_STUB_CHARS - 1]}…"
    return f"[dropped by the user: {source}, {chars:,} characters; read #{message}]"
