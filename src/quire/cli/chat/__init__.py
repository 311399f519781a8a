"""`quire chat`: a conversation in a terminal. What it shows comes from events and from the library alone."""

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.completing import agent_names, conversation_ids
from quire.cli.running import Given, run

Vault = Annotated[Path | None, typer.Option(help="The folder that links and @paths lead into.")]
AgentName = Annotated[
    str | None, typer.Option("--agent", help="An agent's name, or its TOML file.", autocompletion=agent_names)
]
ReplyTokens = Annotated[int | None, typer.Option(min=1, help="The most tokens that a reply may have.")]


def command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONVERSATION]",
            help="Its id; else the one that was used last.",
            show_default=False,
            autocompletion=conversation_ids,
        ),
    ] = None,
    *,
    new: Annotated[bool, typer.Option("--new", help="Begin another conversation.")] = False,
    agent: AgentName = None,
    vault: Vault = None,
    reply_tokens: ReplyTokens = None,
    given: Given = None,
) -> None:
    """Chat in the terminal; /help says what can be done there."""
    from quire.cli.chat.loop import chat
    from quire.cli.chat.talk import Wanted, options_from

    wanted = Wanted(conversation=conversation, new=new, resume=True, reply_tokens=reply_tokens)
    run(chat(options_from(given or (), agent=agent, vault=vault), wanted))
