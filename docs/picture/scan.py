"""Draws docs/picture/scan.svg: `quire scan` in a home with scripted sessions of Claude Code and Codex.

.venv/bin/python docs/picture/scan.py
"""

import tempfile
from pathlib import Path

from record import HERE, QUIRE_PROGRAM, Terminal, draw_svg, make_environment, to_rich_text

from infra.agent_homes import plant, write_clean_session, write_codex_session

PLANTED = ("full_window", "pause", "fixed_prompt", "large_file", "cache_drop", "expiring")
FOLDERS = {
    "project": "billing-", "full-window": "importer-", "pause": "registry-", "tools": "gateway-",
    "large-file": "search-", "cache-drop": "deploy-", "expiring": "notes-",
}  # fmt: skip
"""Names of projects as people have them, by those of the scripted sessions."""
SHOWN_LINES = 46


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Path(folder) / "ada"
        projects = home / ".claude/projects"
        for number in range(40):
            write_clean_session(projects, number)
            write_codex_session(home / ".codex/sessions", number)
        for kind in PLANTED:
            for number in range(2):
                plant(projects, kind, number)
        for path in projects.rglob("*.jsonl"):
            text = path.read_text()
            for scripted, name in FOLDERS.items():
                text = text.replace(f"/home/dev/{scripted}", f"~/src/{name}")
            path.write_text(text)
        terminal = Terminal([str(QUIRE_PROGRAM), "scan"], env=make_environment(home), folder=home)
        terminal.wait_for_exit()
        lines = [to_rich_text(line) for line in terminal.cells()]
    first = next(index for index, line in enumerate(lines) if line.plain.startswith("Found"))
    draw_svg(
        lines[first : first + SHOWN_LINES],
        command="quire scan",
        path=HERE / "scan.svg",
        description="What agents on this machine have cost, and the most expensive findings",
    )


if __name__ == "__main__":
    main()
