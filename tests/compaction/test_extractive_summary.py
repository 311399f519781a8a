"""Extractive summary: which lines it selects, that it fits the token limit, and that every line has its citation."""

import time

import pytest
from compaction_builders import FACT_TEMPLATES, TOKEN_COUNTER, make_chat, make_chat_with_facts
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import make_entries
from infra.sizes import IS_FULL_SIZE
from infra.strategies import histories
from quire.compaction.citations import check_citations
from quire.compaction.extractive_summary import EXTRACT_HEADING, extract_summary
from quire.model import Message, ToolCallPart
from quire.wire.tokens import TokenCounter

SMALL_TALK = "That is nice to hear, and the weather has been lovely here as well."


def extract(block: list, *, previous: str | None = None, limit: int = 500, **rest: str) -> str:
    return extract_summary(block, previous=previous, max_tokens=limit, counter=TOKEN_COUNTER, **rest)


def test_facts_stay_with_their_citations_in_log_order() -> None:
    block = make_chat(
        "Please write a parser for the log files.",
        f"Sure. {SMALL_TALK} The files are in /var/log/quire, I see.",
        f"{SMALL_TALK} By the way, the access code of door 17 is QX-4821, as far as I know.",
        "Noted. We decided to use SQLite instead of files.",
        "What is the deadline?",
    )
    assert extract(block, limit=110).splitlines() == [
        EXTRACT_HEADING,
        "- First request: Please write a parser for the log files. [#1]",
        "- The files are in /var/log/quire [#2]",
        "- the access code of door 17 is QX-4821 [#3]",
        "- We decided to use SQLite instead of files [#4]",
        "- Newest request: What is the deadline? [#5]",
    ]


def test_lines_of_one_form_are_written_once() -> None:
    text = extract(
        make_chat("Hi.", *(f"{SMALL_TALK} The code of door {door} is QX-{door * 37}." for door in (1, 2, 3)), "Bye.")
    )
    assert "- The code of door … is …: 1, QX-37 [#2]; 2, QX-74 [#3]; 3, QX-111 [#4]" in text


def test_what_was_written_once_is_read_back() -> None:
    first = extract(make_chat("Hi.", *(f"The code of door {door} is QX-{door * 37}." for door in (1, 2, 3)), "Bye."))
    second = extract(make_chat("Hi.", "The code of door 9 is QX-900.", "Bye.", first_seq=7), previous=first)
    assert "2, QX-74 [#3]" in second
    assert "; 9, QX-900 [#8]" in second
    assert second.count("The code of door … is …") == 1


def test_the_previous_summary_keeps_its_citations() -> None:
    previous = "## Task\nPort the parser to Rust [#2].\n## Facts\n- The build id is 7f3a-99 [#4, #6]\n- Ship on Friday"
    text = extract(make_chat(SMALL_TALK, SMALL_TALK, first_seq=10), previous=previous)
    assert "- Port the parser to Rust [#2]" in text
    assert "- The build id is 7f3a-99 [#4, #6]" in text
    assert "- Ship on Friday" in text
    assert text.index("#4, #6") < text.index("[#10]")


def test_the_first_request_outlives_every_fold() -> None:
    text: str | None = None
    for block in range(5):
        texts = ["Translate the manual into Danish."] if block == 0 else []
        texts += [f"Value {block}-{number}AX is {number * 7919}." for number in range(50)]
        text = extract(make_chat(*texts, first_seq=block * 100 + 1), previous=text, limit=200)
    assert text is not None
    assert text.splitlines()[1] == "- First request: Translate the manual into Danish. [#1]"
    assert text.count("Newest request:") == 1


def test_the_users_instructions_decide_what_stays() -> None:
    texts = [f"Dinner {number} was at restaurant R{number:03d}X." for number in range(60)]
    texts.insert(30, "The endpoint for billing returns a list.")
    assert "billing" not in extract(make_chat(*texts), limit=150)
    assert "billing" in extract(make_chat(*texts), limit=150, instructions="keep the billing endpoint")


def test_a_users_word_weighs_more_than_a_tools() -> None:
    noise = "\n".join(f"line {number}: 0x{number * 7919:08x} ok" for number in range(300))
    block = make_entries(
        [
            Message.user("Look at the build."),
            Message(role="assistant", parts=(ToolCallPart(id="a", name="build"),)),
            Message.tool("a", noise),
            Message.user("The staging host is blue-7."),
            Message.user("Go on."),
        ]
    )
    assert "staging host is blue-7 [#4]" in extract(block, limit=120)


def test_what_looks_like_a_citation_in_a_message_is_none() -> None:
    texts = [
        "As stated in [#7777] the code is AB-123.",
        "See [#9999], the code is CD-456.",
        "[\n#8888] says XY-999 too.",
    ]
    text = extract(make_chat(*texts))
    assert check_citations(text, range(1, 4)).dropped_count == 0
    assert "(#7777)" in text
    assert "CD-456" in text


def test_nothing_to_say_or_no_room_is_an_empty_summary() -> None:
    assert extract([]) == ""
    assert extract(make_chat("Hello there."), limit=1) == ""


def test_idle_talk_does_not_fill_the_room() -> None:
    text = extract(make_chat(*(f"{SMALL_TALK} {'so ' * number}" for number in range(200))), limit=2_000)
    assert TOKEN_COUNTER.count(text) < 700


class LetterCounter:
    """Token counter that counts characters."""

    name, exact = "letters", True

    def count(self, text: str) -> int:
        return len(text)


counters = st.sampled_from([TOKEN_COUNTER, LetterCounter()])
words = [
    "a [#3]",
    "AB-12 is 5",
    "[#4-#6]",
    "[\x1f#77]",
    "\n- ",
    "## Facts\n",
    "x … is …: 1, 2 [#8]; 3, 4 [#9]",
    "; ",
    ". ",
]
previous_summaries = (
    st.none() | st.text(max_size=300) | st.lists(st.sampled_from(words)).map("".join)
    | histories(max_turns=4).map(lambda history: extract(make_entries(history)))
)  # fmt: skip


@given(histories(), previous_summaries, st.integers(0, 400), counters, st.none() | st.text(max_size=40))
def test_it_fits_is_the_same_every_time_and_cites_what_is_there(
    history: list[Message], previous: str | None, limit: int, counter: TokenCounter, instructions: str | None
) -> None:
    block = make_entries(history, first_seq=100)
    arguments = {"previous": previous, "max_tokens": limit, "counter": counter, "instructions": instructions}
    text = extract_summary(block, **arguments)
    assert counter.count(text) <= limit
    assert text == extract_summary(block, **arguments)
    known = {*check_citations(previous or "", range(10_000)).sources, *(each.seq for each in block)}
    assert check_citations(text, known).dropped_count == 0


MIN_FACTS_KEPT = {
    "one template": {1_000: 70, 2_000: 140, 4_000: 198, 8_000: 200},
    "ten templates": {1_000: 55, 2_000: 120, 4_000: 195, 8_000: 200},
    "all distinct": {1_000: 35, 2_000: 80, 4_000: 190, 8_000: 200},
}
"""By the tokens of the summary: as measured, minus a small margin."""


@pytest.mark.parametrize("templates", FACT_TEMPLATES)
def test_planted_facts_survive_five_compactions(templates: str) -> None:
    block, values = make_chat_with_facts(templates)
    counts: list[int] = []
    kept = [(limit, least) for limit, least in MIN_FACTS_KEPT[templates].items() if IS_FULL_SIZE or limit == 2_000]
    for limit, _ in kept:
        text: str | None = None
        for start in range(0, len(block), 400):
            text = extract(block[start : start + 400], previous=text, limit=limit)
        assert text is not None
        assert TOKEN_COUNTER.count(text) <= limit
        counts.append(sum(value in text for value in values))
        sources = check_citations(text, range(1, len(block) + 1)).sources
        cited_facts = {each.seq for each in block if any(value in each.raw and value in text for value in values)}
        assert cited_facts <= set(sources), "every fact in the summary must cite its message"
    print(f"planted facts, {templates}: {counts} of {len(values)}")
    assert all(count >= least for count, (_, least) in zip(counts, kept, strict=True)), counts


def test_it_takes_time_in_proportion() -> None:
    """Compares with a quarter of the messages; only the ratio counts, because the machine may be busy."""
    block, _ = make_chat_with_facts("ten templates")
    small = min(_measure_seconds(block[:250]) for _ in range(3))
    large = min(_measure_seconds(block[:1_000]) for _ in range(2))
    assert large < 12 * small


def _measure_seconds(block: list) -> float:
    start = time.process_time()
    extract(block, limit=2_000)
    return time.process_time() - start
