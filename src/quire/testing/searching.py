"""What any backend must do with what a search can find: passages by word and vector, and documents, as tests."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import (
    InvalidEntry,
)
from quire.log import (
    Document,
    DocumentMark,
    Embedded,
    Hit,
    IndexedDocument,
    Passage,
    Store,
    conversation_scope,
    memory_scope,
    packed,
    vault_scope,
)
from quire.testing.given import for_any
from quire.testing.strategies import texts

VAULT = vault_scope("notes")
EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]

HOSTILE = (
    "", " ", "\x00", "\x00\x00 river", "'", '"', '"river', "river*", "NEAR(river, 2)", "river AND", "OR", "NOT river",
    "text: river", "^river", "river + bank", "(river", "{river} : bank", "-river", "!river", "river & | !", "a:*",
    "'; DROP TABLE quire_passages; --", "%s %(x)s :x ?", "\\", "the of and", "\ud800", "\u202e", "e\u0301", "河川の水",
    "river " * 5_000, "x" * 100_000, " ".join(f"w{number}" for number in range(20_000)),
)  # fmt: skip


def keys(hits: Sequence[Hit]) -> list[str]:
    return [hit.key for hit in hits]


def indexed(path: str, *sections: str, digest: bytes = b"d") -> IndexedDocument:
    passages = tuple(Passage(path, text, part, title=path) for part, text in enumerate(sections))
    return IndexedDocument(Document(path, digest, 10, 20, "T", "S", ("alias",), ("# One", "# Two")), passages)


class SearchContract:
    """The part of `StoreContract` about search."""

    async def test_what_has_more_and_rarer_words_of_the_question_comes_first(self, store: Store) -> None:
        said = ["the river is wide", "the river has an otter", "otters swim", "the mill by the river", "a mill"]
        await store.put_passages(VAULT, [Passage(text, text) for text in said])
        hits = await store.search("Is there an otter in the river?", scopes=[VAULT])
        assert keys(hits)[:2] == ["the river has an otter", "otters swim"]
        assert set(keys(hits)) == {text for text in said if "river" in text or "otter" in text}
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert hits[0].score == 1
        assert (
            keys(await store.search("river", scopes=[VAULT], limit=2))
            == keys(await store.search("river", scopes=[VAULT]))[:2]
        )

    async def test_a_hit_has_all_that_was_put(self, store: Store) -> None:
        await store.put_passages(VAULT, [Passage("a.md", "Otters swim", 3, title="Animals", at=7)])
        for query in ("otter", "animal", "OTTERS swimming"):
            assert await store.search(query, scopes=[VAULT]) == [Hit(VAULT, "a.md", 3, "Animals", "Otters swim", 1, 7)]
        assert await store.passages(VAULT, "a.md") == [Passage("a.md", "Otters swim", 3, "Animals", 7)]
        assert await store.passages(VAULT, "b.md") == []

    async def test_only_the_scopes_that_are_named_are_searched(self, store: Store) -> None:
        for scope in ("vault:a", "vault:b", "vault:c"):
            await store.put_passages(scope, [Passage("k", "the same river")])
        assert [hit.scope for hit in await store.search("river", scopes=["vault:b"])] == ["vault:b"]
        both = await store.search("river", scopes=["vault:c", "vault:a", "vault:c"])
        assert sorted(hit.scope for hit in both) == ["vault:a", "vault:c"]
        assert await store.search("river", scopes=[]) == []
        assert await store.search("river", scopes=["vault:unknown"]) == []

    async def test_new_passages_of_a_key_take_the_place_of_the_old(self, store: Store) -> None:
        await store.put_passages(VAULT, [Passage("a", "otter", part) for part in range(3)])
        await store.put_passages(VAULT, [Passage("b", "otter and badger")])
        await store.put_passages(VAULT, [Passage("a", "heron", 0), Passage("a", "otter", 1)])
        assert keys(await store.search("heron", scopes=[VAULT])) == ["a"]
        assert sorted((hit.key, hit.part) for hit in await store.search("otter", scopes=[VAULT])) == [
            ("a", 1),
            ("b", 0),
        ]
        await store.put_passages(VAULT, [Passage("c", "badger")], replacing=["b"])
        assert keys(await store.search("badger", scopes=[VAULT])) == ["c"]
        await store.drop_passages(VAULT, ["a", "c", "never there"])
        assert await store.search("otter heron badger", scopes=[VAULT]) == []
        with pytest.raises(InvalidEntry):
            await store.put_passages(VAULT, [Passage("a", "x"), Passage("a", "y")])

    async def test_nothing_that_is_asked_is_syntax(self, store: Store) -> None:
        await store.put_passages(VAULT, [Passage("k", "the river bank")])
        for query in HOSTILE:
            found = await store.search(query, scopes=[VAULT])
            assert keys(found) == (["k"] if "river" in query else []), query

    @for_any
    @given(query=texts(), text=texts(), title=texts(max_size=20))
    async def test_any_text_can_be_kept_and_asked(self, store: Store, query: str, text: str, title: str) -> None:
        await store.put_passages(VAULT, [Passage("k", text, title=title)])
        await store.search(query, scopes=[VAULT])
        [kept] = await store.passages(VAULT, "k")
        assert (kept.text, kept.title) == (text.replace("\x00", "\ufffd"), title.replace("\x00", "\ufffd"))
        await store.put_passages(VAULT, [Passage("k", f"{text} otter")])
        assert keys(await store.search(f"{query} otter", scopes=[VAULT])) == ["k"]

    @for_any
    @given(
        acts=st.lists(
            st.tuples(st.integers(0, 5), st.lists(st.sampled_from(["otter", "heron", "badger", "fox"]), max_size=4)),
            max_size=12,
        )
    )
    async def test_a_search_finds_what_is_there_whatever_was_before(
        self, store: Store, acts: list[tuple[int, list[str]]]
    ) -> None:
        scope = vault_scope((await store.create_conversation()).id)
        there: dict[str, list[str]] = {}
        for number, said in acts:
            there[str(number)] = said
            if said:
                await store.put_passages(scope, [Passage(str(number), word, part) for part, word in enumerate(said)])
            else:
                await store.drop_passages(scope, [str(number)])
        for word in ("otter", "heron", "badger", "fox"):
            hits = await store.search(word, scopes=[scope], limit=100)
            expected = [(key, part) for key, said in there.items() for part, each in enumerate(said) if each == word]
            assert sorted((hit.key, hit.part) for hit in hits) == sorted(expected)

    async def test_vectors_find_what_shares_no_word(self, store: Store) -> None:
        await store.put_passages(
            VAULT,
            [
                Passage("east", "sunrise", embedder="e", vector=packed(EAST)),
                Passage("north", "otter", embedder="e", vector=packed(NORTH)),
                Passage("west", "sunset", embedder="e", vector=packed(WEST)),
                Passage("strange", "moon", embedder="other", vector=packed(EAST)),
                Passage("longer", "star", embedder="e", vector=packed([*EAST, 0.0])),
                Passage("none", "cloud"),
                Passage("nothing", "fog", embedder="e", vector=packed([0.0, 0.0])),
            ],
        )
        near = await store.search("dawn", scopes=[VAULT], vector=[0.9, 0.1], embedder="e")
        assert keys(near) == ["east", "north"]
        both = await store.search("otter sunset", scopes=[VAULT], vector=[0.1, 0.9], embedder="e")
        assert keys(both)[0] == "north"
        assert both[0].score == 1
        assert set(keys(both)) == {"north", "east", "west"}
        assert await store.search("dawn", scopes=[VAULT], vector=EAST, embedder="unknown") == []
        with pytest.raises(InvalidEntry):
            await store.put_passages(VAULT, [Passage("x", "x", vector=packed(EAST))])

    async def test_vectors_can_come_later_and_only_to_the_text_they_were_made_for(self, store: Store) -> None:
        await store.put_passages(VAULT, [Passage("a", "otter"), Passage("b", "heron")])
        lacking = await store.unembedded(VAULT, embedder="e")
        assert [(each.key, each.text) for each in lacking] == [("a", "otter"), ("b", "heron")]
        assert len(await store.unembedded(VAULT, embedder="e", limit=1)) == 1
        await store.put_passages(VAULT, [Passage("b", "badger")])
        made = [Embedded(each.key, each.part, each.digest, packed(EAST)) for each in lacking]
        await store.put_vectors(VAULT, made, embedder="e")
        assert keys(await store.search("dawn", scopes=[VAULT], vector=EAST, embedder="e")) == ["a"]
        assert [each.key for each in await store.unembedded(VAULT, embedder="e")] == ["b"]
        assert [each.key for each in await store.unembedded(VAULT, embedder="a")] == ["b", "a"]
        assert [each.key for each in await store.unembedded(VAULT, embedder="z")] == ["b", "a"]
        # The same text again, put without a vector, keeps the one that it has.
        await store.put_passages(VAULT, [Passage("a", "otter")])
        assert keys(await store.search("dawn", scopes=[VAULT], vector=EAST, embedder="e")) == ["a"]

    async def test_passages_of_messages_and_memories_come_only_with_what_they_are_of(self, store: Store) -> None:
        for scope in (conversation_scope("c"), memory_scope("agent")):
            with pytest.raises(InvalidEntry):
                await store.put_passages(scope, [Passage("0:1", "text")])

    async def test_documents_are_put_with_their_passages_and_dropped_with_them(self, store: Store) -> None:
        await store.put_documents("notes", [indexed("b.md", "otters", "herons"), indexed("a.md", "badgers")])
        await store.put_documents("other", [indexed("a.md", "foxes")])
        marks = [DocumentMark("a.md", b"d", 10, 20), DocumentMark("b.md", b"d", 10, 20)]
        assert await store.document_marks("notes") == marks
        assert [each.path for each in await store.documents("notes")] == ["a.md", "b.md"]
        assert await store.documents("notes", paths=["b.md", "none.md"]) == [indexed("b.md").document]
        [hit] = await store.search("heron", scopes=[VAULT])
        assert (hit.key, hit.part) == ("b.md", 1)
        await store.put_documents("notes", [indexed("b.md", "otters", digest=b"new")])
        assert (await store.document_marks("notes"))[1].digest == b"new"
        assert await store.search("heron", scopes=[VAULT]) == []
        await store.touch_documents("notes", [("b.md", 11, 21), ("none.md", 1, 1)])
        assert (await store.document_marks("notes"))[1] == DocumentMark("b.md", b"new", 11, 21)
        assert keys(await store.search("otter", scopes=[VAULT])) == ["b.md"]
        await store.drop_documents("notes", ["b.md", "none.md"])
        assert await store.document_marks("notes") == marks[:1]
        assert await store.search("otter", scopes=[VAULT]) == []
        assert len(await store.document_marks("other")) == 1
        with pytest.raises(InvalidEntry):
            await store.put_documents("notes", [IndexedDocument(indexed("x.md").document, (Passage("y.md", "t"),))])
        assert await store.document_marks("notes") == marks[:1]
