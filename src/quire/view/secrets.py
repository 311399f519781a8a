"""Secrets in text: find and mask keys, tokens and passwords by their known formats.

Transcripts of agents hold credentials. What leaves Quire for another model or person is masked: MCP answers,
hand-overs, recalled messages of hooks and shared exports. The log itself is never changed; a purge erases a secret.

A text is first searched for the literal hints of the formats, so that a text without secrets costs little. Mask a text
before an excerpt is cut from it, because half a secret matches no format.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

from pydantic import JsonValue

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.view.secret_formats import (
    ASSIGNMENT,
    ASSIGNMENT_NAMES,
    CONTEXT_FORMATS,
    DISCORD_TOKEN,
    PREFIX,
    PREFIX_FORMATS,
    WORD_RUN,
)

MIN_RANDOM_CHARS = 16
"""A shorter value of an assignment is a secret only if it has the character classes of a password."""
MIN_CLASS_CHANGES = 3
"""Changes between letters and digits in a random value; words and identifiers have fewer."""
MIN_PASSWORD_CLASSES = 3
"""Of lower case, upper case, digits and symbols."""

T = TypeVar("T", bound=JsonValue)


class SecretMatch(NamedTuple):
    """The range of a secret in a text."""

    kind: str
    start: int
    end: int
    head: str = ""
    """Public start of the secret, such as `ghp_`, which a mask preserves."""

    @property
    def mask(self) -> str:
        return f"{self.head}…[masked {self.kind}]"


def find_secrets(text: str) -> list[SecretMatch]:
    """Secrets in order, without overlaps. JSON text needs no decoding: escapes are part of the formats."""
    # Specific formats come first, and the sort is stable: of two formats at the same place the specific one counts.
    candidates = sorted((*_find_prefixed(text), *_find_in_context(text), *_find_assignments(text)), key=_get_start)
    secrets: list[SecretMatch] = []
    for match in candidates:
        if secrets and match.start < secrets[-1].end:
            secrets[-1] = secrets[-1]._replace(end=max(secrets[-1].end, match.end))
        else:
            secrets.append(match)
    return secrets


def mask_secrets(text: str) -> str:
    """The text with each secret replaced by its public start and its kind. Idempotent; JSON stays valid JSON."""
    secrets = find_secrets(text)
    if not secrets:
        return text
    pieces: list[str] = []
    position = 0
    for secret in secrets:
        pieces += [text[position : secret.start], secret.mask]
        position = secret.end
    return "".join([*pieces, text[position:]])


def mask_secret_values(value: T) -> T:
    """Masks every string of a JSON value, keys of objects included."""
    return cast("T", _mask_value(value))


def mask_message(message: Message) -> Message:
    """The message with masked texts, thinking, tool calls, tool results and provider fields."""
    return Message(
        role=message.role,
        parts=tuple(_mask_part(part) for part in message.parts),
        provider_fields=mask_secret_values(message.provider_fields) if message.provider_fields else None,
        name=None if message.name is None else mask_secrets(message.name),
    )


def _get_start(match: SecretMatch) -> int:
    return match.start


def _find_prefixed(text: str) -> Iterator[SecretMatch]:
    """Tokens that begin with a prefix of their own."""
    for run in WORD_RUN.finditer(text):
        for prefix in PREFIX.finditer(text, *run.span()):
            kind, pattern = PREFIX_FORMATS[prefix[0]]
            body = pattern.match(text, prefix.end())
            if body is not None and not _is_placeholder(body[0]):
                yield SecretMatch(kind, prefix.start(), body.end(), prefix[0])


def _find_in_context(text: str) -> Iterator[SecretMatch]:
    for kind, starts, pattern, must_be_random in CONTEXT_FORMATS:
        for start in starts:
            position = text.find(start)
            while position >= 0:
                match = pattern.match(text, position)
                position = text.find(start, position + len(start) if match is None else match.end())
                if match is not None and _is_secret(match["secret"], must_be_random=must_be_random):
                    yield SecretMatch(kind, *match.span("secret"), match.groupdict().get("head") or "")
    for match in DISCORD_TOKEN.finditer(text):
        yield SecretMatch("Discord bot token", *match.span("secret"))


def _is_secret(value: str, *, must_be_random: bool) -> bool:
    return _is_random(value) if must_be_random else not _is_placeholder(value)


def _find_assignments(text: str) -> Iterator[SecretMatch]:
    # The one letter whose lower case has another length, which would move the positions.
    lowered = text.replace("\u0130", "I").lower()
    for name in ASSIGNMENT_NAMES:
        position = lowered.find(name)
        while position >= 0:
            match = ASSIGNMENT.match(text, position)
            if match is not None:
                group = "bare" if match["quoted"] is None else "quoted"
                if _is_secret_value(match[group], is_password=name == "passw"):
                    yield SecretMatch(_ASSIGNMENT_KINDS.get(name, name), *match.span(group))
            position = lowered.find(name, position + len(name))


_ASSIGNMENT_KINDS = {"passw": "password", "key": "API key"}


def _is_secret_value(value: str, *, is_password: bool) -> bool:
    if _is_placeholder(value):
        return False
    return _is_random(value) or (is_password and _count_password_classes(value) >= MIN_PASSWORD_CLASSES)


def _is_placeholder(value: str) -> bool:
    """Whether a value is filled in later: `$NAME`, `{name}`, `%s`, `***`, `xxxx`."""
    return value.startswith(("$", "{", "%", "*", "<", "[")) or len(set(value.lower())) == 1


def _is_random(value: str) -> bool:
    if len(value) < MIN_RANDOM_CHARS:
        return False
    classes = [char.isdigit() for char in value if char.isalnum()]
    return sum(left != right for left, right in pairwise(classes)) >= MIN_CLASS_CHANGES


def _count_password_classes(value: str) -> int:
    is_symbol = any(not char.isalnum() and char not in "_-./:" for char in value)
    return is_symbol + sum(any(map(test, value)) for test in (str.islower, str.isupper, str.isdigit))


def _mask_value(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return mask_secrets(value)
        case list():
            return [_mask_value(each) for each in value]
        case dict():
            return {mask_secrets(key): _mask_value(each) for key, each in value.items()}
        case _:
            return value


def _mask_part(part: Part) -> Part:
    fields = mask_secret_values(part.provider_fields) if part.provider_fields else None
    match part:
        case TextPart(text=text):
            return TextPart(text=mask_secrets(text), provider_fields=fields)
        case ThinkingPart(text=text, signature=signature, redacted=redacted):
            masked = mask_secrets(text)
            # A signature is for the exact text.
            valid_signature = signature if masked == text else None
            return ThinkingPart(text=masked, signature=valid_signature, redacted=redacted, provider_fields=fields)
        case ToolCallPart(id=id_, name=name, arguments=arguments):
            return ToolCallPart(id=id_, name=name, arguments=mask_secrets(arguments), provider_fields=fields)
        case ToolResultPart(call_id=call_id, content=content, is_error=is_error):
            masked_content = tuple(_mask_content(piece) for piece in content)
            return ToolResultPart(call_id=call_id, content=masked_content, is_error=is_error, provider_fields=fields)
        case ImagePart() | FilePart():
            return _mask_media(part)


def _mask_content(piece: TextPart | ImagePart | FilePart) -> TextPart | ImagePart | FilePart:
    return TextPart(text=mask_secrets(piece.text)) if isinstance(piece, TextPart) else _mask_media(piece)


def _mask_media(part: ImagePart | FilePart) -> ImagePart | FilePart:
    return part if part.url is None else part.model_copy(update={"url": mask_secrets(part.url)})
