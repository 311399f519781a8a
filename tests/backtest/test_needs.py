"""Needs: which earlier messages a reply cites, quotes or reads, and whether a request has them in view."""

import json

from quire.backtest import combine_variants, run_backtest, select_conversations
from quire.backtest.needs import Need, NeedFinder
from quire.backtest.recording import RecordedStep
from quire.engine import Engine, EngineConfig
from quire.model import Entry, Message, ToolCallPart
from quire.settings import Settings
from quire.store import SqlStore

RECIPE = "take four ounces of butter and a pint of the best cream you can buy in town"


def make_entry(seq: int, message: Message) -> Entry:
    return Entry(
        "c", 0, seq, "message", message.role, "user", 0, b"", b"", None, None, message.canonical_json(), None, None
    )  # fmt: skip


def make_step(*messages: Message, first: int) -> RecordedStep:
    *before, reply = [make_entry(first + index, message) for index, message in enumerate(messages)]
    return RecordedStep(before=(), pending=tuple(before), reply=reply, manifest=None, starts_turn=True)


def call_history_read(first: int, last: int) -> Message:
    arguments = json.dumps({"first": first, "last": last})
    return Message(role="assistant", parts=(ToolCallPart(id="call", name="history_read", arguments=arguments),))


def test_citations_and_reads_are_needs_except_those_of_the_newest_messages():
    finder = NeedFinder()
    assert finder.find(make_step(Message.user("Hello"), Message.assistant("Hi"), first=1)) == []
    cited = finder.find(make_step(Message.user("And?"), Message.assistant("As you said [#1], and now [#3]."), first=3))
    assert cited == [Need("cited", (1,))]
    assert finder.find(make_step(Message.user("Read"), call_history_read(2, 9), first=5)) == [
        Need("read", (2,)), Need("read", (3,)), Need("read", (4,)),
    ]  # fmt: skip


def test_only_messages_are_needed():
    """Number 3 is another entry, such as a compaction, which no request can have in view."""
    finder = NeedFinder()
    finder.find(make_step(Message.user("Hello"), Message.assistant("Hi"), first=1))
    cited = finder.find(make_step(Message.user("And?"), Message.assistant("As in [#2] and [#3]."), first=4))
    assert cited == [Need("cited", (2,))]
    assert finder.find(make_step(Message.user("Read"), call_history_read(2, 4), first=6)) == [
        Need("read", (2,)), Need("read", (4,)),
    ]  # fmt: skip


def test_a_quote_is_the_longest_run_of_shared_words():
    finder = NeedFinder()
    finder.find(make_step(Message.user(f"Note: {RECIPE}, and stir."), Message.assistant("Noted."), first=1))
    reply = Message.assistant(f'You wrote: "{RECIPE.upper()}"; nothing else.')
    [need] = finder.find(make_step(Message.user("Repeat it."), reply, first=3))
    assert need == Need("quoted", (1,), tuple(RECIPE.split()))


def test_seven_words_in_common_are_no_quote():
    finder = NeedFinder()
    finder.find(make_step(Message.user(RECIPE), Message.assistant("Noted."), first=1))
    reply = Message.assistant(" ".join(RECIPE.split()[:7]))
    assert finder.find(make_step(Message.user("Repeat it."), reply, first=3)) == []


def test_what_a_reply_passes_to_a_tool_quotes_too_and_its_own_words_do_not():
    finder = NeedFinder()
    finder.find(make_step(Message.user("Begin."), Message.assistant(RECIPE), first=1))
    assert finder.find(make_step(Message.user("Again."), Message.assistant(RECIPE), first=3)) == []
    finder.find(make_step(Message.tool("call", RECIPE), Message.assistant("Read."), first=5))
    call = ToolCallPart(id="edit", name="edit", arguments=json.dumps({"old": RECIPE, "new": "none"}))
    [need] = finder.find(make_step(Message.user("Edit."), Message(role="assistant", parts=(call,)), first=7))
    assert need.kind == "quoted"
    assert need.messages == (5,)


async def test_regret_is_what_the_request_did_not_have_in_view(store: SqlStore):
    """A discarded message is missed; with a window that holds everything nothing is."""
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 100_000})
    engine = Engine(store, EngineConfig.create(settings))
    conversation = await engine.conversation("c")
    filler = "The road was dry and we met other carts at noon near the mill by the river. " * 12
    await conversation.append(f"Note: {RECIPE}.", Message.assistant("Noted."))
    for day in range(12):
        await conversation.append(f"Day {day}. {filler}", Message.assistant("Go on."))
    await conversation.append("How did the recipe begin?", Message.assistant(f"So: {RECIPE}, as you wrote [#1]."))
    selection = await select_conversations(store, ["c"])
    report = await run_backtest(engine, combine_variants(["discard"], windows=[1_500, 50_000]), selection)
    small, large = report.variants
    assert (small.needed, large.needed) == (2, 2)
    assert (small.regret.numerator, large.regret.numerator) == (2, 0)
    await engine.wait_for_background()


async def test_words_that_a_reply_in_view_repeats_are_not_missed(store: SqlStore):
    """The message with the words is discarded, but an assistant message that quotes it is in view as a whole."""
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 100_000})
    engine = Engine(store, EngineConfig.create(settings))
    conversation = await engine.conversation("c")
    filler = "The road was dry and we met other carts at noon near the mill by the river. " * 12
    await conversation.append(f"Note: {RECIPE}.", Message.assistant("Noted."))
    for day in range(12):
        await conversation.append(f"Day {day}. {filler}", Message.assistant("Go on."))
    await conversation.append("How did the recipe begin?", Message.assistant(f"So: {RECIPE}."))
    await conversation.append("Again?", Message.assistant(f"Once more: {RECIPE}."))
    selection = await select_conversations(store, ["c"])
    [small] = (await run_backtest(engine, combine_variants(["discard"], windows=[1_500]), selection)).variants
    assert (small.needed, small.regret.numerator) == (2, 1)
    await engine.wait_for_background()
