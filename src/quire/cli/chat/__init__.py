"""`quire chat`: a conversation in the terminal, drawn from the engine's events."""

from typing import Annotated

import typer

from quire.cli.common import ConversationName, SetOptions, complete_agent_names


async def command(
    conversation: ConversationName = None,
    *,
    new: Annotated[bool, typer.Option("--new", help="Start a new conversation.")] = False,
    agent: Annotated[
        str | None, typer.Option("--agent", help="The agent's name or TOML file.", autocompletion=complete_agent_names)
    ] = None,
    reply_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens of a reply.")] = None,
    overrides: SetOptions = None,
) -> None:
    """Chat in the terminal. Type /help for the commands."""
    from quire.cli.chat.runtime import ChatOptions, build_overrides
    from quire.cli.chat.session import run_chat

    chat_options = ChatOptions(conversation=conversation, new=new, resume=True, reply_tokens=reply_tokens)
    await run_chat(build_overrides(overrides, agent=agent), chat_options)
