"""`quire handover`: prints what another agent needs to continue a conversation."""

from typing import Annotated

import typer

from quire.cli.common import CommandTarget, open_conversation
from quire.cli.output import Result, Verbatim, print_note


async def command(
    target: CommandTarget,
    *,
    max_tokens: Annotated[
        int, typer.Option(min=200, max=50_000, help="Maximum tokens of the text.", show_default=True)
    ] = 4_000,
    unmasked: Annotated[bool, typer.Option("--unmasked", help="Print secrets instead of masking them.")] = False,
) -> Result:
    """Print what another agent needs to continue a conversation: task, state, decisions, open ends, last turns.

    Each statement cites its message. The `summarizer` of the settings writes the state. Without one, lines are
    extracted from the messages, and no model is called.
    """
    from quire.engine.handover import write_handover
    from quire.schemas.context import HandoverSchema

    async with open_conversation(target) as conversation:
        engine = conversation.engine
        handover = await write_handover(
            engine,
            conversation.id,
            branch=conversation.branch,
            max_tokens=max_tokens,
            mask=not unmasked and engine.settings.mask_secrets,
        )
    written_by = f"written by {handover.model}" if handover.model is not None else "extracted"
    print_note(f"{handover.tokens:,} of at most {handover.max_tokens:,} tokens, {written_by}.")
    # Without wrapped lines: it is input of an agent.
    return Result(HandoverSchema(**dict(handover)), lambda _: [Verbatim(handover.text)])
