"""`quire ask`: one question from a script. The reply goes to standard output, everything else to standard error.

Exit codes:
0    answered
1    failed
3    no such conversation, agent or file
4    incomplete reply: truncated at the token limit, empty, or out of steps
130  stopped by Ctrl-C; the partial reply is recorded
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.common import AsJson, SetOptions
from quire.cli.output import print_document, print_note, sanitize
from quire.errors import InvalidRequest

EXIT_INCOMPLETE = 4
EXIT_INTERRUPTED = 130

_INCOMPLETE_MESSAGES = {
    "truncated": "The reply was cut off at its token limit.",
    "empty": "The reply is empty.",
    "max_steps": "The turn reached `max_steps`; continue it with --continue.",
    "max_cost": "The turn reached `max_cost`; continue it with --continue.",
}


async def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[@AGENT] [QUESTION] [CONVERSATION]",
            help="The question, after @ and the agent's name if it is for an agent, and before an ID or a title if it "
            "is for a conversation, which need not exist. Default: standard input, in a new conversation.",
            show_default=False,
        ),
    ] = None,
    *,
    attach: Annotated[
        list[Path] | None,
        typer.Option("--attach", "-a", metavar="FILE", help="Send this image or PDF with the question. Repeatable."),
    ] = None,
    show_context: Annotated[bool, typer.Option("--show-context", help="Print what the model saw.")] = False,
    resume: Annotated[
        bool, typer.Option("--continue", "-c", help="Ask in the most recently used conversation.")
    ] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Ask one question. Piped text is sent with it as data.

    The exit code is 4 if the reply is incomplete, and 130 if it was stopped.
    """
    from quire.cli.ask_result import ask_question, format_context_lines
    from quire.cli.chat.runtime import ChatOptions, attach_to, build_overrides, load_attachment, open_chat

    agent, question, conversation = split_words(words or ())
    if conversation is not None and resume:
        raise InvalidRequest("Name a conversation, or pass --continue for the one used last.")
    text = build_question(question, "" if sys.stdin.isatty() else sys.stdin.read())
    chat_options = ChatOptions(conversation=conversation, resume=resume, requires_model=True)
    async with open_chat(build_overrides(overrides, agent=agent), chat_options) as runtime:
        attachments = [await load_attachment(path, runtime.engine.store) for path in attach or ()]
        result = await ask_question(
            runtime,
            attach_to(text, attachments) if attachments else text,
            write=None if as_json else _write_reply,
        )
    if as_json:
        print_document(result)
    elif result.reply and not result.reply.endswith("\n"):
        _write_reply("\n")
    if result.reason in _INCOMPLETE_MESSAGES:
        print_note(_INCOMPLETE_MESSAGES[result.reason])
    if show_context:
        print_note("\n".join(format_context_lines(result)))
    if result.reason != "answered":
        raise typer.Exit(EXIT_INTERRUPTED if result.reason == "stopped" else EXIT_INCOMPLETE)


def split_words(words: Sequence[str]) -> tuple[str | None, str | None, str | None]:
    """The agent's name, the question and the conversation.

    A question may begin with @ as well, to import a file; so a single word names an agent only if there is one.
    """
    from quire.cli.paths import find_agent_files

    agent, rest = None, list(words)
    is_name = bool(rest) and rest[0].startswith("@") and not re.search(r"\s", rest[0])
    if is_name and (len(rest) > 1 or rest[0][1:] in find_agent_files()):
        agent = rest.pop(0)[1:]
    if len(rest) > 2:
        raise InvalidRequest("Write the question as one argument, in quotes.")
    question, conversation = (*rest, None, None)[:2]
    return agent, question, conversation


def build_question(question: str | None, piped_text: str) -> str:
    """Builds the message: the question with the piped text as labelled data, or the piped text as the question.

    The data is also in a code fence, so that links and @paths in it are not resolved.
    """
    from quire.wire.labels import label_text

    if question is None or not question.strip():
        if not piped_text.strip():
            raise InvalidRequest('There is no question: pass it as `quire ask "…"`, or pipe it in.')
        return piped_text.strip()
    return (
        f"{question}\n\n{label_text('input', fence_text(piped_text), source='standard input')}"
        if piped_text.strip()
        else question
    )


def fence_text(text: str) -> str:
    """Wraps text in a code fence that is longer than any run of backticks in it."""
    longest = run_ = 0
    for sign in text:
        run_ = run_ + 1 if sign == "`" else 0
        longest = max(longest, run_)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _write_reply(text: str) -> None:
    """Writes to a terminal without control characters, and to a pipe unchanged."""
    sys.stdout.write(sanitize(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
