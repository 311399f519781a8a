"""`quire trust`: trusts the settings file of a folder, lists the decisions about such files, and revokes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quire.cli.output import Result, make_table, make_text
from quire.cli.paths import SETTINGS_FILENAME, find_project_settings_path
from quire.cli.workspace_trust import (
    describe,
    forget,
    read_decisions,
    read_project_file,
    remember,
)
from quire.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Action = Literal["add", "list", "revoke"]


def command(
    action: Annotated[Action, typer.Argument(help="Trust a folder, list the decisions, or forget one.")] = "add",
    folder: Annotated[Path | None, typer.Argument(help="The folder. Default: this one.", show_default=False)] = None,
) -> Result:
    """Trust the settings file of this folder, which may then choose programs, hosts and databases.

    Without trust, a `quire.toml` in a project decides only how a context is built. A change of the
    file, or of its agent, ends the trust.
    """
    searched = (folder or Path.cwd()).absolute()
    if action == "list":
        return _list_decisions()
    if action == "revoke":
        path = find_project_settings_path(searched) or searched / SETTINGS_FILENAME
        if not forget(path):
            raise NotFound(f"There is no decision about {path}; run `quire trust list` to see all.")
        return _make_result(path, "revoked", [f"{path} is not trusted any more."])
    file = read_project_file(searched)
    if file is None:
        raise NotFound(f"No settings file {SETTINGS_FILENAME} applies in {searched}.")
    remember(file, "trusted")
    return _make_result(file.path, "trusted", [f"Trusted {file.path}:", *describe(file)])


def _list_decisions() -> Result:
    files: list[dict[str, str]] = []
    for name, each in read_decisions().items():
        file = read_project_file(Path(name).parent) if Path(name).is_file() else None
        is_current = file is not None and str(file.path) == name and file.digest == each.digest
        files.append({"path": name, "decision": each.decision if is_current else "changed"})

    def draw(_: "Console") -> "Iterable[RenderableType]":
        rows = [tuple(each.values()) for each in files]
        yield make_table("settings file", "decision", rows=rows) if rows else make_text("No folder is trusted.")

    return Result({"files": files}, draw)


def _make_result(path: Path, decision: Literal["trusted", "revoked"], lines: list[str]) -> Result:
    return Result({"files": [{"path": str(path), "decision": decision}]}, "\n".join(lines))
