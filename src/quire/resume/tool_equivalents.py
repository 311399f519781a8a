"""Tools of different agents that do the same, and the names of their arguments.

A call is translated only if every argument has an equivalent: what is lost in a translation, a text can still say.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class _ToolForm(NamedTuple):
    """A tool of one agent: its name, and the names of its arguments by their meaning."""

    name: str
    arguments: Mapping[str, str]


_EQUIVALENT_TOOLS: tuple[Mapping[str, _ToolForm], ...] = (
    {
        "claude": _ToolForm("Bash", {"command": "command"}),
        "codex": _ToolForm("exec_command", {"command": "cmd", "folder": "workdir"}),
        "opencode": _ToolForm("bash", {"command": "command", "folder": "workdir"}),
        "gemini": _ToolForm("run_shell_command", {"command": "command", "folder": "dir_path"}),
    },
    {
        "claude": _ToolForm("Read", {"path": "file_path", "offset": "offset", "limit": "limit"}),
        "opencode": _ToolForm("read", {"path": "filePath", "offset": "offset", "limit": "limit"}),
        "gemini": _ToolForm("read_file", {"path": "file_path"}),
    },
    {
        "claude": _ToolForm("Write", {"path": "file_path", "content": "content"}),
        "opencode": _ToolForm("write", {"path": "filePath", "content": "content"}),
        "gemini": _ToolForm("write_file", {"path": "file_path", "content": "content"}),
    },
    {
        "claude": _ToolForm("Edit", {"path": "file_path", "old": "old_string", "new": "new_string"}),
        "opencode": _ToolForm("edit", {"path": "filePath", "old": "oldString", "new": "newString"}),
        "gemini": _ToolForm("replace", {"path": "file_path", "old": "old_string", "new": "new_string"}),
    },
    {
        "claude": _ToolForm("Glob", {"pattern": "pattern", "folder": "path"}),
        "opencode": _ToolForm("glob", {"pattern": "pattern", "folder": "path"}),
        "gemini": _ToolForm("glob", {"pattern": "pattern", "folder": "dir_path"}),
    },
    {
        "claude": _ToolForm("Grep", {"pattern": "pattern", "folder": "path", "include": "glob"}),
        "opencode": _ToolForm("grep", {"pattern": "pattern", "folder": "path", "include": "include"}),
        "gemini": _ToolForm("grep_search", {"pattern": "pattern", "folder": "dir_path", "include": "include_pattern"}),
    },
)
_OMITTED_ARGUMENTS = frozenset(
    {"description", "instruction", "justification", "login", "max_output_tokens", "timeout", "timeout_ms", "tty",
     "yield_time_ms"}
)  # fmt: skip
"""Arguments that say how long to wait or what to show, not what is done."""


def translate_call(name: str, arguments: Mapping[str, Any], *, program: str) -> tuple[str, dict[str, Any]] | None:
    """The call as a tool of `program` and its arguments, or None if that program has none that does the same."""
    given = {key: value for key, value in arguments.items() if key not in _OMITTED_ARGUMENTS}
    for forms in _EQUIVALENT_TOOLS:
        target = forms.get(program)
        for form in forms.values() if target is not None else ():
            meanings = {own: meaning for meaning, own in form.arguments.items()}
            if form.name == name and target is not None and given.keys() <= meanings.keys():
                translated = {target.arguments.get(meanings[key]): value for key, value in given.items()}
                if None not in translated:
                    return target.name, {str(key): value for key, value in translated.items()}
    return None
