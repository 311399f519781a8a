"""`quire handover`: prints what another agent needs to continue a conversation."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import AsJson, BranchNumber, ConversationId, SetOptions, make_target, open_conversation, run_async
from quire.cli.output import print_json, print_note, sanitize

if TYPE_CHECKING:
    from quire.cli.common import CommandTarget
    from quire.engine.handover import Handover


def command(
    conversation: ConversationId = None,
    *,
    branch: BranchNumber = 0,
    max_tokens: Annotated[
        int, typer.Option(min=200, max=50_000, help="Maximum tokens of the text.", show_default=True)
    ] = 4_000,
    unmasked: Annotated[bool, typer.Option("--unmasked", help="Print secrets, which are masked otherwise.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Print what another agent needs to continue a conversation: task, state, decisions, open ends, last turns.

    Each statement cites its message. A `summarizer` that the settings name writes the state; without one, the lines are
    extracted from the messages, and no model is called.
    """
    target = make_target(conversation, branch=branch, overrides=overrides)
    handover = run_async(_write(target, max_tokens, mask=not unmasked))
    if as_json:
        print_json(handover.model_dump(mode="json"))
        return
    # As it is, without wrapped lines: it is input of an agent.
    sys.stdout.write(f"{sanitize(handover.text)}\n")
    written_by = f"written by {handover.model}" if handover.model is not None else "extracted"
    print_note(f"{handover.tokens:,} of at most {handover.max_tokens:,} tokens, {written_by}.")


async def _write(target: "CommandTarget", max_tokens: int, *, mask: bool) -> "Handover":
    from quire.engine.handover import write_handover

    async with open_conversation(target) as conversation:
        engine = conversation.engine
        return await write_handover(
            engine,
            conversation.id,
            branch=conversation.branch,
            max_tokens=max_tokens,
            mask=mask and engine.settings.mask_secrets,
        )
