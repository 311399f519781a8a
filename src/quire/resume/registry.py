"""All agents whose sessions can be written, by the name of their program. A new agent is one module and one line."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quire.resume import claude_code, codex, gemini_cli, opencode
from quire.resume.history import AdaptedHistory, AgentTraits
from quire.resume.session import NativeSession, SessionPlace
from quire.resume.tool_equivalents import ProgramName


class SessionWriter(NamedTuple):
    traits: AgentTraits
    build_session: Callable[[AdaptedHistory, SessionPlace], NativeSession]


_MODULES = (claude_code, codex, opencode, gemini_cli)
WRITERS: Mapping[ProgramName, SessionWriter] = {
    module.TRAITS.name: SessionWriter(module.TRAITS, module.build_session) for module in _MODULES
}
