"""`quire ask`: one question from a script. The reply goes to standard output, and everything else beside it.

0    answered
1    failed
3    there is no such conversation, agent or file
4    the reply is not whole: cut at the limit of its tokens, empty, or out of steps
130  stopped by Ctrl-C; what had come is kept
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.chat import AgentName, ReplyTokens, Vault
from quire.cli.completing import conversation_ids
from quire.cli.running import AsJson, Given, run
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from quire.cli.answering import Answer
    from quire.cli.chat.talk import Wanted
    from quire.cli.opening import Options

NOT_WHOLE = 4
STOPPED = 130

_SHORT = {
    "truncated": "The reply ends at the limit of its tokens.",
    "empty": "The reply is empty.",
    "steps": "The turn has had as many replies as `max_steps` lets it; ask on with --continue.",
}


def command(
    question: Annotated[
        str | None, typer.Argument(help="What to ask; else standard input.", show_default=False)
    ] = None,
    *,
    show_context: Annotated[bool, typer.Option("--show-context", help="Say what the model was shown.")] = False,
    conversation: Annotated[
        str | None,
        typer.Option(help="Ask in this conversation; it is made if it is not there.", autocompletion=conversation_ids),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Ask in a conversation of its own, as without these.")] = False,
    resume: Annotated[
        bool, typer.Option("--continue", "-c", help="Ask in the conversation that was used last.")
    ] = False,
    agent: AgentName = None,
    vault: Vault = None,
    reply_tokens: ReplyTokens = None,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Ask one question; text that is piped in goes with it, as data.

    The exit code is 4 if the reply is not whole, and 130 if it was stopped.
    """
    from quire.cli.chat.talk import Wanted, options_from

    if sum((conversation is not None, new, resume)) > 1:
        raise InvalidRequest("Choose one of --conversation, --new and --continue.")
    text = asked(question, "" if sys.stdin.isatty() else sys.stdin.read())
    wanted = Wanted(conversation=conversation, new=new, resume=resume, reply_tokens=reply_tokens, asks=True)
    options = options_from(given or (), agent=agent, vault=vault)
    done = run(_answered(text, options, wanted, as_json=as_json, show_context=show_context))
    code = _code(done)
    if code:
        raise typer.Exit(code)


def asked(question: str | None, piped: str) -> str:
    """The message: a question with what was piped in as labelled data, or what was piped in as the question.

    Data stands in a fence of code as well, so that what looks like a link or a path in it refers to nothing.
    """
    from quire.view.labels import labelled

    if question is None or not question.strip():
        if not piped.strip():
            raise InvalidRequest('There is no question: write it as `quire ask "…"`, or pipe it in.')
        return piped.strip()
    return f"{question}\n\n{labelled('input', fenced(piped), source='standard input')}" if piped.strip() else question


def fenced(text: str) -> str:
    """The text in a fence that is longer than any within."""
    longest = run_ = 0
    for sign in text:
        run_ = run_ + 1 if sign == "`" else 0
        longest = max(longest, run_)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


async def _answered(text: str, options: "Options", wanted: "Wanted", *, as_json: bool, show_context: bool) -> "Answer":
    from quire.cli.answering import answer, context_lines
    from quire.cli.chat.talk import opened_talk
    from quire.cli.output import note, print_json

    async with opened_talk(options, wanted) as talk:
        done = await answer(talk, text, say=None if as_json else _say)
    if as_json:
        print_json(done.model_dump(mode="json"))
    elif done.reply and not done.reply.endswith("\n"):
        _say("\n")
    if done.reason in _SHORT:
        note(_SHORT[done.reason])
    if show_context:
        note("\n".join(context_lines(done)))
    return done


def _say(text: str) -> None:
    """To a terminal without what would steer it; to a program as it is."""
    from quire.cli.output import plain

    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _code(done: "Answer") -> int:
    match done.reason:
        case "answered":
            return 0
        case "stopped":
            return STOPPED
        case "truncated" | "empty" | "steps":
            return NOT_WHOLE
