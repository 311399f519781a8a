"""Labels around text that is data: summaries, memories, documents, recalled messages.

A label's key comes from the text between its ends, so no text can hold the end of its own label.
"""

import json
from hashlib import sha256

PREFIX = "quire"


def labelled(kind: str, text: str, **attributes: object) -> str:
    """`text`, untouched, between two lines that say what it is."""
    key = sha256(f"{kind}\n{text}".encode()).hexdigest()[:16]
    described = "".join(f" {name}={_quoted(value)}" for name, value in attributes.items() if value is not None)
    return f"<{PREFIX}:{kind} key={key}{described}>\n{text}\n</{PREFIX}:{kind} key={key}>"


def _quoted(value: object) -> str:
    """On one line and without the signs that end a label, whatever a file is called."""
    return json.dumps(str(value), ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
