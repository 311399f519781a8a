"""Markdown stream: the final output is the same however the reply was split into chunks."""

import io
from itertools import pairwise

import pyte
from chat_harness import TERMINAL_COLUMNS, make_test_console, read_output
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown

from quire.cli.chat.screen import MarkdownStream, find_stable_end

BLOCKS = (
    "# A heading",
    "A paragraph that is long enough to be broken over two lines of a screen of eighty columns, as it should be.",
    "- one\n- two\n- three",
    "1. first\n\n2. second\n\n   with more\n3. third",
    "```python\nprint('a')\n\n\nprint('b')\n```",
    "> a quotation\n> of two lines",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "***",
    "Under\n===",
    "[[Water mills]] and `code`",
)
TEXTS = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6).map("\n\n".join)


def stream_text(text: str, cuts: list[int], on: Console) -> None:
    streaming = MarkdownStream(on)
    places = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    for start, end in pairwise(places):
        streaming.write(text[start:end])
    streaming.finish()


def drop_blank_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@given(TEXTS, st.lists(st.integers(0, 2_000), max_size=40))
def test_however_a_reply_comes_it_is_printed_as_if_at_once(text: str, cuts: list[int]):
    bit_by_bit, at_once = make_test_console(), make_test_console()
    stream_text(text, cuts, bit_by_bit)
    at_once.print(Markdown(text))
    assert drop_blank_lines(read_output(bit_by_bit)) == drop_blank_lines(read_output(at_once))


@given(TEXTS, TEXTS)
def test_what_is_finished_is_not_changed_by_what_follows(text: str, more: str):
    cut = find_stable_end(f"{text}\n\n")
    assert find_stable_end(f"{text}\n\n{more}") >= cut


@given(TEXTS, st.lists(st.integers(0, 2_000), max_size=40))
def test_a_terminal_shows_in_the_end_what_is_printed_elsewhere(text: str, cuts: list[int]):
    """Whatever was drawn meanwhile is gone, and nothing of it is left behind."""
    on, elsewhere = make_test_console(width=TERMINAL_COLUMNS, terminal=True), make_test_console(width=TERMINAL_COLUMNS)
    stream_text(text, cuts, on)
    stream_text(text, cuts, elsewhere)
    assert isinstance(on.file, io.StringIO)
    assert drop_blank_lines(render_terminal(on.file.getvalue())) == drop_blank_lines(read_output(elsewhere))


def render_terminal(output: str) -> str:
    screen = pyte.Screen(TERMINAL_COLUMNS, 500)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


def test_a_list_marker_that_comes_in_two_chunks_continues_the_list():
    console = make_test_console()
    stream_text("1. first\n2. second\n\n1. third", [21], console)
    assert [line.split() for line in drop_blank_lines(read_output(console))] == [
        ["1", "first"],
        ["2", "second"],
        ["3", "third"],
    ]


def test_blocks_are_printed_as_soon_as_they_are_finished():
    on = make_test_console()
    streaming = MarkdownStream(on)
    streaming.write("One.\n\nTwo")
    assert read_output(on) == "One."
    streaming.write(" and more.\n")
    assert read_output(on) == "One."
    streaming.finish()
    assert read_output(on) == "One.\n\nTwo and more."


def test_what_is_drawn_again_is_never_higher_than_half_of_the_screen():
    on = make_test_console(terminal=True)
    streaming = MarkdownStream(on)
    streaming.write("```\n" + "line\n" * 200)
    drawn = on.render_lines(streaming._render(), pad=False)  # pyright: ignore[reportPrivateUsage]
    streaming.finish()
    assert 1 < len(drawn) <= on.height // 2 + 1


def test_a_waiting_sign_leaves_nothing_behind():
    on = make_test_console(terminal=True)
    streaming = MarkdownStream(on)
    streaming.show_status("waiting for the model")
    streaming.write("Done.")
    streaming.finish()
    assert isinstance(on.file, io.StringIO)
    assert render_terminal(on.file.getvalue()) == "Done."


def test_nothing_in_a_reply_steers_the_terminal():
    on = make_test_console(terminal=True)
    streaming = MarkdownStream(on)
    streaming.write("a\x1b]0;title\x07b\x1b[2J\u202e")
    streaming.finish()
    assert isinstance(on.file, io.StringIO)
    written = on.file.getvalue()
    assert "\x1b]0;" not in written
    assert "\x1b[2J" not in written
    assert "\u202e" not in written
