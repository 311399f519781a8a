"""Draws `quire conversation list`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.cli.output import NO_CONVERSATION, WIDE_COLUMNS, format_local_time, make_table, make_text, to_one_line
from quire.rows.conversations import ConversationListRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def draw_conversations(listed: Sequence[ConversationListRow], console: "Console") -> "Iterable[RenderableType]":
    if not listed:
        yield make_text(NO_CONVERSATION)
        return
    counts = ("entries", "branches") if console.width >= WIDE_COLUMNS else ()
    rows = [
        (
            each.id,
            to_one_line(" ".join([each.title, *(f"[{tag}]" for tag in each.tags)])),
            format_local_time(each.updated_at),
            *((each.entries, each.branches) if counts else ()),
        )
        for each in listed
    ]
    yield make_table("id", "title", "updated", *counts, rows=rows, right_aligned=counts, wrapped=("title",))
