"""Prompt of the chat in a terminal: history, completion, multi-line input and key bindings."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from quire.agent.approvals import Allow, AllowAlways, ApprovalDecision, Deny
from quire.cli.chat.completion import CompletionSources, suggest
from quire.cli.chat.input import CONTINUATION_PROMPT, PROMPT, InputEnded, InputInterrupted, is_continued
from quire.cli.output import sanitize

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.output import Output

    from quire.model import ToolCallPart

_STYLE = Style.from_dict({"": "bold", "prompt": "bold ansigreen"})
HeadingLookup = Callable[[str], Sequence[str]]


class TerminalReader:
    def __init__(
        self,
        *,
        history: Path | None = None,
        headings: HeadingLookup = lambda note: (),
        input: "Input | None" = None,
        output: "Output | None" = None,
    ) -> None:
        self._completions = CompletionSources()
        self._session_options: dict[str, Any] = {"input": input, "output": output}
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history),
            completer=_PromptCompleter(lambda: self._completions, headings),
            complete_while_typing=True,
            complete_style=CompleteStyle.COLUMN,
            reserve_space_for_menu=4,
            key_bindings=_build_key_bindings(),
            multiline=True,
            interrupt_exception=InputInterrupted,
            prompt_continuation=lambda width, number, wrapped: "" if wrapped else CONTINUATION_PROMPT,
            style=_STYLE,
            **self._session_options,
        )

    async def read(self, completions: CompletionSources) -> str:
        self._completions = completions
        try:
            return await self._session.prompt_async([("class:prompt", PROMPT)])
        except EOFError:
            raise InputEnded from None

    async def ask_approval(self, call: "ToolCallPart") -> ApprovalDecision:
        prompt: PromptSession[str] = PromptSession(
            style=_STYLE, interrupt_exception=InputInterrupted, **self._session_options
        )
        question = f"Allow {sanitize(call.name)}? [y]es, [a]lways, [n]o or a reason: "
        try:
            # SIGINT belongs to the running turn; here Ctrl-C is a key.
            answer = await prompt.prompt_async([("class:prompt", question)], handle_sigint=False)
        except EOFError:
            raise InputInterrupted from None
        return parse_verdict(answer)

    async def print_above_prompt(self, show: Callable[[], None]) -> None:
        if get_app().is_running:
            await run_in_terminal(show)
        else:
            show()


def parse_verdict(answer: str) -> ApprovalDecision:
    """Parses an approval: only a clear yes approves; any other text denies, with the text as the reason."""
    match answer.strip().lower():
        case "y" | "yes":
            return Allow()
        case "a" | "always":
            return AllowAlways()
        case "" | "n" | "no":
            return Deny()
        case _:
            return Deny(answer.strip())


def _open_history(path: Path | None) -> FileHistory | InMemoryHistory:
    """Opens the input history, in a file that only its owner can read."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


class _PromptCompleter(Completer):
    def __init__(self, completions: Callable[[], CompletionSources], headings: HeadingLookup) -> None:
        self._completions, self._headings = completions, headings

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        for each in suggest(document.text_before_cursor, self._completions(), headings=self._headings):
            yield Completion(
                each.text,
                -each.replace_length,
                display=sanitize(each.display) or each.text,
                display_meta=each.description or None,
            )


def _build_key_bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: "KeyPressEvent") -> None:  # pyright: ignore[reportUnusedFunction]
        buffer = event.current_buffer
        if has_completions() and buffer.complete_state is not None and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif is_continued(buffer.document.text_before_cursor) and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.newline()
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: "KeyPressEvent") -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.newline()

    @keys.add("c-c")
    def _(event: "KeyPressEvent") -> None:  # pyright: ignore[reportUnusedFunction]
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=InputInterrupted, style="class:aborting")

    return keys
