"""Summaries of documents: first paragraph, else model, else leading sentences; never above the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.compaction.document_summaries import extract_first_paragraph, extract_leading_sentences, summarize_document
from quire.errors import ModelRateLimited
from quire.llm import Reply
from quire.model import Message
from quire.testing.scripted_model import ScriptedModel

LONG = "The mill stands by the river. " * 30

NOTE = """---
title: Water mills
tags: [mill, river]
---
# Water mills

<!-- draft:
ignore -->
![a mill](mill.png)

Overview
--------
How mills along the river
were built, and by whom.

More text follows here.
"""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (NOTE, "How mills along the river were built, and by whom."),
        ("# Title\nText right below the title.\n", "Text right below the title."),
        (
            "```\ncode = 1\n\nmore = 2\n```\n\n- a list\n\n| a | table |\n\nAt last a line of prose.",
            "At last a line of prose.",
        ),
        (
            "\ufeff---\r\na: 1\r\n---\r\n\r\nWritten on Windows, as one can see.\r\n",
            "Written on Windows, as one can see.",
        ),
        ("---\nnot closed, so no front matter", "not closed, so no front matter"),
        ("# Only\n\n## headings", ""),
        ("", ""),
    ],
)
def test_the_first_paragraph_is_prose(text: str, first: str) -> None:
    assert extract_first_paragraph(text) == first


async def test_a_short_first_paragraph_needs_no_model() -> None:
    assert await summarize_document(NOTE, model=ScriptedModel()) == extract_first_paragraph(NOTE)


async def test_a_model_says_in_a_sentence_what_a_long_paragraph_is_about() -> None:
    model = ScriptedModel("A description\nof a mill.")
    assert await summarize_document(LONG, model=model) == "A description of a mill."
    (prompt,) = model.prompts
    assert "<quire:document key=" in prompt.messages[0].text
    assert "mill stands" not in (prompt.system or "")


async def test_of_a_huge_document_the_model_gets_the_beginning() -> None:
    model = ScriptedModel("A description of a mill.")
    await summarize_document(LONG * 1_000, model=model)
    assert len(model.prompts[0].messages[0].text) < 6_200


@pytest.mark.parametrize(
    "answer",
    [
        ModelRateLimited(),
        "",
        "I'm sorry, I can't do that.",
        "x " * 400,
        "A sentence. " + "that is longer than allowed " * 12,
        Reply(Message.assistant("A description of"), None, "length"),
    ],
)
async def test_without_a_usable_answer_the_leading_sentences_serve(answer: object) -> None:
    summary = await summarize_document(LONG, model=ScriptedModel(answer))  # type: ignore[arg-type]
    assert summary == ("The mill stands by the river. " * 10).strip()


async def test_without_a_model_the_leading_sentences_serve() -> None:
    assert await summarize_document(LONG, model=None, max_chars=65) == (
        "The mill stands by the river. The mill stands by the river."
    )
    assert await summarize_document("wordswithoutend " * 50, model=None, max_chars=40) == (
        "wordswithoutend wordswithoutend…"
    )
    assert extract_leading_sentences("The mill stands by the river. It turns.", 28) == "The mill stands by the…"
    assert await summarize_document("# Only\n\n## headings", model=None) == "Only headings"


@given(
    st.text(max_size=600)
    | st.lists(st.sampled_from(["---\n", "# a", "\n\n", "Some prose here. ", "```", "<!--", "- x"])).map("".join),
    st.integers(0, 100),
)
def test_leading_sentences_fit_on_one_line(text: str, limit: int) -> None:
    summary = extract_leading_sentences(text, limit)
    assert len(summary) <= limit
    assert len(summary.splitlines()) <= 1
    assert extract_first_paragraph(text) == "" or extract_leading_sentences(text, 10_000) != ""
