"""Search over all messages of a tenant: as a scorer that reads every message, whatever happened to the log before."""

import asyncio
from collections.abc import Sequence
from math import log, sqrt
from typing import Any, NamedTuple

import pytest
from engine_fixtures import PairEmbedder, damage_segments, set_index_format
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import property_settings
from quire.engine import Engine, EngineConfig, message_index, runtime
from quire.engine.message_index import index_messages
from quire.engine.search import MessageFilter, MessageHit, search_messages
from quire.engine.tenants import TenantEngines
from quire.index import message_index as stored_index
from quire.llm.embeddings import load_local_embedder
from quire.log import ConversationOrigin
from quire.model import Draft, Entry, Message, Pin, ToolCallPart
from quire.model.ids import new_id
from quire.search import catalog
from quire.search.postings import FORMAT_VERSION, POSTING_BYTES
from quire.search.query import MAX_QUERY_WORDS, parse_query
from quire.search.ranker import COVERAGE_DISTANCE, MIN_NEARBY_SIMILARITY, MIN_SIMILARITY, WEIGHTS
from quire.search.segments import count_message_terms
from quire.settings import Settings
from quire.store import SqlStore

WORDS = ("my", "otter", "heron", "badger", "willow", "river", "mill", "tide", "spring", "lake")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
ROLES = ("user", "assistant")
QUANTIZATION_ERROR = 0.05
NAMES = (None, "Ann", "Bo")


def make_engine(store: SqlStore, *, embedder: Any = None) -> Engine:
    return Engine(store, EngineConfig.create(Settings(), embedder=embedder))


class Write(NamedTuple):
    """Appends a text, forks a branch, purges a message or indexes, as far as the log allows."""

    action: str
    conversation: int
    branch: int
    text: str
    number: int


WRITES = st.lists(
    st.builds(
        Write,
        st.sampled_from(["append"] * 6 + ["fork", "purge", "index"]),
        st.integers(0, 2),
        st.integers(0, 2),
        TEXTS,
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=COVERAGE_DISTANCE,  # all messages of a branch are near each other, wherever one was purged
)


async def apply_write(store: SqlStore, engine: Engine, write: Write, clock: int) -> None:
    conversation = f"c{write.conversation}"
    branches = await store.list_branches(conversation)
    branch = branches[write.branch % len(branches)]
    match write.action:
        case "append":
            role, name = ROLES[write.number % 2], NAMES[write.number % 3]
            message = Message.user(write.text, name=name) if role == "user" else Message.assistant(write.text)
            await store.append(conversation, Draft(body=message, created_at=clock), branch=branch.number)
        case "fork":
            await store.fork(conversation, at=write.number % (branch.head_seq + 1), branch=branch.number)
        case "purge" if branch.head_seq:
            await store.purge(conversation, [write.number % branch.head_seq + 1], branch=branch.number)
        case "index":
            await index_messages(engine, batch_entries=1 + write.number)
        case _:
            pass


async def list_messages(store: SqlStore) -> list[Entry]:
    """Every message that is not purged, once, from the branch that owns it."""
    found: dict[tuple[str, int, int], Entry] = {}
    for record in await store.list_conversations(limit=100):
        for branch in await store.list_branches(record.id):
            for entry in await store.read_range(record.id, branch=branch.number, kinds=["message"]):
                found[entry.conversation, entry.branch, entry.seq] = entry
    return [entry for entry in found.values() if entry.purged_at is None]


def score_all(
    messages: Sequence[Entry], query: str, embedder: PairEmbedder | None
) -> dict[tuple[str, int, int], float | None]:
    """The score of each message by the definition: BM25 as the share of the query's IDF, the cosine, its place, and the
    share of "my" among its words.

    None for a message that may be a hit or not, since a quantized vector may be on either side of the limit.
    """
    counts = [count_message_terms(entry.message.text) for entry in messages]
    parsed = parse_query(query, at=0)
    words = [word.terms for word in parsed.words]
    idfs = []
    for word in words:
        matching = max((sum(term in each for each in counts) for term in word), default=0)
        idfs.append(log(1 + (len(messages) - matching + 0.5) / (matching + 0.5)))
    scores: dict[tuple[str, int, int], float | None] = {}
    for entry, terms in zip(messages, counts, strict=True):
        length = sum(terms.values())
        damping = 1.2 * (0.4 + 0.6 * length / 60)
        share = sum(
            idf * terms[term] / (terms[term] + damping)
            for word, idf in zip(words, idfs, strict=True)
            for term in word
            if term in terms
        ) / (sum(idfs) or 1)
        nearby = [
            each
            for other, each in zip(messages, counts, strict=True)
            if (other.conversation, other.branch) == (entry.conversation, entry.branch)
            and abs(other.seq - entry.seq) <= COVERAGE_DISTANCE
        ]
        covered = [any(term in each for term in word for each in nearby) for word in words]
        coverage = sum(idf for idf, is_covered in zip(idfs, covered, strict=True) if is_covered) / (sum(idfs) or 1)
        signals = {"match_share": share, "coverage": coverage} if words else {}
        is_hit: bool | None = share > 0
        if embedder is not None:
            one, text, subject = embedder.embed([entry.message.text, query, parsed.subject])
            other = text + subject
            cosine = float(one @ other) / (sqrt(float(one @ one) * float(other @ other)) or 1)
            signals["similarity"] = max(0.0, cosine)
            limit = MIN_NEARBY_SIMILARITY if coverage > 0 else MIN_SIMILARITY
            if not is_hit and cosine >= limit - QUANTIZATION_ERROR:
                is_hit = True if cosine >= limit + QUANTIZATION_ERROR else None
        weights, spoken = WEIGHTS["list"], entry.message.text.split()
        total = sum(weights[name] for name in signals) or 1
        score = sum(weights[name] * value for name, value in signals.items()) / total
        score += weights["session_opening"] / entry.seq
        if "my" in query.split():
            score += weights["first_person"] * spoken.count("my") / (1 + len(spoken))
        score = min(1.0, score)
        scores[entry.conversation, entry.branch, entry.seq] = None if is_hit is None else score * is_hit
    return scores


def hit_key(hit: MessageHit) -> tuple[str, int, int]:
    return hit.entry.conversation, hit.entry.branch, hit.entry.seq


def matches(entry: Entry, where: MessageFilter) -> bool:
    return (
        (where.conversations is None or entry.conversation in where.conversations)
        and (where.role is None or entry.role == where.role)
        and (where.person is None or entry.message.name == where.person)
        and (where.since is None or entry.created_at >= where.since)
        and (where.until is None or entry.created_at < where.until)
    )


FILTERS = st.builds(
    MessageFilter,
    conversations=st.none() | st.just(("c0", "c2")),
    role=st.sampled_from([None, None, "user", "assistant"]),
    person=st.sampled_from([None, None, "Ann"]),
    since=st.none() | st.integers(0, 25),
    until=st.none() | st.integers(5, 30),
)


@pytest.mark.every_database
@property_settings
@given(writes=WRITES, query=TEXTS, where=FILTERS, with_meaning=st.booleans(), more=TEXTS)
async def test_a_search_scores_every_message_of_the_log(
    store: SqlStore, writes: list[Write], query: str, where: MessageFilter, with_meaning: bool, more: str
):
    tenant = store.for_tenant(new_id())
    for number in range(3):
        await tenant.create_conversation(f"c{number}")
    embedder = PairEmbedder() if with_meaning else None
    engine = make_engine(tenant, embedder=embedder)
    for clock, write in enumerate(writes):
        await apply_write(tenant, engine, write, clock)
        if clock == len(writes) // 2:
            await search_messages(engine, query)
    await tenant.append("c0", Draft(body=Message.user(more), created_at=99))
    if where.conversations is not None:
        # Otherwise only the messages of these conversations are indexed first, and the rarity of a word is theirs.
        await index_messages(engine)
    for same in (engine, make_engine(tenant, embedder=embedder)):
        found = await search_messages(same, query, where=where, limit=100)
        messages = await list_messages(tenant)
        scores = score_all(messages, query, embedder)
        keys = [(entry.conversation, entry.branch, entry.seq) for entry in messages if matches(entry, where)]
        expected = {key: score for key in keys if (score := scores[key]) is not None and score > 0.02}
        unsure = {key for key in keys if scores[key] is None}
        assert found.complete
        got = {hit_key(hit): hit.score for hit in found.messages}
        assert len(got) == len(found.messages)
        assert {key for key, score in got.items() if score > 0.04} - unsure <= set(expected) <= set(got)
        for key, score in expected.items():
            assert got[key] == pytest.approx(score, abs=QUANTIZATION_ERROR)
        order = [(-hit.score, -hit.entry.created_at, *hit_key(hit)) for hit in found.messages]
        assert order == sorted(order)
        top = await search_messages(same, query, where=where, limit=2)
        assert [hit_key(hit) for hit in top.messages] == [hit_key(hit) for hit in found.messages[:2]]
        high = await search_messages(same, query, where=where, min_score=0.3, limit=100)
        assert [hit_key(hit) for hit in high.messages] == [hit_key(hit) for hit in found.messages if hit.score >= 0.3]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("why the sluice stays closed", "assistant"),
        ("sluice error", "tool"),
        ("where did I say the sluice stays closed", "user"),
    ],
)
async def test_the_kind_of_message_that_a_query_asks_for_comes_first(store: SqlStore, query: str, first: str):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    call = ToolCallPart(id="1", name="look", arguments="{}")
    await conversation.append(
        *(Message.user("The mill runs day and night.") for _ in range(10)),
        Message.assistant("The sluice stays closed."),
        Message(role="assistant", parts=(call,)),
        Message.tool("1", "The sluice stays closed."),
        Message.user("The sluice stays closed."),
    )
    found = await search_messages(engine, query, limit=1)
    assert [hit.entry.role for hit in found.messages] == [first]


async def test_candidates_that_are_selected_score_as_among_all_messages(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine(store)
    await store.create_conversation("c")
    # The best by words are in no order, and only the first messages are near the second word.
    for number in range(60):
        text = "otter " * (1 + number * 7 % 11) + ("river" if number in (2, 3) else "mill")
        await store.append("c", Draft(body=Message.user(text), created_at=number))
    among_all = await search_messages(engine, "otter river", limit=60)
    monkeypatch.setattr(catalog, "MAX_CANDIDATES", 16)
    selected = await search_messages(engine, "otter river", limit=60)
    assert len(selected.messages) == 16
    assert {(hit.entry.seq, hit.score) for hit in selected.messages} < {
        (hit.entry.seq, hit.score) for hit in among_all.messages
    }


async def test_what_is_similar_by_chance_is_no_hit(store: SqlStore):
    engine = make_engine(store, embedder=load_local_embedder())
    await store.create_conversation("c")
    texts = ["I used to go horseback riding with my dad.", "We painted the kitchen wall.", "The train was late again."]
    await store.append("c", *(Draft(body=Message.user(text)) for text in texts))
    assert (await search_messages(engine, "zzzz")).messages == []
    assert [hit.entry.seq for hit in (await search_messages(engine, "horses")).messages] == [1]


async def test_the_order_may_be_that_of_time(store: SqlStore):
    engine = make_engine(store)
    await store.create_conversation("c")
    texts = ["an otter", "otter otter", "a heron and many other words in a long line", "the otter of the mill"]
    await store.append("c", *(Draft(body=Message.user(text), created_at=at) for at, text in enumerate(texts)))
    for order, seqs in (("newest", [4, 2, 1]), ("oldest", [1, 2, 4])):
        found = await search_messages(engine, "otter", order=order)  # pyright: ignore[reportArgumentType]
        assert [hit.entry.seq for hit in found.messages] == seqs
    assert [hit.entry.seq for hit in (await search_messages(engine, "otter", order="newest", limit=1)).messages] == [4]


async def test_conversations_are_chosen_by_project_and_source(store: SqlStore):
    engine = make_engine(store)
    origins = {
        "a": ConversationOrigin(client="codex", project="/one"),
        "b": ConversationOrigin(client="claude-code", project="/one"),
        "c": ConversationOrigin(client="codex", project="/two"),
        "d": None,
    }
    for name, origin in origins.items():
        await store.create_conversation(name, title=f"Title of {name}", origin=origin)
        await store.append(name, Message.user("an otter"))

    async def find(**conditions: Any) -> set[str]:
        found = await search_messages(engine, "otter", where=MessageFilter(**conditions))
        assert all(hit.conversation.title == f"Title of {hit.entry.conversation}" for hit in found.messages)
        return {hit.conversation.id for hit in found.messages}

    assert await find() == {"a", "b", "c", "d"}
    assert await find(project="/one") == {"a", "b"}
    assert await find(source="codex") == {"a", "c"}
    assert await find(source="codex", project="/one") == {"a"}
    assert await find(source="codex", conversations=("b", "c")) == {"c"}
    assert await find(project="/none") == set()


async def test_a_search_of_a_branch_finds_what_it_shares_and_not_what_came_after(store: SqlStore):
    engine = Engine(store, EngineConfig.create(Settings()))
    conversation = await engine.conversation("c")
    await conversation.append("the key is shared", "the key of the parent")
    fork = await conversation.fork(1)
    await fork.append("the key of the fork")
    await (await engine.conversation("d")).append("the key of another conversation")

    async def find(branch: int) -> set[str]:
        found = await search_messages(engine, "key", branch=await store.get_branch("c", branch), limit=10)
        return {hit.entry.message.text for hit in found.messages}

    assert await find(0) == {"the key is shared", "the key of the parent"}
    assert await find(fork.branch) == {"the key is shared", "the key of the fork"}


async def test_a_hit_shows_where_the_words_are(store: SqlStore):
    engine = make_engine(store)
    await store.create_conversation("c")
    await store.append("c", Message.user("word " * 200 + "the otters swim " + "word " * 200))
    [hit] = (await search_messages(engine, "otter")).messages
    assert [hit.excerpt[start:end] for start, end in hit.highlights] == ["otters"]
    assert len(hit.excerpt) < 310


@pytest.mark.every_database
async def test_an_index_of_another_format_is_rebuilt_in_the_background(store: SqlStore, admin_url: str):
    engine = make_engine(store)
    await store.create_conversation("c")
    await store.append("c", Message.user("an otter"), Message.user("a heron"), Pin(message=1))
    assert len((await search_messages(engine, "otter")).messages) == 1
    set_index_format(admin_url, FORMAT_VERSION - 1)
    assert not (await search_messages(make_engine(store), "otter")).complete
    await engine.wait_for_background()
    rebuilt = await search_messages(make_engine(store), "otter")
    assert (rebuilt.complete, [hit.entry.seq for hit in rebuilt.messages]) == (True, [1])
    assert {ref.format for ref in await store.message_index.list_segments("c")} == {FORMAT_VERSION}


@pytest.mark.every_database
@pytest.mark.parametrize("purged", [False, True])
async def test_a_segment_with_damaged_bytes_is_built_again(store: SqlStore, admin_url: str, purged: bool):
    await store.create_conversation("c")
    await store.append("c", Message.user("an otter"), Message.user("a heron"))
    await index_messages(make_engine(store))
    damage_segments(admin_url)
    if purged:
        await store.purge("c", [2])
    await store.append("c", Message.user("one more otter"))
    found = await search_messages(make_engine(store), "otter heron")
    assert {hit.entry.seq for hit in found.messages} == ({1, 3} if purged else {1, 2, 3})
    read = await store.message_index.read_changes(["otter", "heron"], after_revision=0)
    counts = {term: sum(len(data) // POSTING_BYTES for _, data in blocks) for term, blocks in read.postings.items()}
    assert counts == ({"otter": 2} if purged else {"otter": 2, "heron": 1})


async def test_a_change_of_the_embedder_embeds_the_messages_again(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", Message.user("otters swim"), Message.user("xylophone"))
    assert (await search_messages(make_engine(store), "otter")).complete
    engine = make_engine(store, embedder=PairEmbedder())
    first = await search_messages(engine, "xylophones")
    assert not first.complete
    await engine.wait_for_background()
    second = await search_messages(engine, "ottering")
    assert (second.complete, [hit.entry.seq for hit in second.messages][:1]) == (True, [1])
    assert {ref.embedder for ref in await store.message_index.list_segments("c")} == {"pairs"}


async def test_more_than_a_request_can_wait_for_is_indexed_in_the_background(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(message_index, "MAX_INLINE_ENTRIES", 40)
    monkeypatch.setattr(message_index, "BATCH_ENTRIES", 20)
    engine = make_engine(store)
    for number in range(10):
        await store.create_conversation(f"c{number}")
        await store.append(f"c{number}", *(Message.user(f"otter {each}") for each in range(10)))
    assert not (await search_messages(engine, "otter", limit=100)).complete
    assert (await search_messages(engine, "otter", where=MessageFilter(conversations=("c0",)), limit=100)).complete
    await engine.wait_for_background()
    found = await search_messages(engine, "otter", limit=100)
    assert (len(found.messages), found.complete) == (100, True)


@pytest.mark.every_database
async def test_a_first_search_answers_in_time_and_later_ones_read_the_rest(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored_index, "MAX_CHANGES", 2)
    writer = make_engine(store)
    for number in range(5):
        await store.create_conversation(f"c{number}")
        await store.append(f"c{number}", Message.user(f"otter {number}"))
    await index_messages(writer)
    engine = make_engine(store)
    counts: list[tuple[int, bool]] = []
    while not counts or not counts[-1][1]:
        found = await search_messages(engine, "otter", refresh_seconds=0)
        counts.append((len(found.messages), found.complete))
    assert counts == [(2, False), (4, False), (5, True)]
    # Without a limit, the first one reads everything.
    found = await search_messages(make_engine(store), "otter")
    assert (len(found.messages), found.complete) == (5, True)


async def test_the_catalogs_of_all_tenants_share_one_bound(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    engines = TenantEngines(store, Settings(model="gpt-4o"))

    async def search(tenant: str) -> int:
        engine = engines(tenant)
        await engine.store.create_conversation(f"c {tenant}")
        await engine.store.append(f"c {tenant}", Message.user("an otter"))
        assert len((await search_messages(engine, "otter")).messages) == 1
        _, catalog = engine.runtime.indexes.catalogs.get(tenant, None)
        return catalog.nbytes

    size = await search("first")
    monkeypatch.setattr(runtime, "MAX_CATALOG_BYTES", 3 * size)
    for tenant in ("second", "third", "fourth", "fifth"):
        await search(tenant)
    catalogs = engines("first").runtime.indexes.catalogs
    sizes = {tenant: catalogs.get(tenant, None)[1].nbytes for tenant in ("third", "fourth", "fifth", "second", "first")}
    assert [tenant for tenant, found in sizes.items() if found] == ["third", "fourth", "fifth"]


async def test_what_is_appended_is_indexed_soon_without_a_search(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    await conversation.append("an otter")
    assert await store.message_index.has_unindexed()
    async with asyncio.timeout(20):
        while await store.message_index.has_unindexed():  # noqa: ASYNC110 (the job has no event)
            await asyncio.sleep(0.05)
    assert [ref.last_seq for ref in await store.message_index.list_segments("c")] == [1]


async def test_a_search_looks_up_a_bounded_number_of_words(store: SqlStore):
    engine = make_engine(store)
    await store.create_conversation("c")
    await store.append("c", Message.user("an otter"))
    words = " ".join(f"word{number}" for number in range(MAX_QUERY_WORDS - 1))
    assert len((await search_messages(engine, f"{words} otter")).messages) == 1
    assert (await search_messages(engine, f"{words} heron otter")).messages == []
    assert (await search_messages(engine, "the of and")).messages == []
