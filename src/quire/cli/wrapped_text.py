"""Text whose paths break after a slash, where they are longer than a line."""

import re
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_WORD = re.compile(r"\S+")


class WrappedText(Text):
    def wrap(self, console: "Console", width: int, **options: Any) -> Any:
        breaks: list[int] = []
        for word in _WORD.finditer(self.plain) if not options["no_wrap"] else ():
            start = word.start()
            while word.end() - start > width > 0:
                end = self.plain.rfind("/", start + 1, start + width) + 1
                # A name that is longer than the line breaks where the line ends.
                start = end if end > start + 1 else start + width
                breaks.append(start)
        if not breaks:
            return super().wrap(console, width, **options)
        return Text("\n").join(self.divide(breaks)).wrap(console, width, **options)
