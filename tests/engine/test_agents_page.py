"""The docs page on agents runs as written, on both APIs, against a scripted provider over HTTP."""

import re
from pathlib import Path
from typing import Any

import pytest

from infra.docs_programs import DOCS, PYTHON, assert_printed, run_blocks
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, run_scripted_provider
from infra.sizes import IS_FULL_SIZE
from quire.model import events
from quire.settings import Settings

PAGES = 199 if IS_FULL_SIZE else 59
"""Of the log book, which has 199 on the page."""
SUMMARY_LABEL = "<quire:messages "
"""Label of the messages in a request for a summary."""


def play(request: ProviderRequest) -> ScriptedReply:
    """The model of the page: it decides by the newest message alone."""
    results = request.newest_results
    if not results:
        question = read_question(request.items[-1])
        is_summary = SUMMARY_LABEL in question
        return ScriptedReply("## Progress\nAll well on board. [#3]") if is_summary else call_tools(question)
    page = re.match(r"Page (\d+)\.", results[-1])
    if page is not None:
        number = int(page[1])
        if number == PAGES:
            return ScriptedReply(f"I have read {number} pages.")
        return ScriptedReply(calls=(ScriptedCall("read_page", {"number": number + 1}),))
    return ScriptedReply(f"Yes: {results[0]}." if results[0].startswith("Rain") else "; ".join(results))


def read_question(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def call_tools(question: str) -> ScriptedReply:
    if "log book" in question:
        return ScriptedReply(calls=(ScriptedCall("read_page", {"number": 1}),))
    if "Mail" in question:
        people = ("ann@example.com", "bob@example.com")
        return ScriptedReply(
            calls=tuple(ScriptedCall("send_mail", {"to": person, "text": "Hello"}) for person in people)
        )
    city = re.search(r"in (\w+)\?", question)
    assert city is not None, question
    return ScriptedReply(calls=(ScriptedCall("get_weather", {"city": city[1]}),))


@pytest.mark.slow
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path):
    text = (DOCS / "agents.md").read_text()
    blocks = list(PYTHON.finditer(text.replace("199", str(PAGES)).replace("200", str(PAGES + 1))))
    with run_scripted_provider(play) as provider:
        outputs = run_blocks(
            [each["code"] for each in blocks], tmp_path, ANTHROPIC_BASE_URL=provider.url, ANTHROPIC_API_KEY="none"
        )
    for block, output in zip(blocks, outputs, strict=True):
        assert_printed(output, block["printed"] or "")
    log_book = [request for request in provider.requests if "read_page" in request.tool_names]
    assert len(log_book) == 2 * (PAGES + 1)
    assert all("Read the whole log book." in str(request.items) for request in log_book)


def test_the_page_has_an_example_for_each_api_and_names_every_event():
    text = (DOCS / "agents.md").read_text()
    programs = [each["code"] for each in PYTHON.finditer(text)]
    assert sum("quire.sync.open(" in code for code in programs) == sum("quire.open(" in code for code in programs)
    names = [each.__name__ for each in events.TurnEvent.__args__]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert f"the setting `max_steps`, {Settings().max_steps} " in text
