"""Ctrl-C while something is under way: it stops that, and not the program."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def interruptible(stop: Callable[[], None]) -> Generator[None]:
    """Ctrl-C calls `stop`, and what it did before it does again afterwards."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, and threads other than the first
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def silent(stream: IO[str]) -> Generator[None]:
    """What is typed while a reply comes is not written into it."""
    if os.name != "posix" or not stream.isatty():
        yield
        return
    import termios

    number = stream.fileno()
    before = termios.tcgetattr(number)
    quiet = list(before)
    quiet[3] = before[3] & ~termios.ECHO
    try:
        termios.tcsetattr(number, termios.TCSADRAIN, quiet)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)
