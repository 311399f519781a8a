"""All agents whose sessions can be written, by the name of their program: the entry points `quire.resume`."""

from quire.errors import InvalidRequest
from quire.plugins import load_plugins
from quire.resume.history import SessionWriter


def find_writer(program: str) -> SessionWriter:
    writers = load_plugins("quire.resume")
    if program not in writers:
        raise InvalidRequest(
            f"{program!r} is no agent that can continue a session; choose one of: {', '.join(writers)}."
        )
    return writers[program]
