"""SqlStore contract for search: passages by word and vector, and documents."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import property_settings
from infra.strategies import texts
from quire.errors import InvalidEntry
from quire.index.types import (
    IndexedDocument,
    Passage,
    PassageVector,
    SearchHit,
    VaultDocument,
    memory_scope,
    messages_scope,
    vault_scope,
)
from quire.index.vectors import pack_vector
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

VAULT_SCOPE = vault_scope("notes")
EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]

HOSTILE_QUERIES = (
    "", " ", "\x00", "\x00\x00 river", "'", '"', '"river', "river*", "NEAR(river, 2)", "river AND", "OR", "NOT river",
    "text: river", "^river", "river + bank", "(river", "{river} : bank", "-river", "!river", "river & | !", "a:*",
    "'; DROP TABLE quire_passages; --", "%s %(x)s :x ?", "\\", "the of and", "\ud800", "\u202e", "e\u0301", "河川の水",
    "river " * 5_000, "x" * 100_000, " ".join(f"w{number}" for number in range(20_000)),
)  # fmt: skip


def get_hit_keys(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.key for hit in hits]


def make_indexed_document(path: str, *sections: str, digest: bytes = b"d") -> IndexedDocument:
    passages = tuple(Passage(path, text, part, title=path) for part, text in enumerate(sections))
    return IndexedDocument(VaultDocument(path, digest, 10, 20, "T", "S", ("alias",), ("# One", "# Two")), passages)


async def test_what_has_more_and_rarer_words_of_the_question_comes_first(store: SqlStore) -> None:
    texts = ["the river is wide", "the river has an otter", "otters swim", "the mill by the river", "a mill"]
    await store.passages.put(VAULT_SCOPE, [Passage(text, text) for text in texts])
    hits = await store.passages.search("Is there an otter in the river?", scopes=[VAULT_SCOPE])
    assert get_hit_keys(hits)[:2] == ["the river has an otter", "otters swim"]
    assert set(get_hit_keys(hits)) == {text for text in texts if "river" in text or "otter" in text}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert 0 < hits[0].score <= 1
    assert (
        get_hit_keys(await store.passages.search("river", scopes=[VAULT_SCOPE], limit=2))
        == get_hit_keys(await store.passages.search("river", scopes=[VAULT_SCOPE]))[:2]
    )


async def test_a_hit_has_all_that_was_put(store: SqlStore) -> None:
    await store.passages.put(VAULT_SCOPE, [Passage("a.md", "Otters swim", 3, title="Animals", at=7)])
    for query in ("otter", "animal", "OTTERS swimming"):
        [hit] = await store.passages.search(query, scopes=[VAULT_SCOPE])
        assert hit == SearchHit(VAULT_SCOPE, "a.md", 3, "Animals", "Otters swim", hit.score, 7)
    assert await store.passages.get(VAULT_SCOPE, "a.md") == [Passage("a.md", "Otters swim", 3, "Animals", 7)]
    assert await store.passages.get(VAULT_SCOPE, "b.md") == []


async def test_only_the_scopes_that_are_named_are_searched(store: SqlStore) -> None:
    for scope in ("vault:a", "vault:b", "vault:c"):
        await store.passages.put(scope, [Passage("k", "the same river")])
    assert [hit.scope for hit in await store.passages.search("river", scopes=["vault:b"])] == ["vault:b"]
    both = await store.passages.search("river", scopes=["vault:c", "vault:a", "vault:c"])
    assert sorted(hit.scope for hit in both) == ["vault:a", "vault:c"]
    assert await store.passages.search("river", scopes=[]) == []
    assert await store.passages.search("river", scopes=["vault:unknown"]) == []


async def test_new_passages_of_a_key_take_the_place_of_the_old(store: SqlStore) -> None:
    await store.passages.put(VAULT_SCOPE, [Passage("a", "otter", part) for part in range(3)])
    await store.passages.put(VAULT_SCOPE, [Passage("b", "otter and badger")])
    await store.passages.put(VAULT_SCOPE, [Passage("a", "heron", 0), Passage("a", "otter", 1)])
    assert get_hit_keys(await store.passages.search("heron", scopes=[VAULT_SCOPE])) == ["a"]
    assert sorted((hit.key, hit.part) for hit in await store.passages.search("otter", scopes=[VAULT_SCOPE])) == [
        ("a", 1),
        ("b", 0),
    ]
    await store.passages.put(VAULT_SCOPE, [Passage("c", "badger")], replacing=["b"])
    assert get_hit_keys(await store.passages.search("badger", scopes=[VAULT_SCOPE])) == ["c"]
    await store.passages.delete(VAULT_SCOPE, ["a", "c", "never there"])
    assert await store.passages.search("otter heron badger", scopes=[VAULT_SCOPE]) == []
    with pytest.raises(InvalidEntry):
        await store.passages.put(VAULT_SCOPE, [Passage("a", "x"), Passage("a", "y")])


async def test_no_query_is_syntax(store: SqlStore) -> None:
    await store.passages.put(VAULT_SCOPE, [Passage("k", "the river bank")])
    for query in HOSTILE_QUERIES:
        found = await store.passages.search(query, scopes=[VAULT_SCOPE])
        assert get_hit_keys(found) == (["k"] if "river" in query else []), query


@property_settings
@given(query=texts(), text=texts(), title=texts(max_size=20))
async def test_any_text_can_be_stored_and_searched(store: SqlStore, query: str, text: str, title: str) -> None:
    await store.passages.put(VAULT_SCOPE, [Passage("k", text, title=title)])
    await store.passages.search(query, scopes=[VAULT_SCOPE])
    [passage] = await store.passages.get(VAULT_SCOPE, "k")
    assert (passage.text, passage.title) == (text.replace("\x00", "\ufffd"), title.replace("\x00", "\ufffd"))
    await store.passages.put(VAULT_SCOPE, [Passage("k", f"{text} otter")])
    assert get_hit_keys(await store.passages.search(f"{query} otter", scopes=[VAULT_SCOPE])) == ["k"]


@property_settings
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.sampled_from(["otter", "heron", "badger", "fox"]), max_size=4)),
        max_size=12,
    )
)
async def test_a_search_finds_what_is_there_whatever_was_before(
    store: SqlStore, writes: list[tuple[int, list[str]]]
) -> None:
    scope = vault_scope((await store.create_conversation()).id)
    stored: dict[str, list[str]] = {}
    for number, words in writes:
        stored[str(number)] = words
        if words:
            await store.passages.put(scope, [Passage(str(number), word, part) for part, word in enumerate(words)])
        else:
            await store.passages.delete(scope, [str(number)])
    for word in ("otter", "heron", "badger", "fox"):
        hits = await store.passages.search(word, scopes=[scope], limit=100)
        expected = [(key, part) for key, words in stored.items() for part, each in enumerate(words) if each == word]
        assert sorted((hit.key, hit.part) for hit in hits) == sorted(expected)


async def test_vectors_find_what_shares_no_word(store: SqlStore) -> None:
    await store.passages.put(
        VAULT_SCOPE,
        [
            Passage("east", "sunrise", embedder="e", vector=pack_vector(EAST)),
            Passage("north", "otter", embedder="e", vector=pack_vector(NORTH)),
            Passage("west", "sunset", embedder="e", vector=pack_vector(WEST)),
            Passage("strange", "moon", embedder="other", vector=pack_vector(EAST)),
            Passage("longer", "star", embedder="e", vector=pack_vector([*EAST, 0.0])),
            Passage("none", "cloud"),
            Passage("nothing", "fog", embedder="e", vector=pack_vector([0.0, 0.0])),
        ],
    )
    near = await store.passages.search("dawn", scopes=[VAULT_SCOPE], vector=[0.9, 0.1], embedder="e")
    assert get_hit_keys(near) == ["east", "north"]
    both = await store.passages.search("otter sunset", scopes=[VAULT_SCOPE], vector=[0.1, 0.9], embedder="e")
    assert get_hit_keys(both)[0] == "north"
    assert 1 >= both[0].score > 1.5 * both[1].score
    assert set(get_hit_keys(both)) == {"north", "east", "west"}
    assert await store.passages.search("dawn", scopes=[VAULT_SCOPE], vector=EAST, embedder="unknown") == []
    with pytest.raises(InvalidEntry):
        await store.passages.put(VAULT_SCOPE, [Passage("x", "x", vector=pack_vector(EAST))])


async def test_vectors_can_come_later_and_only_to_the_text_they_were_made_for(store: SqlStore) -> None:
    await store.passages.put(VAULT_SCOPE, [Passage("a", "otter"), Passage("b", "heron")])
    lacking = await store.passages.list_unembedded(VAULT_SCOPE, embedder="e")
    assert [(each.key, each.text) for each in lacking] == [("a", "otter"), ("b", "heron")]
    assert len(await store.passages.list_unembedded(VAULT_SCOPE, embedder="e", limit=1)) == 1
    await store.passages.put(VAULT_SCOPE, [Passage("b", "badger")])
    vectors = [PassageVector(each.key, each.part, each.digest, pack_vector(EAST)) for each in lacking]
    await store.passages.put_vectors(VAULT_SCOPE, vectors, embedder="e")
    assert get_hit_keys(await store.passages.search("dawn", scopes=[VAULT_SCOPE], vector=EAST, embedder="e")) == ["a"]
    assert [each.key for each in await store.passages.list_unembedded(VAULT_SCOPE, embedder="e")] == ["b"]
    assert [each.key for each in await store.passages.list_unembedded(VAULT_SCOPE, embedder="a")] == ["b", "a"]
    assert [each.key for each in await store.passages.list_unembedded(VAULT_SCOPE, embedder="z")] == ["b", "a"]
    # The same text, put again without a vector, retains its vector.
    await store.passages.put(VAULT_SCOPE, [Passage("a", "otter")])
    assert get_hit_keys(await store.passages.search("dawn", scopes=[VAULT_SCOPE], vector=EAST, embedder="e")) == ["a"]


async def test_passages_of_messages_and_memories_come_only_with_what_they_are_of(store: SqlStore) -> None:
    for scope in (messages_scope("c"), memory_scope("agent")):
        with pytest.raises(InvalidEntry):
            await store.passages.put(scope, [Passage("0:1", "text")])


async def test_documents_are_put_with_their_passages_and_dropped_with_them(store: SqlStore) -> None:
    await store.documents.put(
        "notes", [make_indexed_document("b.md", "otters", "herons"), make_indexed_document("a.md", "badgers")]
    )
    await store.documents.put("other", [make_indexed_document("a.md", "foxes")])
    documents = [make_indexed_document("a.md").document, make_indexed_document("b.md").document]
    assert await store.documents.list("notes") == documents
    assert await store.documents.list("notes", paths=["b.md", "none.md"]) == [make_indexed_document("b.md").document]
    [hit] = await store.passages.search("heron", scopes=[VAULT_SCOPE])
    assert (hit.key, hit.part) == ("b.md", 1)
    await store.documents.put("notes", [make_indexed_document("b.md", "otters", digest=b"new")])
    assert (await store.documents.list("notes"))[1].digest == b"new"
    assert await store.passages.search("heron", scopes=[VAULT_SCOPE]) == []
    await store.documents.touch("notes", [("b.md", 11, 21), ("none.md", 1, 1)])
    assert (await store.documents.list("notes"))[1][:4] == ("b.md", b"new", 11, 21)
    assert get_hit_keys(await store.passages.search("otter", scopes=[VAULT_SCOPE])) == ["b.md"]
    await store.documents.delete("notes", ["b.md", "none.md"])
    assert await store.documents.list("notes") == documents[:1]
    assert await store.passages.search("otter", scopes=[VAULT_SCOPE]) == []
    assert len(await store.documents.list("other")) == 1
    with pytest.raises(InvalidEntry):
        await store.documents.put(
            "notes", [IndexedDocument(make_indexed_document("x.md").document, (Passage("y.md", "t"),))]
        )
    assert await store.documents.list("notes") == documents[:1]
