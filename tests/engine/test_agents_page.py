"""The docs page on agents runs as written, on both APIs, against a scripted provider over HTTP."""

import re
from pathlib import Path
from typing import Any

import pytest
from test_docs_examples import DOCS, PYTHON, assert_printed, run_blocks

from infra.scripted_anthropic import ScriptedCall, list_results, run_scripted_anthropic
from quire.model import events
from quire.settings import Settings

PAGES = 199
SUMMARY_LABEL = "<quire:messages "
"""Label of the messages in a request for a summary."""


def play(messages: list[dict[str, Any]]) -> str | list[ScriptedCall]:
    """The model of the page: it decides by the newest message alone."""
    results = list_results(messages)
    if not results:
        question = read_question(messages[-1])
        return "## Progress\nAll well on board. [#3]" if SUMMARY_LABEL in question else call_tools(question)
    page = re.match(r"Page (\d+)\.", results[-1])
    if page is not None:
        number = int(page[1])
        return [ScriptedCall("read_page", {"number": number + 1})] if number < PAGES else f"I have read {number} pages."
    if results[0].startswith("Rain"):
        return f"Yes: {results[0]}."
    return "; ".join(results)


def read_question(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def call_tools(question: str) -> list[ScriptedCall]:
    if "log book" in question:
        return [ScriptedCall("read_page", {"number": 1})]
    if "Mail" in question:
        people = ("ann@example.com", "bob@example.com")
        return [ScriptedCall("send_mail", {"to": person, "text": "Hello"}) for person in people]
    city = re.search(r"in (\w+)\?", question)
    assert city is not None, question
    return [ScriptedCall("get_weather", {"city": city[1]})]


@pytest.mark.slow
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path):
    blocks = list(PYTHON.finditer((DOCS / "agents.md").read_text()))
    with run_scripted_anthropic(play) as (url, requests):
        outputs = run_blocks(
            [each["code"] for each in blocks], tmp_path, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="none"
        )
    for block, output in zip(blocks, outputs, strict=True):
        assert_printed(output, block["printed"] or "")
    log_book = [body for body in requests if any(tool["name"] == "read_page" for tool in body.get("tools", ()))]
    assert len(log_book) == 2 * (PAGES + 1)
    assert all("Read the whole log book." in str(body["messages"]) for body in log_book)


def test_the_page_has_an_example_for_each_api_and_names_every_event():
    text = (DOCS / "agents.md").read_text()
    programs = [each["code"] for each in PYTHON.finditer(text)]
    assert sum("quire.sync.open(" in code for code in programs) == sum("quire.open(" in code for code in programs)
    names = [each.__name__ for each in events.TurnEvent.__args__]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert f"the setting `max_steps`, {Settings().max_steps} " in text
