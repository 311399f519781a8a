"""The prompt in a terminal: history, completion, several lines, and what the keys do."""

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

from quire.agent.approvals import Allow, AllowAlways, Deny, Verdict
from quire.cli.chat.completion import Choices, suggestions
from quire.cli.chat.reading import MORE, PROMPT, Interrupted, Left, continues
from quire.cli.output import plain

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.output import Output

    from quire.model import ToolCallPart

_STYLE = Style.from_dict({"": "bold", "prompt": "bold ansigreen"})
Headings = Callable[[str], Sequence[str]]


class TerminalReader:
    def __init__(
        self,
        *,
        history: Path | None = None,
        headings: Headings = lambda note: (),
        input: "Input | None" = None,
        output: "Output | None" = None,
    ) -> None:
        self._choices = Choices()
        self._given: dict[str, Any] = {"input": input, "output": output}
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=_Completer(lambda: self._choices, headings),
            complete_while_typing=True,
            complete_style=CompleteStyle.COLUMN,
            reserve_space_for_menu=4,
            key_bindings=_keys(),
            multiline=True,
            interrupt_exception=Interrupted,
            prompt_continuation=lambda width, number, wrapped: "" if wrapped else MORE,
            style=_STYLE,
            **self._given,
        )

    async def read(self, choices: Choices) -> str:
        self._choices = choices
        try:
            return await self._session.prompt_async([("class:prompt", PROMPT)])
        except EOFError:
            raise Left from None

    async def allow(self, call: "ToolCallPart") -> Verdict:
        asking: PromptSession[str] = PromptSession(style=_STYLE, interrupt_exception=Interrupted, **self._given)
        question = f"Allow {plain(call.name)}? [y]es, [a]lways, or why not: "
        try:
            # The signal belongs to the turn under way; here Ctrl-C is a key.
            said = await asking.prompt_async([("class:prompt", question)], handle_sigint=False)
        except EOFError:
            raise Interrupted from None
        return verdict(said)

    async def aside(self, show: Callable[[], None]) -> None:
        if get_app().is_running:
            await run_in_terminal(show)
        else:
            show()


def verdict(said: str) -> Verdict:
    """Only what is clearly a yes is one; any other words are the reason why not."""
    match said.strip().lower():
        case "y" | "yes":
            return Allow()
        case "a" | "always":
            return AllowAlways()
        case "" | "n" | "no":
            return Deny()
        case _:
            return Deny(said.strip())


def _history(path: Path | None) -> FileHistory | InMemoryHistory:
    """What was written before; for its owner's eyes alone."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


class _Completer(Completer):
    def __init__(self, choices: Callable[[], Choices], headings: Headings) -> None:
        self._choices, self._headings = choices, headings

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        for each in suggestions(document.text_before_cursor, self._choices(), headings=self._headings):
            yield Completion(
                each.text, -each.replaces, display=plain(each.shown) or each.text, display_meta=each.about or None
            )


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: "KeyPressEvent") -> None:  # pyright: ignore[reportUnusedFunction]
        buffer = event.current_buffer
        if has_completions() and buffer.complete_state is not None and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif continues(buffer.document.text_before_cursor) and buffer.document.is_cursor_at_the_end:
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
            event.app.exit(exception=Interrupted, style="class:aborting")

    return keys
