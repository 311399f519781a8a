"""Separates thinking in `<think>` tags from the text of a reply."""

from typing import Literal

from quire.llm.protocol import TextDelta, ThinkingDelta

THINKING_TAGS = ("<think>", "</think>")


class ThinkingSplitter:
    """Separates the thinking at the start of a reply from its text, where a server leaves it there in `<think>` tags.

    `split` takes the reply in pieces, wherever they are cut.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._place: Literal["start", "thinking", "gap", "text"] = "start"
        self._pending = ""
        """The end of what has arrived, as far as it may be a part of a tag, or of the white space around one."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thinking(self) -> str:
        return "".join(self._thoughts)

    def split(self, piece: str) -> list[TextDelta | ThinkingDelta]:
        opening, closing = THINKING_TAGS
        chunks: list[TextDelta | ThinkingDelta] = []
        rest = self._pending + piece
        if self._place == "start":
            head = rest.lstrip()
            if opening.startswith(head[: len(opening)]) and len(head) < len(opening):
                self._pending = rest
                return chunks
            is_thinking = head.startswith(opening)
            self._place, rest = ("thinking", head.removeprefix(opening)) if is_thinking else ("text", rest)
        if self._place == "thinking":
            thought, tag, after = rest.partition(closing)
            held = 0 if tag else next(n for n in range(len(closing), -1, -1) if thought.endswith(closing[:n]))
            thought, self._pending = thought[: len(thought) - held], thought[len(thought) - held :]
            if thought:
                self._thoughts.append(thought)
                chunks.append(ThinkingDelta(thought))
            if not tag:
                return chunks
            self._place, rest = "gap", after
        if self._place == "gap" and (rest := rest.lstrip()):
            self._place = "text"
        self._pending = ""
        if rest:
            self._texts.append(rest)
            chunks.append(TextDelta(rest))
        return chunks

    def end(self) -> list[TextDelta | ThinkingDelta]:
        """Returns what was pending when the reply ended."""
        rest, self._pending = self._pending, ""
        if not rest:
            return []
        if self._place == "thinking":
            self._thoughts.append(rest)
            return [ThinkingDelta(rest)]
        self._texts.append(rest)
        return [TextDelta(rest)]
