"""`quire chat`: a conversation in the terminal, drawn from the engine's events."""

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.common import SetOptions, complete_agent_names, complete_conversation_ids, run_async

VaultOption = Annotated[Path | None, typer.Option(help="The folder of notes that links and @paths refer to.")]
AgentOption = Annotated[
    str | None, typer.Option("--agent", help="The agent's name or TOML file.", autocompletion=complete_agent_names)
]
ReplyTokensOption = Annotated[int | None, typer.Option(min=1, help="Maximum tokens of a reply.")]


def command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONVERSATION]",
            help="The conversation's id; default: the most recently used.",
            show_default=False,
            autocompletion=complete_conversation_ids,
        ),
    ] = None,
    *,
    new: Annotated[bool, typer.Option("--new", help="Start a new conversation.")] = False,
    agent: AgentOption = None,
    vault: VaultOption = None,
    reply_tokens: ReplyTokensOption = None,
    overrides: SetOptions = None,
) -> None:
    """Chat in the terminal; type /help for the commands."""
    from quire.cli.chat.loop import run_chat
    from quire.cli.chat.runtime import ChatOptions, build_overrides

    chat_options = ChatOptions(conversation=conversation, new=new, resume=True, reply_tokens=reply_tokens)
    run_async(run_chat(build_overrides(overrides or (), agent=agent, vault=vault), chat_options))
