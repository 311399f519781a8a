"""Draws docs/picture/undo.svg: a compaction of the real Claude Code is undone, and the next request has the fact again.

    .venv/bin/python docs/picture/undo.py

The provider is scripted: it knows the port if the request has it. Needs the agents (`just install-agents`).
"""

import os
import re
import tempfile
from pathlib import Path

from record import HERE, QUIRE_PROGRAM, Terminal, draw_svg, make_environment, to_rich_text

from infra.real_agents import find_claude
from infra.scripted_provider import ProviderRequest, ScriptedReply, run_scripted_provider

FACT = "The relay listens on port 7421, because 7420 is taken by the old gateway."
QUESTION = "Which port does the relay use?"
SUMMARY = "<summary>The user set up the relay, and said on which port it listens and why.</summary>"
COMMANDS = (
    f'quire run claude -p "{FACT}"',
    "quire run claude -p /compact --continue",
    f'quire run claude -p "{QUESTION}" --continue',
    "quire context undo",
    f'quire run claude -p "{QUESTION}" --continue',
)
PROMPT = re.compile(r"^\$", re.MULTILINE)


def answer(request: ProviderRequest) -> ScriptedReply:
    text = str(request.items)
    if "Respond with TEXT ONLY" in text:
        return ScriptedReply(SUMMARY)
    if QUESTION not in text:
        return ScriptedReply("Noted.")
    return ScriptedReply("Port 7421." if "7421" in text else "I do not know which port you chose.")


def main() -> None:
    claude = find_claude()
    assert claude is not None, "run `just install-agents`"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, run_scripted_provider(answer) as provider:
        home = Path(folder) / "ada"
        project = home / "relay"
        project.mkdir(parents=True)
        env = make_environment(home) | {
            "PATH": f"{claude.parent}:{QUIRE_PROGRAM.parent}:{os.environ['PATH']}",
            "ANTHROPIC_BASE_URL": provider.url,
            "ANTHROPIC_API_KEY": "key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "PS1": "\\[\\e[1m\\]$\\[\\e[0m\\] ",
        }
        terminal = Terminal(["/bin/bash", "--norc", "--noprofile"], env=env, folder=project)
        for number, command in enumerate((*COMMANDS, ""), start=1):
            terminal.wait_for(lambda text, count=number: len(PROMPT.findall(text)) == count)
            terminal.type(f"{command}\r" if command else "")
        lines = [to_rich_text(line) for line in terminal.cells()]
        terminal.type("\x04")
        terminal.wait_for_exit()
    draw_svg(lines, command="cd ~/relay", path=HERE / "undo.svg", description="A compaction of Claude Code is undone")


if __name__ == "__main__":
    main()
