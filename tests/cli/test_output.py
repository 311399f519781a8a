"""Output: the bar fits any width, pipes and narrow terminals are readable, no text controls a terminal."""

import asyncio
import io
import json
import re
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.context_window import SLOT_STYLES, ContextSection, allocate_cells, format_threshold_marker, render_window
from quire.cli.output import (
    ProgressBar,
    make_console,
    make_table,
    make_text,
    pluralize,
    print_document,
    print_drawing,
    sanitize,
    show_progress,
    to_one_line,
)
from quire.model import Manifest, Message, Policy, SlotUsage
from quire.model.policy import SLOTS
from quire.store import SqlStore

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def make_manifest(*, window: int, used: list[int], reserved: int, full_history_tokens: int | None = None) -> Manifest:
    policy = Policy(model="m", wire_format="chat", window=window, reserved_response_tokens=reserved)
    return Manifest(
        renderer=1,
        conversation="c",
        branch=0,
        head=1,
        policy=policy,
        counter="estimate",
        exact=False,
        slots=tuple(SlotUsage(slot=slot, budget=0, used=tokens) for slot, tokens in zip(SLOTS, used, strict=True)),
        total_tokens=sum(used),
        full_history_tokens=sum(used) if full_history_tokens is None else full_history_tokens,
        max_input_tokens=policy.max_input_tokens,
        trigger_tokens=policy.trigger_tokens,
        decisions=(),
        stable_messages=0,
        digest="0" * 64,
    )


sizes = st.lists(st.integers(0, 200_000), min_size=1, max_size=12)


@given(sizes=sizes, width=st.integers(12, 300))
def test_the_bar_is_as_wide_as_it_should_be_and_hides_no_part(sizes: list[int], width: int):
    cells = allocate_cells(sizes, width)
    assert sum(cells) == (width if any(sizes) else 0)
    assert all((size > 0) == (cell > 0) for size, cell in zip(sizes, cells, strict=True))


@given(window=st.integers(1, 2_000_000), part=st.floats(0, 1), width=st.integers(30, 300))
def test_the_threshold_is_marked_under_its_place(window: int, part: float, width: int):
    trigger = int(window * part)
    lines = format_threshold_marker(trigger, window, width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert abs(lines[0].index("▲") - width * trigger / window) <= 1
    assert f"compacts above {trigger:,}" in "".join(lines)


@given(
    used=st.lists(st.integers(0, 9_000), min_size=8, max_size=8),
    window=st.integers(1, 200_000),
    reserved=st.integers(0, 20_000),
    width=st.integers(24, 200),
)
def test_any_manifest_can_be_drawn_at_any_width(used: list[int], window: int, reserved: int, width: int):
    output = make_manifest(window=window, used=used, reserved=reserved)
    stream = io.StringIO()
    console = make_console(stream)
    console.width = width
    for each in render_window(output, console, unfolded=list(ContextSection)):
        console.print(each)
    assert max(len(line) for line in stream.getvalue().splitlines()) <= width


def render_colored(*, no_color: bool) -> str:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", no_color=no_color, width=80, _environ={}
    )
    for each in render_window(make_manifest(window=1_000, used=[100] * 8, reserved=100), console):
        console.print(each)
    return stream.getvalue()


def test_on_a_terminal_slots_are_told_apart_by_colour_and_otherwise_by_letter():
    with_colors, without = render_colored(no_color=False), render_colored(no_color=True)
    assert "█" in with_colors
    assert len(set(ESCAPE.findall(with_colors))) > 8
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", without)
    bar = next(line for line in ESCAPE.sub("", without).splitlines() if line.startswith("SSS"))
    assert re.sub(r"(.)\1*", r"\1", bar) == "".join(SLOT_STYLES[slot].letter for slot in SLOTS) + "·░"


def test_it_is_said_when_the_next_request_compacts_first():
    stream = io.StringIO()
    console = make_console(stream)
    manifest = make_manifest(window=1_000, used=[100] * 8, reserved=50, full_history_tokens=4_000)
    for each in render_window(manifest, console):
        console.print(each)
    assert "The full history has 4,000 tokens; the next request compacts it first." in " ".join(
        stream.getvalue().split()
    )


@pytest.mark.parametrize("columns", [30, 40, 59, 60, 80, 200])
def test_every_width_is_readable(home: CliHome, monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (
        "context show",
        "context show --usage Tides",
        "conversation list",
        "memory search",
        "context show --messages",
    ):
        output = invoke_cli(*words.split()).stdout
        assert max(map(len, output.splitlines())) <= columns, words
        assert "\x1b" not in output
    output = invoke_cli("context", "show").stdout
    assert re.search(r"\d+ of 1,600 tokens \(\d+\.\d %\)", output.replace("\n", " "))
    assert output.count("archived") == 2


def test_a_pipe_of_no_known_width_has_a_hundred_columns(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    with_width = invoke_cli("context", "show").stdout
    monkeypatch.delenv("COLUMNS")
    assert invoke_cli("context", "show").stdout == with_width


HOSTILE_TEXT = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\x08 [bold]no markup[/bold] :smile:"


def test_text_from_the_log_cannot_steer_the_terminal(home: CliHome):
    exported = invoke_cli("export", "01ke6p6s700000000000000002").stdout
    assert exported.count("\n") == 5
    run_json("conversation", "edit", "--title", HOSTILE_TEXT)
    for words in ("conversation list", "context show --messages", "context items"):
        output = invoke_cli(*words.split()).stdout
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", output), words
    assert "[bold]no markup[/bold] :smile:" in invoke_cli("context", "show", "--messages").stdout
    assert run_json("conversation", "list")["conversations"][0]["title"] == HOSTILE_TEXT


@pytest.mark.parametrize("format", ["markdown", "json"])
def test_a_transcript_cannot_steer_the_terminal_or_a_viewer(home: CliHome, tmp_path: Path, format: str):
    async def write() -> None:
        async with SqlStore.open(home.url) as store:
            await store.create_conversation("hostile", title=HOSTILE_TEXT)
            await store.append("hostile", Message.user(f"{HOSTILE_TEXT}\r\nSecond line."))

    asyncio.run(write())
    control = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
    file = tmp_path / f"transcript.{format}"
    assert invoke_cli("export", "hostile", "--format", format, "--output", str(file)).exit_code == 0
    for text in (invoke_cli("export", "hostile", "--format", format).stdout, file.read_text()):
        assert not re.search(control, text)
        assert "\\u202eback" in text
        assert "Second line." in text
    if format == "json":
        assert json.loads(file.read_text())["messages"][0]["text"].startswith(HOSTILE_TEXT)
    # The export for `quire import` has every byte.
    assert "\u202eback" in invoke_cli("export", "hostile").stdout


def test_json_has_no_control_characters_and_reads_back_the_same(capsys: pytest.CaptureFixture[str]):
    print_document({"conversation": HOSTILE_TEXT, "title": "ä 漢 😀", "tags": []})
    written = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", written)
    assert json.loads(written) == {"conversation": HOSTILE_TEXT, "title": "ä 漢 😀", "tags": []}
    assert "ä 漢 😀" in written


@given(st.text())
def test_whatever_is_shown_is_one_line_of_visible_signs(text: str):
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", to_one_line(text))
    assert len(to_one_line(text, 20)) <= 20
    assert "\x1b" not in sanitize(text)


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (1, "message", "1 message"),
        (0, "message", "0 messages"),
        (2_000, "memory", "2,000 memories"),
        (1, "entry", "1 entry"),
    ],
)
def test_numbers_are_said_in_words(number: int, thing: str, said: str):
    assert pluralize(number, thing) == said


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_after_a_second_and_nowhere_else(monkeypatch: pytest.MonkeyPatch):
    for terminal, late, seen in ((True, True, True), (True, False, False), (False, True, False)):
        stream = FakeTerminal() if terminal else io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        with show_progress("Doing it") as so_far:
            if late:
                so_far._started_at -= 2  # pyright: ignore[reportPrivateUsage]
            so_far.update(1, 3)
        assert ("Doing it" in stream.getvalue()) is seen


def test_progress_without_a_total_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr", FakeTerminal())
    so_far = ProgressBar("Doing it", visible=True)
    so_far._started_at -= 2  # pyright: ignore[reportPrivateUsage]
    so_far.update(1)
    so_far.close()


def test_a_path_that_is_longer_than_a_line_breaks_after_a_slash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "40")
    text = "The file /home/somebody/projects/a-long-folder/another/quire.db is damaged."
    table = make_table("", "found", rows=[("problem", text)], wrapped=("found",))
    print_drawing(lambda _: [make_text(text), table])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == ["The file", "/home/somebody/projects/a-long-folder/", "another/quire.db is damaged."]
    assert all(line.endswith("/") for line in lines if "/home" in line)
