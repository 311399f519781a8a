"""Citations: parsed in every notation, preserved if they cite known entries, dropped and counted otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.compaction.citations import CITATION, check_citations, escape_citations, find_cited_entries

KNOWN = range(1, 21)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("The port is 8080 [#12].", (12,)),
        ("Agreed [#12, #14]", (12, 14)),
        ("Agreed [#12; 14]", (12, 14)),
        ("Built [#12-#15]", (12, 13, 14, 15)),
        ("Built [#12–15]", (12, 13, 14, 15)),
        ("Both [#3, #12-#14]", (3, 12, 13, 14)),
        ("Twice [#3] and [#2], [#3]", (2, 3)),
        ("Not cited: #12, [12], (#12), [# 12]", ()),
    ],
)
def test_known_citations_stay_as_they_were_written(text: str, sources: tuple[int, ...]) -> None:
    assert check_citations(text, KNOWN) == (text, sources, 0)


@pytest.mark.parametrize(
    ("text", "left", "sources", "dropped"),
    [
        ("The port is 8080 [#99].", "The port is 8080.", (), 1),
        ("Agreed [#12, #99]", "Agreed [#12]", (12,), 1),
        ("Built [#18-#400]", "Built [#18-#20]", (18, 19, 20), 1),
        ("Built [#30-#40], [#2]", "Built, [#2]", (2,), 1),
        ("- [#99] first\n- [#98]", "- first\n-", (), 2),
        ("[#99]", "", (), 1),
        (f"[#{'9' * 5_000}]", "", (), 1),
    ],
)
def test_unknown_citations_are_dropped_and_counted(
    text: str, left: str, sources: tuple[int, ...], dropped: int
) -> None:
    assert check_citations(text, KNOWN) == (left, sources, dropped)


def test_a_range_passes_over_numbers_that_are_no_messages() -> None:
    assert check_citations("[#2-#6]", {2, 3, 5, 6}) == ("[#2-#6]", (2, 3, 5, 6), 0)


def test_dropping_one_citation_makes_no_other() -> None:
    assert check_citations("[[#99]#77]", KNOWN).text == "[[?]#77]"
    assert check_citations("[[#99] [#98], #77]", KNOWN).sources == ()


def test_what_a_summary_cites_ends_with_the_log() -> None:
    assert find_cited_entries("a [#3-#999999999999] b [#1]", last_entry=5) == {1, 3, 4, 5}


pieces = st.sampled_from(
    ["[", "]", "#", "12", "99", "3", "-", "–", ",", ";", " ", "\n", "a", "[#12]", "[#99]", "[#5-#40]"]
)
texts = st.lists(pieces, max_size=40).map("".join) | st.text(max_size=60)


@given(texts, st.sets(st.integers(1, 50)))
def test_nothing_is_invented(text: str, known: set[int]) -> None:
    found = check_citations(text, known)
    assert set(found.sources) <= known
    assert check_citations(found.text, known) == (found.text, found.sources, 0)
    assert len(found.text) <= len(text) + 3 * text.count("[") + text.count("-") + text.count("–")


@given(texts)
def test_escaped_text_cites_nothing(text: str) -> None:
    assert CITATION.search(escape_citations(text)) is None
