"""Facts planted before compactions of the real agents: those that the summary leaves out are named, and no others."""

import json
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from gateway_fixtures import run_gateway
from gateway_records import get_address
from test_claude_code import is_compaction

from infra.real_agents import Claude, Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply, ScriptedUsage
from infra.sizes import IS_FULL_SIZE
from quire.engine.client_compactions import ClientCompaction, find_client_compactions
from quire.store import SqlStore

pytestmark = pytest.mark.slow

COMPACTIONS = 5 if IS_FULL_SIZE else 1
"""Of each agent, with ten facts before each."""
MIN_NAMED_SHARE, MAX_FALSE_FACTS = 0.9, 5 if IS_FULL_SIZE else 0
PEOPLE = ("Oyelaran", "Marchetti", "Lindqvist", "Abernathy", "Takahashi", "Villanueva", "Szymanska", "Okonkwo")
THINGS = (
    "pilots",
    "anchors",
    "manifests",
    "tariffs",
    "winches",
    "lanterns",
    "ballast",
    "moorings",
    "fenders",
    "cranes",
)
PLACES = ("sheds", "drawers", "registers", "ledgers", "hangars", "cellars", "silos", "lockers", "vaults", "barges")


class PlantedFact(NamedTuple):
    value: str
    """Unique in the session."""
    sentence: str


class Comparison(NamedTuple):
    lost: set[str]
    """Planted values that were in the request for a summary and are not in the request after it."""
    named: set[str]
    """Planted values that Quire names as lost."""
    false: list[str]
    """Lines that Quire names, and that have no lost value."""


def make_facts(random: Random) -> list[PlantedFact]:
    """Two each of numbers, paths, commands, names and decisions."""
    facts: list[PlantedFact] = []
    for _ in range(2):
        port, path = str(random.randrange(10_000, 65_000)), f"/srv/quay{random.randrange(999)}/rates.toml"
        target, person = f"ship-{random.randrange(9_999)}", f"Ines {random.choice(PEOPLE)}-{random.choice(PEOPLE)}"
        decision = f"{random.choice(THINGS)} go into the {random.choice(PLACES)} beside the {random.choice(PLACES)}"
        facts += [
            PlantedFact(port, f"The tide service listens on {port}."),
            PlantedFact(path, f"The rates are in {path}."),
            PlantedFact(f"make {target}", f"Run `make {target}` for a release."),
            PlantedFact(person, f"The reviewer of this change is {person}."),
            PlantedFact(decision, f"We decided that {decision}."),
        ]
    return facts


def write_summary(request: ProviderRequest, facts: list[PlantedFact], random: Random) -> str:
    """A summary with about half of the facts in the request, each in other words than it was said."""
    known = [fact.value for fact in facts if fact.value in get_text(request)]
    lines = [f"- noted: {value}" for value in known if random.random() < 0.5]
    return "\n".join(["The user works on a harbour.", *lines])


def get_text(request: ProviderRequest) -> str:
    return json.dumps(request.items, ensure_ascii=False)


def compare(
    compaction: ClientCompaction, request: ProviderRequest, following: str, facts: list[PlantedFact]
) -> Comparison:
    before = get_text(request)
    lost = {fact.value for fact in facts if fact.value in before and fact.value not in following}
    lines = [fact.text for fact in compaction.lost.facts]
    named = {fact.value for fact in facts if any(fact.value in line for line in lines)}
    return Comparison(lost, named, [line for line in lines if not any(value in line for value in lost)])


def check(comparisons: list[Comparison]) -> None:
    lost, named = (sum(len(values) for values in each) for each in zip(*(c[:2] for c in comparisons), strict=True))
    found = sum(len(each.lost & each.named) for each in comparisons)
    false = [line for each in comparisons for line in each.false]
    print(
        f"planted facts lost {lost}, named {found}, false {len(false)}", false, [c.lost - c.named for c in comparisons]
    )
    assert lost >= 2 * COMPACTIONS
    assert found >= MIN_NAMED_SHARE * lost
    assert len(false) <= MAX_FALSE_FACTS
    assert named >= found


@pytest.mark.nightly
async def test_what_the_summaries_of_claude_code_leave_out_is_named(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    random, facts = Random(5), list[PlantedFact]()
    batch: list[PlantedFact] = []

    def choose(request: ProviderRequest) -> ScriptedReply:
        if is_compaction(request):
            return ScriptedReply(
                f"<analysis>Short.</analysis><summary>{write_summary(request, facts, random)}</summary>"
            )
        if "Bash" in request.tool_names and not request.newest_results:
            said, found = (" ".join(fact.sentence for fact in batch[first::3]) for first in (1, 2))
            return ScriptedReply(
                said, calls=(ScriptedCall("Bash", {"command": f"echo '{found}'", "description": "x"}),)
            )
        return ScriptedReply("It is done.")

    provider.script = choose
    upstreams = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        claude = make_claude(**get_address(harness))
        for number in range(COMPACTIONS):
            batch = make_facts(random)
            facts += batch
            question = " ".join(fact.sentence for fact in batch[0::3])
            run = await claude.run(question, *(["--continue"] if number else []))
            assert run.exit_code == 0, run.stderr
            assert (await claude.run("/compact", "--continue")).exit_code == 0
        assert (await claude.run("Go on.", "--continue")).exit_code == 0
        (conversation, *_) = await store.list_conversations()
        compactions = await find_client_compactions(store, conversation)
    requests = provider.requests
    asked = [index for index, request in enumerate(requests) if is_compaction(request)]
    assert len(compactions) == len(asked) == COMPACTIONS
    pairs = zip(compactions, asked, strict=True)
    check([compare(each, requests[index], get_text(requests[index + 1]), facts) for each, index in pairs])


async def test_what_the_summaries_of_codex_leave_out_is_named(
    store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]
):
    random, facts = Random(6), list[PlantedFact]()

    def choose(request: ProviderRequest) -> ScriptedReply:
        if "CONTEXT CHECKPOINT COMPACTION" in json.dumps(request.items[-1]):
            return ScriptedReply(write_summary(request, facts, random), usage=ScriptedUsage(100))
        said = " ".join(fact.sentence for fact in facts[-10:] if fact.value not in get_text(request))
        return ScriptedReply(f"Fine. {said}", usage=ScriptedUsage(5_000))

    provider.script = choose
    upstreams = {"*": {"base_url": provider.openai_url, "speaks": ["responses"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        codex = make_codex(**get_address(harness), config=["model_auto_compact_token_limit=3000"])
        session = None
        for number in range(COMPACTIONS + 1):
            batch = make_facts(random)
            facts += batch
            run = await codex.run(f"Step {number}. {batch[number % 10].sentence}", resume=session)
            assert run.exit_code == 0, run.stderr
            session = run.session_id
        (conversation, *_) = await store.list_conversations()
        compactions = await find_client_compactions(store, conversation)
    requests = provider.requests
    asked = [
        index for index, request in enumerate(requests) if "CHECKPOINT COMPACTION" in json.dumps(request.items[-1])
    ]
    assert len(compactions) == len(asked) == COMPACTIONS
    pairs = zip(compactions, asked, strict=True)
    check([compare(each, requests[index], get_text(requests[index + 1]), facts) for each, index in pairs])
