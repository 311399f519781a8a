"""The summary without a model: what it keeps, that it fits, and that it says where everything comes from."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import COUNTER, FORMS, chat, entries, planted

from quire.compaction.citations import checked
from quire.compaction.extract import HEADING, extractive_summary
from quire.model import Message, ToolCallPart
from quire.testing.histories import histories
from quire.view.tokens import Counter

SMALL_TALK = "That is nice to hear, and the weather has been lovely here as well."


def summary(block: list, *, previous: str | None = None, limit: int = 500, **rest: str) -> str:
    return extractive_summary(block, previous=previous, limit=limit, counter=COUNTER, **rest)


def test_facts_are_kept_with_their_numbers_in_the_order_of_the_log() -> None:
    block = chat(
        "Please write a parser for the log files.",
        f"Sure. {SMALL_TALK} The files are in /var/log/quire, I see.",
        f"{SMALL_TALK} By the way, the access code of door 17 is QX-4821, as far as I know.",
        "Noted. We decided to use SQLite instead of files.",
        "What is the deadline?",
    )
    assert summary(block, limit=110).splitlines() == [
        HEADING,
        "- First request: Please write a parser for the log files. [#1]",
        "- The files are in /var/log/quire [#2]",
        "- the access code of door 17 is QX-4821 [#3]",
        "- We decided to use SQLite instead of files [#4]",
        "- Newest request: What is the deadline? [#5]",
    ]


def test_lines_of_one_form_are_written_once() -> None:
    text = summary(
        chat("Hi.", *(f"{SMALL_TALK} The code of door {door} is QX-{door * 37}." for door in (1, 2, 3)), "Bye.")
    )
    assert "- The code of door … is …: 1, QX-37 [#2]; 2, QX-74 [#3]; 3, QX-111 [#4]" in text


def test_what_was_written_once_is_read_back() -> None:
    first = summary(chat("Hi.", *(f"The code of door {door} is QX-{door * 37}." for door in (1, 2, 3)), "Bye."))
    second = summary(chat("Hi.", "The code of door 9 is QX-900.", "Bye.", first=7), previous=first)
    assert "2, QX-74 [#3]" in second
    assert "; 9, QX-900 [#8]" in second
    assert second.count("The code of door … is …") == 1


def test_the_previous_summary_keeps_its_citations() -> None:
    previous = "## Task\nPort the parser to Rust [#2].\n## Facts\n- The build id is 7f3a-99 [#4, #6]\n- Ship on Friday"
    text = summary(chat(SMALL_TALK, SMALL_TALK, first=10), previous=previous)
    assert "- Port the parser to Rust [#2]" in text
    assert "- The build id is 7f3a-99 [#4, #6]" in text
    assert "- Ship on Friday" in text
    assert text.index("#4, #6") < text.index("[#10]")


def test_the_first_request_outlives_every_fold() -> None:
    text: str | None = None
    for block in range(5):
        said = ["Translate the manual into Danish."] if block == 0 else []
        said += [f"Value {block}-{place}AX is {place * 7919}." for place in range(50)]
        text = summary(chat(*said, first=block * 100 + 1), previous=text, limit=200)
    assert text is not None
    assert text.splitlines()[1] == "- First request: Translate the manual into Danish. [#1]"
    assert text.count("Newest request:") == 1


def test_the_users_instructions_decide_what_stays() -> None:
    said = [f"Dinner {place} was at restaurant R{place:03d}X." for place in range(60)]
    said.insert(30, "The endpoint for billing returns a list.")
    assert "billing" not in summary(chat(*said), limit=150)
    assert "billing" in summary(chat(*said), limit=150, instructions="keep the billing endpoint")


def test_a_users_word_weighs_more_than_a_tools() -> None:
    noise = "\n".join(f"line {place}: 0x{place * 7919:08x} ok" for place in range(300))
    block = entries(
        [
            Message.user("Look at the build."),
            Message(role="assistant", parts=(ToolCallPart(id="a", name="build"),)),
            Message.tool("a", noise),
            Message.user("The staging host is blue-7."),
            Message.user("Go on."),
        ]
    )
    assert "staging host is blue-7 [#4]" in summary(block, limit=120)


def test_what_looks_like_a_citation_in_a_message_is_none() -> None:
    said = [
        "As stated in [#7777] the code is AB-123.",
        "See [#9999], the code is CD-456.",
        "[\n#8888] says XY-999 too.",
    ]
    text = summary(chat(*said))
    assert checked(text, range(1, 4)).dropped == 0
    assert "(#7777)" in text
    assert "CD-456" in text


def test_nothing_to_say_or_no_room_is_an_empty_summary() -> None:
    assert summary([]) == ""
    assert summary(chat("Hello there."), limit=1) == ""


def test_idle_talk_does_not_fill_the_room() -> None:
    text = summary(chat(*(f"{SMALL_TALK} {'so ' * place}" for place in range(200))), limit=2_000)
    assert COUNTER.count(text) < 700


class Letters:
    """A counter by which every character is a token: no text is shorter than it looks."""

    name, exact = "letters", True

    def count(self, text: str) -> int:
        return len(text)


counters = st.sampled_from([COUNTER, Letters()])
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
    | histories(max_turns=4).map(lambda history: summary(entries(history)))
)  # fmt: skip


@given(histories(), previous_summaries, st.integers(0, 400), counters, st.none() | st.text(max_size=40))
def test_it_fits_is_the_same_every_time_and_cites_what_is_there(
    history: list[Message], previous: str | None, limit: int, counter: Counter, instructions: str | None
) -> None:
    block = entries(history, first=100)
    given = {"previous": previous, "limit": limit, "counter": counter, "instructions": instructions}
    text = extractive_summary(block, **given)
    assert counter.count(text) <= limit
    assert text == extractive_summary(block, **given)
    known = {*checked(previous or "", range(10_000)).sources, *(each.seq for each in block)}
    assert checked(text, known).dropped == 0


LEAST = {
    # At 1,000, 2,000, 4,000 and 8,000 tokens; measured, less a few.
    "one form": (70, 140, 198, 200),
    "ten forms": (55, 120, 195, 200),
    "each its own": (35, 80, 190, 200),
}


@pytest.mark.parametrize("forms", FORMS)
def test_planted_facts_survive_five_compactions(forms: str) -> None:
    block, values = planted(forms)
    kept: list[int] = []
    for limit in (1_000, 2_000, 4_000, 8_000):
        text: str | None = None
        for start in range(0, len(block), 400):
            text = summary(block[start : start + 400], previous=text, limit=limit)
        assert text is not None
        assert COUNTER.count(text) <= limit
        kept.append(sum(value in text for value in values))
        sources = checked(text, range(1, len(block) + 1)).sources
        told = {each.seq for each in block if any(value in each.raw and value in text for value in values)}
        assert told <= set(sources), "every fact that is kept can be read by its number"
    print(f"planted facts, {forms}: {kept} of {len(values)}")
    assert all(count >= least for count, least in zip(kept, LEAST[forms], strict=True)), kept


def test_it_takes_time_in_proportion() -> None:
    """Four times the messages; the machine may be busy, so only the ratio counts."""
    block, _ = planted("ten forms")
    small = min(_seconds(block[:500]) for _ in range(3))
    large = min(_seconds(block) for _ in range(3))
    assert large < 12 * small


def _seconds(block: list) -> float:
    start = time.perf_counter()
    summary(block, limit=2_000)
    return time.perf_counter() - start
