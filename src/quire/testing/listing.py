"""What any backend must do with conversations as a whole: made, named, listed; as tests."""

import asyncio

import pytest

from quire.errors import (
    ConversationExists,
    ConversationNotFound,
)
from quire.log import Store
from quire.model import (
    Message,
)


class ListingContract:
    """The part of `StoreContract` about conversations."""

    async def test_a_conversation_is_made_once_and_found_again(self, store: Store) -> None:
        made = await store.create_conversation("chat-1", title="First")
        assert await store.conversation("chat-1") == made
        assert made.title == "First"
        with pytest.raises(ConversationExists):
            await store.create_conversation("chat-1")
        with pytest.raises(ConversationNotFound):
            await store.conversation("chat-2")
        await store.rename("chat-1", "Renamed")
        assert (await store.conversation("chat-1")).title == "Renamed"
        with pytest.raises(ConversationNotFound):
            await store.rename("chat-2", "x")

    async def test_conversations_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        made = [await store.create_conversation() for _ in range(7)]
        assert len({conversation.id for conversation in made}) == 7
        first = await store.conversations(limit=4)
        rest = await store.conversations(limit=4, before=first[-1])
        assert [*first, *rest] == sorted(made, key=lambda each: (each.created_at, each.id), reverse=True)

    async def test_the_conversation_that_was_used_last_comes_first(self, store: Store) -> None:
        for name in ("early", "late"):
            await store.create_conversation(name)
        await asyncio.sleep(1.1)
        await store.append("early", Message.user("Are you there?"))
        assert [each.id for each in await store.conversations()] == ["early", "late"]

    async def test_a_conversation_without_a_title_is_called_by_its_first_question(self, store: Store) -> None:
        await store.create_conversation("named", title="Mills")
        for name in ("empty", "asked", "long", "purged"):
            await store.create_conversation(name)
        await store.append("named", Message.user("Why do mills turn?"))
        await store.append("asked", Message.system("Be brief."), Message.user("Why do\n\nmills  turn?"))
        await store.append("asked", Message.assistant("Water."), Message.user("And in winter?"))
        await store.append("long", Message.user("wheel " * 50))
        [said] = await store.append("purged", Message.user("My secret is 0451."))
        await store.purge("purged", [said.seq])
        found = await store.titled(*[await store.conversation(name) for name in ("named", "empty", "asked", "purged")])
        assert [each.title for each in found] == ["Mills", "", "Why do mills turn?", ""]
        [long] = await store.titled(await store.conversation("long"))
        assert long.title == " ".join(["wheel"] * 13) + "…"
        assert (await store.conversation("long")).title == ""

    async def test_forking_a_conversation_is_using_it(self, store: Store) -> None:
        for name in ("early", "late"):
            await store.create_conversation(name)
        fork = await store.fork("early", at=0)
        first, second = await store.conversations()
        assert (first.id, first.used_at, second.id) == ("early", fork.used_at, "late")
