"""Pages of a list: how many at once, and a mark that says where the next page begins."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from quire.errors import InvalidRequest

T = TypeVar("T")
M = TypeVar("M")

Limit = Annotated[int, Query(ge=1, le=500, description="The most items of one page.")]
Cursor = Annotated[str | None, Query(max_length=1_000, description="`next` of the page before.")]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


def cursor_after(mark: Mapping[str, object] | None) -> str | None:
    """The cursor for what comes after the item with these fields."""
    return urlsafe_b64encode(json.dumps(mark).encode()).decode() if mark is not None else None


def mark_in(cursor: str | None, kind: type[M]) -> M | None:
    """What `cursor_after` was given, checked as a value of this kind: it comes from outside."""
    if cursor is None:
        return None
    try:
        return TypeAdapter(kind).validate_json(urlsafe_b64decode(cursor))
    except (ValueError, ValidationError):
        raise InvalidRequest("The cursor is none that a page gave; begin again without one.") from None
