"""Differences between operating systems: command lines, signals, and the encoding of the terminal."""

import os
import shlex
import signal
from codecs import lookup
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import TextIO

IS_WINDOWS = os.name == "nt"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def join_command(words: Sequence[str], *, is_windows: bool = IS_WINDOWS) -> str:
    """One command line of these words, quoted for the shell of the system."""
    if not is_windows:
        return shlex.join(words)
    from subprocess import list2cmdline

    return list2cmdline(words)


def split_command(command: str, *, is_windows: bool = IS_WINDOWS) -> list[str]:
    """The words of a command line. On Windows a backslash separates folders, and only double quotes quote."""
    if not is_windows:
        return shlex.split(command)
    return [word.strip('"') for word in shlex.split(command, posix=False)]


@contextmanager
def call_on_signals(stop: Callable[[], None], signals: Sequence[signal.Signals] = STOP_SIGNALS) -> Generator[None]:
    """Calls `stop` in the event loop when a signal arrives, and restores the handlers afterwards.

    The event loop of Windows handles no signals; there Python's own handler passes them to it.
    """
    import asyncio

    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    previous = {each: signal.getsignal(each) for each in signals}
    for each in signals:
        try:
            loop.add_signal_handler(each, stop)
        except NotImplementedError:
            signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in previous.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(each)
            signal.signal(each, handler)


def replace_unencodable(*streams: TextIO) -> None:
    """Writes `?` for characters that the encoding of a stream lacks, as in a pipe on Windows, instead of failing."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper) and lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")
