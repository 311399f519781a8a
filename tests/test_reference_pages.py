"""The library reference describes every argument, and the generated pages are those that their sources give."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import reference_pages  # noqa: E402

ENGINE_METHODS = ("conversation", "search", "subscribe", "with_changes")
REQUEST_METHODS = ("to_chat", "to_messages", "to_responses")
FUNCTIONS: list[Callable[..., Any]] = [
    quire.open,
    quire.tool,
    quire.register_strategy,
    quire.Strategy.choose_cut,
    *(getattr(quire.Engine, name) for name in ENGINE_METHODS),
    *(getattr(quire.Request, name) for name in REQUEST_METHODS),
    *(function for name, function in inspect.getmembers(quire.Conversation, inspect.isfunction) if name[0] != "_"),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_the_reference_describes_every_argument(function: Callable[..., Any]):
    described = inspect.getdoc(function) or ""
    if "Takes the arguments of `send`." in described:
        assert inspect.signature(function).parameters == inspect.signature(quire.Conversation.send).parameters
        return
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert re.findall(r"^ {4}(\w+): ", described.partition("Args:")[2], re.MULTILINE) == names


@pytest.mark.parametrize(("name", "text"), reference_pages.render_pages().items())
def test_a_page_is_as_new_as_its_source(name: str, text: str):
    assert (ROOT / "docs" / name).read_text() == text, "run `python tools/reference_pages.py`"
