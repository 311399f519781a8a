"""A reply as it comes: what is printed in the end is what would be printed at once, however it came."""

import io
from itertools import pairwise

import pyte
from chatting import COLUMNS, console, printed
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown

from quire.cli.chat.streaming import Streaming, finished

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


def streamed(text: str, cuts: list[int], on: Console) -> None:
    streaming = Streaming(on)
    places = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    for start, end in pairwise(places):
        streaming.say(text[start:end])
    streaming.finish()


def squeezed(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@given(TEXTS, st.lists(st.integers(0, 2_000), max_size=40))
def test_however_a_reply_comes_it_is_printed_as_if_at_once(text: str, cuts: list[int]):
    bit_by_bit, at_once = console(), console()
    streamed(text, cuts, bit_by_bit)
    at_once.print(Markdown(text))
    assert squeezed(printed(bit_by_bit)) == squeezed(printed(at_once))


@given(TEXTS, TEXTS)
def test_what_is_finished_is_not_changed_by_what_follows(text: str, more: str):
    cut = finished(f"{text}\n\n")
    assert finished(f"{text}\n\n{more}") >= cut


@given(TEXTS, st.lists(st.integers(0, 2_000), max_size=40))
def test_a_terminal_shows_in_the_end_what_is_printed_elsewhere(text: str, cuts: list[int]):
    """Whatever was drawn meanwhile is gone, and nothing of it is left behind."""
    on, elsewhere = console(width=COLUMNS, terminal=True), console(width=COLUMNS)
    streamed(text, cuts, on)
    streamed(text, cuts, elsewhere)
    assert isinstance(on.file, io.StringIO)
    assert squeezed(seen(on.file.getvalue())) == squeezed(printed(elsewhere))


def seen(output: str) -> str:
    screen = pyte.Screen(COLUMNS, 500)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


def test_blocks_are_printed_as_soon_as_they_are_finished():
    on = console()
    streaming = Streaming(on)
    streaming.say("One.\n\nTwo")
    assert printed(on) == "One."
    streaming.say(" and more.\n")
    assert printed(on) == "One."
    streaming.finish()
    assert printed(on) == "One.\n\nTwo and more."


def test_what_is_drawn_again_is_never_higher_than_half_of_the_screen():
    on = console(terminal=True)
    streaming = Streaming(on)
    streaming.say("```\n" + "line\n" * 200)
    drawn = on.render_lines(streaming._drawn(), pad=False)  # pyright: ignore[reportPrivateUsage]
    streaming.finish()
    assert 1 < len(drawn) <= on.height // 2 + 1


def test_a_waiting_sign_leaves_nothing_behind():
    on = console(terminal=True)
    streaming = Streaming(on)
    streaming.wait("waits for the model")
    streaming.say("Done.")
    streaming.finish()
    assert isinstance(on.file, io.StringIO)
    assert seen(on.file.getvalue()) == "Done."


def test_nothing_in_a_reply_steers_the_terminal():
    on = console(terminal=True)
    streaming = Streaming(on)
    streaming.say("a\x1b]0;title\x07b\x1b[2J\u202e")
    streaming.finish()
    assert isinstance(on.file, io.StringIO)
    written = on.file.getvalue()
    assert "\x1b]0;" not in written
    assert "\x1b[2J" not in written
    assert "\u202e" not in written
