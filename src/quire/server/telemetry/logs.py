"""Structured logging of the server: one line per event on standard error, as JSON or as text.

Lines never contain content. An error is logged by its type and stack, without its message, which may quote content.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogLineFormat = Literal["json", "text"]
_FIELDS_ATTRIBUTE = "quire_fields"

logger = logging.getLogger("quire.server")


def log_server_event(
    event: str, /, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any
) -> None:
    """Logs an event. Fields that are None are omitted."""
    if not logger.isEnabledFor(level):
        return
    values = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, event, exc_info=error, extra={_FIELDS_ATTRIBUTE: values})


def configure_logging(format: LogLineFormat, *, stream: TextIO | None = None) -> None:
    """Configures logging of the whole process. For entry points only: a library must not configure logging."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("quire").setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        uvicorn_logger = logging.getLogger(name)
        uvicorn_logger.handlers.clear()
        uvicorn_logger.propagate = True
    # The telemetry middleware logs one line per request.
    logging.getLogger("uvicorn.access").disabled = True


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _escape_unprintable(json.dumps(_to_fields(record), ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = _to_fields(record)
        words: list[str] = [line.pop("time"), line.pop("level").upper(), line.pop("event")]
        for name, value in line.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            is_plain = text.isprintable() and not any(char in text for char in ' "=')
            words.append(f"{name}={text if is_plain else json.dumps(text, ensure_ascii=False)}")
        return _escape_unprintable(" ".join(words))


def _escape_unprintable(line: str) -> str:
    """Escapes control, bidirectional and line-separating characters as JSON does: a terminal that shows the log must
    not obey what a client put into an ID."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def _to_fields(record: logging.LogRecord) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
    fields: Mapping[str, Any] = getattr(record, _FIELDS_ATTRIBUTE, {})
    if record.name.startswith("quire.jobs"):
        # Lines of the jobs are JSON documents with their own time.
        document: dict[str, Any] = json.loads(record.getMessage())
        event = {name: value for name, value in document.items() if name != "at"}
    elif record.name == logger.name:
        event = {"event": record.getMessage()}
    else:
        event = {"event": next(iter(_render_safely(record).splitlines()), "")}
    line = {"time": time, "level": record.levelname.lower(), **event, **fields}
    if record.name != logger.name:
        line["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        line |= describe_error(record.exc_info[1])
    return line


def _render_safely(record: logging.LogRecord) -> str:
    """The message of another logger: of its arguments, which may contain content or database errors, only numbers and
    the types of errors."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    safe = tuple(
        type(each).__name__ if isinstance(each, BaseException) else each if isinstance(each, int | float) else "…"
        for each in arguments
    )
    try:
        return str(record.msg) % safe if safe else str(record.msg)
    except (TypeError, ValueError):
        return str(record.msg)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Returns the types of the error and its causes, and the last 8 frames of its stack."""
    types, cause, seen = list[str](), error, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        types.append(type(cause).__qualname__)
        cause = cause.__cause__ or cause.__context__
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    stack = [f"{frame.filename.rpartition('/site-packages/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": types, "stack": stack}
