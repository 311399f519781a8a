"""Characters of a stored text that a terminal or a viewer would obey instead of showing them."""

import re

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, which could move the cursor or set colors, and characters that change the text direction or
break a line."""


def escape_control_characters(text: str) -> str:
    """Writes them as JSON does, such as `\\u202e`."""
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
