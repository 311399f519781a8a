"""Chat screen: the output for each event, on a console without a terminal."""

from textwrap import dedent

import pytest
from chat_harness import make_test_console, read_output

from quire.cli.chat.renderables import (
    MAX_LISTED_REFERENCES,
    CompactionStats,
    MeterReading,
    format_compaction_stats,
    render_meter,
)
from quire.cli.chat.screen import Screen
from quire.cli.tool_calls import MAX_CALL_LINES
from quire.errors import ModelRateLimited, ModelUnavailable
from quire.model import Entry, Message, ToolCallPart, ToolResultPart, Usage
from quire.model.context_events import CompactionFailed, CompactionStarted
from quire.model.entries import Author
from quire.model.entry_metadata import DocumentReference, EntryMetadata
from quire.model.events import (
    ApprovalRequested,
    QuestionRecorded,
    ReplyRecorded,
    RequestPrepared,
    RetryScheduled,
    TextChunk,
    ThinkingChunk,
    ToolCalled,
    ToolCompleted,
    TurnEnded,
    TurnEndReason,
    TurnFailed,
    TurnStarted,
)
from quire.model.messages import FilePart, TextPart
from quire.view.budget import UsageReport

USAGE = Usage(input_tokens=120, output_tokens=9)
CALL = ToolCallPart(id="1", name="read_document", arguments='{"path": "places/Mill.md"}')


def make_entry(seq: int, message: Message, *references: DocumentReference, unfinished: bool | None = None) -> Entry:
    author: Author = "user" if message.role == "user" else "assistant"
    notes = EntryMetadata(references=references or None, incomplete=unfinished)
    return Entry(
        "c", 0, seq, "message", message.role, author, 1_767_603_600_000_000, b"", b"", 5, "estimate",
        message.canonical_json(), notes.canonical_json(), None,
    )  # fmt: skip


def make_request_prepared(step: int = 1) -> RequestPrepared:
    return RequestPrepared(step=step, tokens=120, window=1_000, trigger_tokens=850, exact=True, compactions=())


def make_turn_ended(reason: TurnEndReason = "answered") -> TurnEnded:
    return TurnEnded(reason=reason, steps=1, usage=USAGE)


def make_usage_report(total: int = 412, *, exact: bool = True) -> UsageReport:
    return UsageReport(slots=(), total_tokens=total, window=8_192, reserved=512, trigger_tokens=6_963, exact=exact)


def render_events(*events: object, width: int = 80) -> str:
    screen = Screen(make_test_console(width=width))
    for event in events:
        screen.show(event)  # type: ignore[arg-type]
    screen.finish()
    return read_output(screen.console)


def test_of_many_documents_the_first_are_listed_and_the_rest_is_counted():
    documents = [
        DocumentReference(link=f"[[Day {day}]]", kind="search", path=f"day {day}.md")
        for day in range(MAX_LISTED_REFERENCES + 21)
    ]
    reply = make_entry(2, Message.assistant("All read."), *documents)
    events = [
        TurnStarted(message=Message.user("?")),
        ReplyRecorded(entry=reply, usage=USAGE, finish_reason="stop"),
        make_turn_ended(),
    ]
    lines = render_events(*events).splitlines()
    assert sum("• [[Day " in line for line in lines) == MAX_LISTED_REFERENCES
    assert lines[-1].strip() == "… and 21 more; list them with `quire context show --reply N`"


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
    text = render_events(
        TurnStarted(message=Message.user("?")),
        QuestionRecorded(entry=make_entry(1, Message.user("?"), mill, large, broken)),
        make_request_prepared(),
        ThinkingChunk("hm"),
        TextChunk("I look it up.\n\n"),
        ReplyRecorded(entry=make_entry(2, Message.assistant("I look it up.")), usage=USAGE, finish_reason="tool_calls"),
        ToolCalled(call=CALL),
        ToolCompleted(call=CALL, result=result),
        make_request_prepared(2),
        TextChunk("It **grinds"),
        TextChunk("** grain."),
        ReplyRecorded(
            entry=make_entry(4, Message.assistant("It grinds grain."), found, mill), usage=USAGE, finish_reason="stop"
        ),
        make_turn_ended(),
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


def test_a_long_turn_folds_its_calls_except_those_that_failed():
    def complete(name: str, *, is_error: bool = False) -> ToolCompleted:
        content = (TextPart(text="No such file."),) if is_error else ()
        return ToolCompleted(
            call=ToolCallPart(id="1", name=name, arguments="{}"),
            result=ToolResultPart(call_id="1", content=content, is_error=is_error),
        )

    calls = [complete("read")] * 40 + [complete("grep")] * 5
    lines = render_events(
        TurnStarted(message=Message.user("?")),
        *calls,
        complete("read", is_error=True),
        *calls,
        TextChunk("Done."),
        ReplyRecorded(entry=make_entry(2, Message.assistant("Done.")), usage=USAGE, finish_reason="stop"),
        make_turn_ended(),
    ).splitlines()
    first = 45 - MAX_CALL_LINES
    assert lines == [
        *["✓ read() 0 characters"] * MAX_CALL_LINES,
        f"… {first} more calls (/calls lists them): read {40 - MAX_CALL_LINES}, grep 5",
        "✗ read() No such file.",
        "… 45 more calls: read 40, grep 5",
        "Done.",
    ]


def test_the_next_turn_prints_its_first_calls_again():
    done = ToolCompleted(call=CALL, result=ToolResultPart(call_id="1"))
    turn = [TurnStarted(message=Message.user("?")), *[done] * 10, make_turn_ended()]
    lines = render_events(*turn, *turn).splitlines()
    assert sum(line.startswith("✓") for line in lines) == 2 * MAX_CALL_LINES
    assert sum(line.startswith("… 2 more calls") for line in lines) == 2


def test_a_tool_that_failed_says_why_in_one_line():
    result = ToolResultPart(call_id="1", content=(TextPart(text="There is no\nsuch file."),), is_error=True)
    assert render_events(ToolCompleted(call=CALL, result=result)) == (
        '✗ read_document(path="places/Mill.md") There is no such file.'
    )


def test_a_tools_line_fits_the_screen_and_tells_of_files():
    call = ToolCallPart(id="1", name="write", arguments='{"text": "' + "y" * 500 + '"}')
    file = FilePart(blob="b" * 64, media_type="image/png")
    line = render_events(ToolCompleted(call=call, result=ToolResultPart(call_id="1", content=(file,))))
    assert len(line) <= 80
    assert line.endswith("… 1 file")


@pytest.mark.parametrize("arguments", ["", "[1]", "{not json", "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_they_are(arguments: str):
    call = ToolCallPart(id="1", name="odd", arguments=arguments)
    line = render_events(ToolCompleted(call=call, result=ToolResultPart(call_id="1")))
    assert line.startswith(f"✓ odd({arguments[:20]}")


def test_a_call_that_must_be_allowed_is_shown_whole():
    call = ToolCallPart(id="1", name="delete", arguments='{"path": "a.md", "really": true}')
    assert render_events(ApprovalRequested(call=call)) == dedent("""\
        Run delete?
          {
            "path": "a.md",
            "really": true
          }""")


def test_a_long_call_is_cut_and_the_hidden_lines_are_counted():
    call = ToolCallPart(id="1", name="write", arguments='{"lines": [' + ", ".join(map(str, range(50))) + "]}")
    assert render_events(ApprovalRequested(call=call)).endswith("… and 34 more lines")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("truncated", "The reply was cut off at its token limit."),
        ("empty", "The reply is empty; type /retry to ask again."),
        ("max_steps", "The turn reached `max_steps`; type /retry to continue."),
        ("stopped", "Stopped before the reply; type /retry to ask again."),
    ],
)
def test_a_turn_that_did_not_end_well_says_so(reason: TurnEndReason, expected: str):
    text = render_events(TurnStarted(message=None), make_request_prepared(), make_turn_ended(reason))
    assert text.strip() == expected


def test_a_stopped_reply_names_the_recorded_entry():
    entry = make_entry(6, Message.assistant("It gri"), unfinished=True)
    text = render_events(
        TextChunk("It gri"),
        ReplyRecorded(entry=entry, usage=USAGE, finish_reason=None, incomplete=True),
        make_turn_ended("stopped"),
    )
    assert text == dedent("""\
        It gri
        Stopped; the partial reply is recorded as #6 (incomplete). Type /retry to ask
        again.""")


def test_an_error_is_printed_after_the_partial_reply():
    failed = TurnFailed(error=ModelUnavailable("The model is gone."), steps=0, usage=USAGE)
    assert render_events(TextChunk("It gri"), failed) == "It gri\nThe model is gone."


def test_a_retry_after_a_rate_limit_is_printed():
    event = RetryScheduled(error=ModelRateLimited("Too many requests.", retry_after=2), delay_seconds=2)
    assert render_events(event) == "Too many requests. Retrying in 2 s."


def test_a_failed_summary_is_printed_and_a_running_one_is_not():
    started = CompactionStarted(conversation="c", branch=0, covers=None, freed_tokens=5)
    failed = CompactionFailed(conversation="c", branch=0, reason="timeout", detail="It took\ntoo long.")
    assert render_events(started, failed) == "It took too long."


def test_no_text_sends_control_characters_to_the_terminal():
    evil = "\x1b[2J\x07evil"
    reference = DocumentReference(link=evil, path=evil, summary=evil)
    call = ToolCallPart(id="1", name=evil, arguments=f'{{"a": "{evil}"}}')
    result = ToolResultPart(call_id="1", content=(TextPart(text=evil),), is_error=True)
    text = render_events(
        QuestionRecorded(entry=make_entry(1, Message.user(evil), reference)),
        ApprovalRequested(call=call),
        ToolCompleted(call=call, result=result),
        TextChunk(evil),
        TurnFailed(error=ModelUnavailable(evil), steps=0, usage=USAGE),
    )
    assert "evil" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_markup_in_names_is_printed_and_not_interpreted():
    reference = DocumentReference(link="[[a]]", path="[bold]x[/bold].md", injected=True)
    text = render_events(QuestionRecorded(entry=make_entry(1, Message.user("?"), reference)), make_turn_ended())
    assert "[bold]x[/bold].md" in text


def test_the_marker_says_how_much_was_archived_and_how_to_undo_it():
    screen = Screen(make_test_console(width=70))
    screen.show_compaction(CompactionStats(number=1, archived_messages=45, freed_tokens=150_000))
    assert read_output(screen.console).splitlines() == [
        "──────────────────────── Context compacted #1 ────────────────────────",
        "     45 messages archived, 150,000 tokens freed; undo with /undo",
        "──────────────────────────────────────────────────────────────────────",
    ]


def test_a_compaction_that_only_shortens_says_that():
    assert format_compaction_stats(
        CompactionStats(number=2, archived_messages=0, freed_tokens=9, shortened_messages=1)
    ) == ("1 long message shortened, 9 tokens freed; undo with /undo")


def test_the_meter_in_one_line():
    usage = Usage(input_tokens=120, cache_read_tokens=100)
    line = render_meter(
        MeterReading(make_usage_report(), reply_seq=4, usage=usage, turn_cost=0.00123, conversation_cost=0.5)
    ).plain
    assert line == "#4 · ━─────────────────── 412 of 6,963 tokens · window 8,192 · 100 from cache · $0.0012 of $0.5000"


def test_the_meter_omits_what_is_not_known_and_marks_an_estimate():
    assert (
        render_meter(MeterReading(make_usage_report(exact=False))).plain
        == "━─────────────────── ~412 of 6,963 tokens · window 8,192"
    )


def test_the_meter_says_how_many_tokens_are_documents():
    report = make_usage_report()._replace(document_tokens=300)
    line = render_meter(MeterReading(report)).plain
    assert line == "━─────────────────── 412 of 6,963 tokens · window 8,192 · 300 from documents"


def test_the_meter_above_the_limit_says_that_the_next_request_compacts():
    line = render_meter(MeterReading(make_usage_report(7_000))).plain
    assert line == "━━━━━━━━━━━━━━━━━━━━ 7,000 tokens; compacts first (limit 6,963)"


@pytest.mark.parametrize(("total", "color"), [(412, "green"), (6_500, "yellow"), (7_000, "red")])
def test_the_meters_bar_warns_before_a_compaction(total: int, color: str):
    line = render_meter(MeterReading(make_usage_report(total)))
    assert any(color in str(span.style) for span in line.spans)
    assert line.plain.count("━") == min(20, round(20 * total / 6_963))


def test_the_last_messages_are_printed_when_a_conversation_is_resumed():
    screen = Screen(make_test_console())
    newest = make_entry(4, Message.assistant("It gri"), unfinished=True)
    screen.show_resumed("tuesday", branch=2, newest=newest)
    screen.show_history([make_entry(3, Message.user("How does\nit work?")), newest])
    lines = [line for line in read_output(screen.console).splitlines() if line]
    assert lines[0].startswith("Resumed tuesday, branch 2, at #4 of 2026-01-05")
    assert lines[-3:] == ["› How does it work?", "It gri", "(incomplete)"]
