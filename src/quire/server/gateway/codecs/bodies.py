"""Bodies of requests as JSON: parse and encode them, and read fields that a client may have set to anything."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json, to_json

from quire.view.wire_formats import WireMessage
from quire.view.wire_formats.fields import is_object


class UnreadableBody(Exception):
    """Quire cannot parse the body. It is passed through to the upstream, and not recorded."""


class RequestLimitExceeded(Exception):
    """The request exceeds a limit of the gateway. It is refused, and not forwarded."""


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body: object = from_json(raw)
    except ValueError as error:
        raise UnreadableBody(f"The body is not valid JSON: {error}.") from error
    if not is_object(body):
        raise UnreadableBody("The body is not a JSON object.")
    return body


def encode_body(body: dict[str, Any]) -> bytes:
    return to_json(body, inf_nan_mode="constants")


def get_model_name(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


def count_items(body: Mapping[str, Any], *names: str) -> int:
    return sum(len(cast("list[object]", value)) for name in names if isinstance(value := body.get(name), list))


def get_token_limit(body: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is a number of tokens."""
    limits = (body.get(name) for name in names)
    return next((each for each in limits if isinstance(each, int) and not isinstance(each, bool) and each >= 0), None)


def get_number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def list_other_fields(body: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Names of the fields that have a value and are not in `known`."""
    names = frozenset(known)
    return tuple(name for name, value in body.items() if name not in names and value is not None)


def split_instructions(
    messages: Sequence[WireMessage], *, roles: frozenset[str]
) -> tuple[Sequence[WireMessage], Sequence[WireMessage]]:
    """Splits instructions from history. If all messages are instructions, the last one is the history."""
    first = next((index for index, each in enumerate(messages) if each.get("role") not in roles), len(messages) - 1)
    return messages[:first], messages[first:]
