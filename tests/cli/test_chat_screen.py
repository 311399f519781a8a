"""What the chat shows of each event, on a console without a terminal."""

from textwrap import dedent

import pytest
from chatting import console, printed

from quire.cli.chat.marker import Archived, told
from quire.cli.chat.meter import Reading, meter_line
from quire.cli.chat.screen import Screen
from quire.errors import ModelThrottled, ModelUnavailable
from quire.model import Entry, Message, ToolCallPart, ToolResultPart, Usage
from quire.model.entries import Author
from quire.model.events import CompactionFailed, CompactionStarted
from quire.model.notes import DocumentReference, Notes
from quire.model.parts import FilePart, TextPart
from quire.model.turns import (
    ApprovalAsked,
    EndReason,
    QuestionKept,
    ReplyKept,
    RequestPrepared,
    Retrying,
    Text,
    Thinking,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from quire.view.budget import UsageReport

USAGE = Usage(input_tokens=120, output_tokens=9)
CALL = ToolCallPart(id="1", name="read_document", arguments='{"path": "places/Mill.md"}')


def kept(seq: int, message: Message, *references: DocumentReference, unfinished: bool | None = None) -> Entry:
    author: Author = "user" if message.role == "user" else "assistant"
    notes = Notes(references=references or None, unfinished=unfinished)
    return Entry(
        "c", 0, seq, "message", message.role, author, 1_767_603_600_000_000, b"", b"", 5, "estimate",
        message.canonical(), notes.canonical(), None,
    )  # fmt: skip


def prepared(step: int = 1) -> RequestPrepared:
    return RequestPrepared(step=step, tokens=120, window=1_000, trigger=850, exact=True, compacted=())


def ended(reason: EndReason = "answered") -> TurnEnded:
    return TurnEnded(reason=reason, steps=1, usage=USAGE)


def report(total: int = 412, *, exact: bool = True) -> UsageReport:
    return UsageReport(slots=(), total=total, window=8_192, reserved=512, trigger=6_963, exact=exact)


def shown(*events: object, width: int = 80) -> str:
    screen = Screen(console(width=width))
    for event in events:
        screen.show(event)  # type: ignore[arg-type]
    screen.rest()
    return printed(screen.console)


def test_a_turn_with_documents_and_a_tool():
    mill = DocumentReference(
        link="[[Water mills]]",
        path="places/Water mills.md",
        summary="How water grinds grain.",
        injected=True,
        blob="a" * 64,
    )
    large = DocumentReference(link="@data/wind.csv", path="data/wind.csv", summary="Wind by the hour.")
    broken = DocumentReference(link="[[Nowhere]]", snippet="Not found: no note is called 'Nowhere'.")
    found = DocumentReference(link="[[Mill]]", path="places/Mill.md", kind="search", snippet="The mill at the ford.")
    result = ToolResultPart(call_id="1", content=(TextPart(text="x" * 1_204),))
    text = shown(
        TurnStarted(message=Message.user("?")),
        QuestionKept(entry=kept(1, Message.user("?"), mill, large, broken)),
        prepared(),
        Thinking("hm"),
        Text("I look it up.\n\n"),
        ReplyKept(entry=kept(2, Message.assistant("I look it up.")), usage=USAGE, finish="tool_calls"),
        ToolCalled(call=CALL),
        ToolAnswered(call=CALL, result=result),
        prepared(2),
        Text("It **grinds"),
        Text("** grain."),
        ReplyKept(entry=kept(4, Message.assistant("It grinds grain."), found, mill), usage=USAGE, finish="stop"),
        ended(),
    )
    assert text == dedent("""\
        I look it up.
        ✓ read_document(path="places/Mill.md") 1,204 characters
        It grinds grain.

        Documents
          • [[Water mills]] (places/Water mills.md)
            How water grinds grain.
          • @data/wind.csv (data/wind.csv, listed only)
            Wind by the hour.
          ✗ [[Nowhere]]
            Not found: no note is called 'Nowhere'.
          • [[Mill]] (places/Mill.md, found by a tool)
            The mill at the ford.""")


def test_a_tool_that_failed_says_why_in_one_line():
    result = ToolResultPart(call_id="1", content=(TextPart(text="There is no\nsuch file."),), is_error=True)
    assert shown(ToolAnswered(call=CALL, result=result)) == (
        '✗ read_document(path="places/Mill.md") There is no such file.'
    )


def test_a_tools_line_fits_the_screen_and_tells_of_files():
    call = ToolCallPart(id="1", name="write", arguments='{"text": "' + "y" * 500 + '"}')
    file = FilePart(blob="b" * 64, media_type="image/png")
    line = shown(ToolAnswered(call=call, result=ToolResultPart(call_id="1", content=(file,))))
    assert len(line) <= 80
    assert line.endswith("… 1 file")


@pytest.mark.parametrize("arguments", ["", "[1]", "{not json", "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_they_are(arguments: str):
    call = ToolCallPart(id="1", name="odd", arguments=arguments)
    line = shown(ToolAnswered(call=call, result=ToolResultPart(call_id="1")))
    assert line.startswith(f"✓ odd({arguments[:20]}")


def test_a_call_that_must_be_allowed_is_shown_whole():
    call = ToolCallPart(id="1", name="delete", arguments='{"path": "a.md", "really": true}')
    assert shown(ApprovalAsked(call=call)) == dedent("""\
        Run delete?
          {
            "path": "a.md",
            "really": true
          }""")


def test_a_call_too_long_to_be_shown_says_that_something_is_hidden():
    call = ToolCallPart(id="1", name="write", arguments='{"lines": [' + ", ".join(map(str, range(50))) + "]}")
    assert shown(ApprovalAsked(call=call)).endswith("… and 34 more lines")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("truncated", "The reply ends at the limit of its tokens."),
        ("empty", "The reply is empty; /retry asks again."),
        ("steps", "The turn has had as many replies as `max_steps` lets it; /retry goes on."),
        ("stopped", "Stopped before anything came; /retry asks again."),
    ],
)
def test_a_turn_that_did_not_end_well_says_so(reason: EndReason, said: str):
    assert shown(TurnStarted(message=None), prepared(), ended(reason)).strip() == said


def test_a_reply_that_was_stopped_is_said_to_be_kept():
    entry = kept(6, Message.assistant("It gri"), unfinished=True)
    text = shown(Text("It gri"), ReplyKept(entry=entry, usage=USAGE, finish=None, unfinished=True), ended("stopped"))
    assert text == dedent("""\
        It gri
        Stopped; what had come is kept as #6, marked as unfinished. /retry asks again.""")


def test_an_error_is_said_after_what_had_come():
    failed = TurnFailed(error=ModelUnavailable("The model is gone."), steps=0, usage=USAGE)
    assert shown(Text("It gri"), failed) == "It gri\nThe model is gone."


def test_waiting_for_a_throttled_model_is_said():
    event = Retrying(error=ModelThrottled("Too many requests.", retry_after=2), seconds=2)
    assert shown(event) == "Too many requests. Asks again in 2 s."


def test_a_summary_that_failed_is_said_and_one_under_way_is_not():
    started = CompactionStarted(conversation="c", branch=0, covers=None, tokens=5)
    failed = CompactionFailed(conversation="c", branch=0, reason="timeout", detail="It took\ntoo long.")
    assert shown(started, failed) == "A summary failed: It took too long."


def test_nothing_that_is_shown_steers_the_terminal():
    evil = "\x1b[2J\x07evil"
    reference = DocumentReference(link=evil, path=evil, summary=evil)
    call = ToolCallPart(id="1", name=evil, arguments=f'{{"a": "{evil}"}}')
    result = ToolResultPart(call_id="1", content=(TextPart(text=evil),), is_error=True)
    text = shown(
        QuestionKept(entry=kept(1, Message.user(evil), reference)),
        ApprovalAsked(call=call),
        ToolAnswered(call=call, result=result),
        Text(evil),
        TurnFailed(error=ModelUnavailable(evil), steps=0, usage=USAGE),
    )
    assert "evil" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_markup_in_names_is_shown_and_not_followed():
    reference = DocumentReference(link="[[a]]", path="[bold]x[/bold].md", injected=True)
    text = shown(QuestionKept(entry=kept(1, Message.user("?"), reference)), ended())
    assert "[bold]x[/bold].md" in text


def test_the_marker_says_how_much_was_archived_and_how_to_have_it_back():
    screen = Screen(console(width=70))
    screen.marker(Archived(number=1, messages=45, tokens=150_000))
    assert printed(screen.console).splitlines() == [
        "──────────────────────── Context compacted #1 ────────────────────────",
        "  45 messages archived, 150,000 tokens freed; /undo brings them back",
        "──────────────────────────────────────────────────────────────────────",
    ]


def test_a_compaction_that_only_shortens_says_that():
    assert told(Archived(number=2, messages=0, tokens=9, shortened=1)) == (
        "1 long message shortened, 9 tokens freed; /undo brings it back"
    )


def test_the_meter_in_one_line():
    usage = Usage(input_tokens=120, cache_read_tokens=100)
    line = meter_line(Reading(report(), number=4, usage=usage, cost=0.00123, spent=0.5)).plain
    assert line == "#4 · ━─────────────────── 412 of 6,963 tokens · window 8,192 · 100 from cache · $0.0012 of $0.5000"


def test_the_meter_leaves_out_what_is_not_known_and_marks_an_estimate():
    assert meter_line(Reading(report(exact=False))).plain == "━─────────────────── ~412 of 6,963 tokens · window 8,192"


@pytest.mark.parametrize(("total", "colour"), [(412, "green"), (6_500, "yellow"), (7_000, "red")])
def test_the_meters_bar_warns_before_a_compaction(total: int, colour: str):
    line = meter_line(Reading(report(total)))
    assert any(colour in str(span.style) for span in line.spans)
    assert line.plain.count("━") == min(20, round(20 * total / 6_963))


def test_what_was_said_before_is_shown_when_a_conversation_is_resumed():
    screen = Screen(console())
    newest = kept(4, Message.assistant("It gri"), unfinished=True)
    screen.resumed("tuesday", branch=2, newest=newest)
    screen.past([kept(3, Message.user("How does\nit work?")), newest])
    lines = [line for line in printed(screen.console).splitlines() if line]
    assert lines[0].startswith("Resumes tuesday, branch 2, at #4 of 2026-01-05")
    assert lines[-3:] == ["› How does it work?", "It gri", "(unfinished)"]
