"""`quire chat`: a conversation in the terminal, drawn from the engine's events."""

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.common import ConversationName, SetOptions, complete_agent_names

VaultOption = Annotated[Path | None, typer.Option(help="The folder of notes that links and @paths refer to.")]
AgentOption = Annotated[
    str | None, typer.Option("--agent", help="The agent's name or TOML file.", autocompletion=complete_agent_names)
]
ReplyTokensOption = Annotated[int | None, typer.Option(min=1, help="Maximum tokens of a reply.")]


async def command(
    conversation: ConversationName = None,
    *,
    new: Annotated[bool, typer.Option("--new", help="Start a new conversation.")] = False,
    agent: AgentOption = None,
    vault: VaultOption = None,
    reply_tokens: ReplyTokensOption = None,
    overrides: SetOptions = None,
) -> None:
    """Chat in the terminal. Type /help for the commands."""
    from quire.cli.chat.runtime import ChatOptions, build_overrides
    from quire.cli.chat.session import run_chat

    chat_options = ChatOptions(conversation=conversation, new=new, resume=True, reply_tokens=reply_tokens)
    await run_chat(build_overrides(overrides, agent=agent, vault=vault), chat_options)
