"""Draws docs/picture/undo.svg: a compaction is undone in a running Claude Code, which then knows the fact again.

    .venv/bin/python docs/picture/undo.py

The provider is scripted: it knows the port if the request has it. Needs the agents (`just install-agents`).
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from record import HERE, QUIRE_PROGRAM, Terminal, draw_svg, make_environment, to_rich_text

from infra.real_agents import find_claude
from infra.scripted_provider import ProviderRequest, ScriptedReply, run_scripted_provider

KEY = "sk-ant-a-key-for-the-picture"
LINES = 40
FACT = "The relay listens on port 7421, because 7420 is taken by the old gateway."
QUESTION = "Which port does the relay use?"
SUMMARY = "<summary>The user set up the relay, and said on which port it listens and why.</summary>"
EXCHANGES = (
    (FACT, "Noted."),
    ("/compact", "Compacted"),
    (QUESTION, "I do not know which port you chose."),
    ("!quire context undo", "It takes effect with your next message."),
    (QUESTION, "Port 7421."),
)
"""What is typed, and what then appears. Claude Code runs a line that begins with `!` in the shell."""


def answer(request: ProviderRequest) -> ScriptedReply:
    text = str(request.items)
    if "Respond with TEXT ONLY" in text:
        return ScriptedReply(SUMMARY)
    if QUESTION not in text or "<bash-stdout>" in str(request.items[-1]):
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
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        # Claude Code's own questions at its first start are answered.
        answers = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (home / ".claude.json").write_text(json.dumps(answers))
        terminal = Terminal([str(QUIRE_PROGRAM), "run", "claude"], env=env, folder=project, lines=LINES)
        terminal.wait_for("❯")
        started = 0.0
        for line, expected in EXCHANGES:
            time.sleep(1)
            started = time.monotonic() if line.startswith("!") else started
            for sign in line:
                terminal.type(sign)
                time.sleep(0.02)
            time.sleep(0.5)
            terminal.type("\r")
            terminal.wait_for(lambda text, expected=expected: expected in text)
        seconds = time.monotonic() - started
        time.sleep(1)
        lines = [to_rich_text(line) for line in terminal.cells()]
        terminal.type("/exit\r")
        terminal.wait_for_exit()
    draw_svg(
        lines, command="quire run claude", path=HERE / "undo.svg", description="A compaction of Claude Code is undone"
    )
    sys.stdout.write(f"\n{seconds:.0f} seconds from the undo to the answer\n")


if __name__ == "__main__":
    main()
