"""The server's log: one line an event on standard error, as JSON or as text.

A line says what happened, where and how long it took, and never what was said: of an error it has the kind and the
place in the code, not the message, which may quote anything.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["json", "text"]
_FIELDS = "quire_fields"

logger = logging.getLogger("quire.server")


def log(event: str, /, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Writes a line; fields without a value are left out."""
    if not logger.isEnabledFor(level):
        return
    known = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, event, exc_info=error, extra={_FIELDS: known})


def configure(format: Format, *, stream: TextIO | None = None) -> None:
    """From now on this process logs so. For entry points: a library does not say how its program logs."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("quire").setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        known = logging.getLogger(name)
        known.handlers.clear()
        known.propagate = True
    # A request has one line, and it is ours.
    logging.getLogger("uvicorn.access").disabled = True


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_line(record), ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = _line(record)
        head = [line.pop("time"), line.pop("level").upper(), line.pop("event")]
        return " ".join([*head, *(f"{name}={_shown(value)}" for name, value in line.items())])


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return json.dumps(text, ensure_ascii=False) if any(sign in text for sign in ' \n\r\t"=') else text


def _line(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
    fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
    line = {"time": at, "level": record.levelname.lower(), **_event(record), **fields}
    if record.name != logger.name:
        line["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        line |= described(record.exc_info[1])
    return line


def _event(record: logging.LogRecord) -> dict[str, Any]:
    if record.name.startswith("quire.jobs"):
        # Its lines are documents already, with a time of their own.
        document: dict[str, Any] = json.loads(record.getMessage())
        return {name: value for name, value in document.items() if name != "at"}
    if record.name == logger.name:
        return {"event": record.getMessage()}
    # What others fill in may be anything, the words of a message or of a database's error among it.
    lines = str(record.msg).splitlines()
    return {"event": lines[0] if lines else ""}


def described(error: BaseException) -> dict[str, Any]:
    """An error's kinds, from itself to its cause, and the calls that led to it."""
    kinds, cause, seen = list[str](), error, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kinds.append(type(cause).__qualname__)
        cause = cause.__cause__ or cause.__context__
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    calls = [f"{frame.filename.rpartition('/site-packages/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": kinds, "at": calls}
