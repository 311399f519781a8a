"""Simulation of one conversation with one variant of the settings: every request as the engine would build it.

The engine's own assembler, compactor and recall work on a scratch log in memory. Only the models are replaced: replies
are the recorded ones, summaries are recorded or extracted.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from quire.backtest.needs import Need, NeedsInView
from quire.backtest.recording import RecordedContextGatherer, RecordedStep, Recording
from quire.engine import Engine
from quire.engine.assembler import Assembler
from quire.engine.compactor import Compactor
from quire.engine.config import EngineConfig
from quire.engine.message_index import MAX_INLINE_ENTRIES, index_messages
from quire.engine.recall import Recall
from quire.engine.recorder import Recorder, exceeds_background_threshold
from quire.engine.request import PendingMessage, Request
from quire.engine.request_builder import RequestBuilder
from quire.engine.state import EngineState
from quire.errors import BlobNotFound, ContextOverflow, InvalidRequest, ModelUnavailable
from quire.llm import ModelChunk, Prompt, Reply
from quire.llm.embeddings import AsyncEmbedder
from quire.log import MAIN_BRANCH, ReplyRecord
from quire.model import Compaction, Draft, Entry, Manifest, Message, Span, Usage
from quire.model.entry_bodies import Body, Drop, Pin, Priority, Undrop, Unpin
from quire.store import SqlStore
from quire.view.budget import Calibration, update_calibration
from quire.view.compaction_plan import CompactionPlan
from quire.view.decisions import set_pending_span
from quire.view.layout import RenderedRequest
from quire.view.strategies import get_strategy

SCRATCH_URL = "sqlite://"
"""A database in memory."""
INDEX_INTERVAL_ENTRIES = MAX_INLINE_ENTRIES // 2
"""Entries after which the log is indexed for recall, as a background job does in a real run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """What one model call would have sent and cost."""

    turn: int
    step: int
    reply: int
    """Number of the reply in the stored conversation."""
    tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the stable prefix that the request before had too."""
    output_tokens: int = 0
    compactions: int = 0
    """Compactions since the request before."""
    cost_usd: float = 0.0
    needed: int = 0
    in_view: int = 0
    """How many of the needs the request had in view."""
    matches_recorded: bool | None = None
    """Whether the request is the recorded one, byte for byte. None if none is recorded."""
    error: str | None = None
    """Why no request could be built."""


class ScratchLog:
    """Appends recorded entries with their original times; their numbers differ where compactions differ."""

    def __init__(self, engine: Engine, conversation: str, source: SqlStore) -> None:
        self._engine, self._conversation, self._source = engine, conversation, source
        self._recorder = Recorder(engine, conversation, MAIN_BRANCH)
        self.numbers: dict[int, int] = {}
        """Number in this log by number in the stored conversation."""
        self._recorded_numbers: dict[int, int] = {}
        self._token_counts: list[tuple[int, int]] = []
        self._unindexed_entries = 0

    def find_recorded_number(self, number: int) -> int | None:
        """Number in the stored conversation of a message of this log."""
        return self._recorded_numbers.get(number)

    def sum_tokens(self, first: int, last: int) -> int:
        """Tokens of the messages from `first` to `last`."""
        return sum(tokens for seq, tokens in self._token_counts if first <= seq <= last)

    async def append(self, entries: Sequence[Entry]) -> None:
        await self.copy_blobs(entries)
        known: list[Entry] = []
        drafts: list[Draft] = []
        for entry in entries:
            body = entry.message if entry.kind == "message" else entry.body
            if isinstance(body, Pin | Unpin | Priority | Drop | Undrop):
                number = self.numbers.get(body.message)
                if number is None:  # It names a message that is not in this log.
                    continue
                body = body.model_copy(update={"message": number})
            known.append(entry)
            drafts.append(self._make_draft(entry, body))
        if drafts:
            self._note_numbers(known, await self._engine.store.append(self._conversation, *drafts))

    async def record(self, request: Request, pending: Sequence[Entry], reply: Entry) -> list[Entry]:
        """Stores a request's pending messages, its reply and its manifest."""
        recorded = (*pending, reply)
        await self.copy_blobs(recorded)

        def build_manifest(stored: Sequence[Entry]) -> Manifest:
            if not request.pending:
                return request.manifest
            span = Span(first=stored[0].seq, last=stored[len(request.pending) - 1].seq)
            decisions = set_pending_span(request.manifest.decisions, span)
            return request.manifest.model_copy(update={"decisions": decisions})

        record = ReplyRecord(
            drafts=tuple(self._make_draft(entry, entry.message) for entry in recorded),
            build_manifest=build_manifest,
            blobs=request.blobs,
        )
        stored = await self._engine.store.record_reply(self._conversation, record, after=request.after)
        self._note_numbers(recorded, stored)
        return stored

    async def index_if_due(self) -> None:
        """Indexes the messages for recall, so that no request meets more of them than it would index by itself."""
        if self._unindexed_entries < INDEX_INTERVAL_ENTRIES:
            return
        self._unindexed_entries = 0
        if get_strategy(self._engine.policy.strategy).recalls:
            await index_messages(self._engine, conversations=[self._conversation])

    async def copy_blobs(self, entries: Iterable[Entry]) -> None:
        """Copies the images, files and documents of these messages."""
        for entry in entries:
            for digest in entry.blob_digests():
                try:
                    blob = await self._source.get_blob(digest)
                except BlobNotFound:
                    continue
                await self._engine.store.put_blob(blob.data, media_type=blob.media_type)

    def _make_draft(self, entry: Entry, body: Body) -> Draft:
        if not isinstance(body, Message):
            return Draft(body=body, author=entry.author, created_at=entry.created_at)
        metadata, counter = entry.metadata, self._engine.message_counter
        if entry.counter == counter.name:
            draft = Draft(
                body=body,
                tokens=entry.token_count,
                references=metadata.references or (),
                written_tokens=metadata.written_tokens,
            )
        else:
            draft = self._recorder.make_draft(PendingMessage(body, metadata.references or ()))
        return replace(
            draft,
            author=entry.author,
            usage=metadata.usage,
            created_at=entry.created_at,
            incomplete=bool(metadata.incomplete),
        )

    def _note_numbers(self, recorded: Sequence[Entry], stored: Sequence[Entry]) -> None:
        self._unindexed_entries += len(stored)
        for before, after in zip(recorded, stored, strict=True):
            if after.kind == "message":
                self.numbers[before.seq], self._recorded_numbers[after.seq] = after.seq, before.seq
                self._token_counts.append((after.seq, after.tokens or 0))


class RecordedSummaries:
    """A model that answers with the summaries that a model wrote for the stored conversation, of the same messages.

    No model is called. Where the log has no summary of a range, the simulated call fails, and the engine extracts one,
    as it does when a model fails.
    """

    def __init__(self, name: str, summaries: Mapping[int, Compaction]) -> None:
        self.name = name
        self._summaries = summaries
        self._current: Compaction | None = None

    def select(self, last_covered: int | None) -> None:
        """Selects the summary of the range that ends at this entry of the stored conversation."""
        self._current = self._summaries.get(last_covered) if last_covered is not None else None

    async def complete(self, prompt: Prompt) -> Reply:
        if self._current is None or self._current.summary is None:
            raise ModelUnavailable("The log has no summary of these messages.")
        return Reply(Message.assistant(self._current.summary), self._current.usage, "stop")

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk]:
        yield await self.complete(prompt)


class SummaryCosts:
    """Counts compactions, and estimates what their summaries would have cost, until they are taken."""

    def __init__(self, engine: EngineState, log: ScratchLog) -> None:
        self._engine, self._log = engine, log
        self._compactions, self._cost_usd = 0, 0.0
        self._covered_through, self._summary_tokens = 0, 0

    async def add(self, _conversation: str, entry: Entry) -> None:
        """Adds a compaction; called after each one."""
        self._compactions += 1
        body, summarizer = entry.body, self._engine.summarizer
        if not isinstance(body, Compaction) or body.covers is None or body.covers.last <= self._covered_through:
            return
        read_tokens = self._log.sum_tokens(self._covered_through + 1, body.covers.last) + self._summary_tokens
        self._covered_through = body.covers.last
        self._summary_tokens = self._engine.message_counter.token_counter.count(body.summary or "")
        if summarizer is not None and body.summary:
            usage = body.usage or Usage(input_tokens=read_tokens, output_tokens=self._summary_tokens)
            self._cost_usd += self._engine.config.compute_cost(usage, summarizer.model.name).usd

    def take(self) -> tuple[int, float]:
        """Number and cost of the compactions since the last call."""
        taken = self._compactions, self._cost_usd
        self._compactions, self._cost_usd = 0, 0.0
        return taken


class SimulatedClock:
    """The time at which the recorded request was made."""

    def __init__(self) -> None:
        self.microseconds = 0

    def read(self) -> int:
        return self.microseconds


@asynccontextmanager
async def open_simulation(
    config: EngineConfig, recording: Recording, *, calibration: Calibration
) -> AsyncGenerator["Simulation"]:
    """Opens a simulation with the settings of `config` and the calibration of its model."""
    clock, summaries = SimulatedClock(), None
    if config.summarizer is not None:
        summaries = RecordedSummaries(config.summarizer.model.name, recording.summaries)
    offers_tools = recording.offers_history_tools
    scratch_config = config.with_changes(
        clock=clock.read,
        vault=None,
        # An endpoint is a model too, and none is called.
        embedder=None if isinstance(config.embedder, AsyncEmbedder) else config.embedder,
        summarizer=replace(config.summarizer, model=summaries) if config.summarizer and summaries else None,
        runs_turns=config.runs_turns if offers_tools is None else offers_tools,
        topic_index=False,
        spending_key=None,
        max_spend=None,
        tenant_quotas={},
    )
    async with SqlStore.open(SCRATCH_URL) as store:
        await store.create_conversation(recording.conversation)
        engine = Engine(store, scratch_config)
        engine.runtime.calibrations[config.settings.model] = calibration
        try:
            yield Simulation(engine, recording, clock=clock, summaries=summaries)
        finally:
            await engine.wait_for_background()


class Simulation:
    """Simulates the steps of one recording in order."""

    def __init__(
        self, engine: Engine, recording: Recording, *, clock: SimulatedClock, summaries: RecordedSummaries | None
    ) -> None:
        conversation = recording.conversation
        self._engine, self._clock, self._summaries = engine, clock, summaries
        self._log = ScratchLog(engine, conversation, recording.store)
        self._gatherer = RecordedContextGatherer(engine, recording.store)
        self._compactor = Compactor(engine, conversation, MAIN_BRANCH)
        self._assembler = Assembler(engine, conversation, MAIN_BRANCH, gatherer=self._gatherer, recall=Recall(engine))
        self._builder = RequestBuilder(
            engine, conversation, MAIN_BRANCH, assembler=self._assembler, compactor=self._compactor
        )
        self._summary_costs = SummaryCosts(engine, self._log)
        self._previous: RenderedRequest | None = None
        self._turn = self._step = 0
        engine.hooks.before_compaction(self._select_summary)
        engine.hooks.after_compaction(self._summary_costs.add)

    async def simulate(self, step: RecordedStep, needs: Sequence[Need]) -> SimulatedStep:
        """Builds the request of a step, and records the step in the scratch log."""
        if not self._turn and (first := step.manifest) is not None and first.policy.model == self._engine.policy.model:
            # The first recorded request shows the calibration of its time. What the store has now was learned later.
            calibration = Calibration()
            if first.ratio != 1.0:
                messages = max(1, sum(row.kind == "message" for row in first.included))
                calibration = calibration.with_ratio(first.ratio, tokens=first.total_tokens, messages=messages)
            self._engine.runtime.calibrations[first.policy.model] = calibration
        if step.starts_turn or not self._turn:
            self._turn, self._step = self._turn + 1, 0
        self._step += 1
        self._clock.microseconds = (step.pending or (step.reply,))[0].created_at
        if step.manifest is not None:
            self._gatherer.manifest = step.manifest
        await self._log.append(step.before)
        await self._log.index_if_due()
        await self._log.copy_blobs(step.pending)
        pending = tuple(PendingMessage(each.message, each.metadata.references or ()) for each in step.pending)
        try:
            request = await self._builder.build(pending, ())
        except (ContextOverflow, InvalidRequest) as error:
            await self._log.append((*step.pending, step.reply, *step.after))
            return SimulatedStep(
                turn=self._turn, step=self._step, reply=step.reply.seq, needed=len(needs), error=_describe(error)
            )
        simulated = self._describe(step, request, needs)
        stored = await self._log.record(request, step.pending, step.reply)
        self._calibrate(step, request)
        await self._log.append(step.after)
        await self._compact_in_background(request, stored)
        return simulated

    def _describe(self, step: RecordedStep, request: Request, needs: Sequence[Need]) -> SimulatedStep:
        config, rendered, view = self._engine.config, request.assembly.rendered, NeedsInView(request)
        # Tokens that the model wrote: as the provider reported, else as counted.
        reply, reported, counter = step.reply, step.reply.metadata.usage, self._engine.message_counter
        if reported is not None and reported.output_tokens:
            written = reported.output_tokens
        else:
            written = (reply.tokens or 0) if reply.counter == counter.name else counter.count(reply.message)
        usage = Usage(
            input_tokens=rendered.tokens,
            cache_read_tokens=count_repeated_tokens(self._previous, rendered),
            output_tokens=written,
        )
        self._previous = rendered
        compactions, summary_usd = self._summary_costs.take()
        return SimulatedStep(
            turn=self._turn,
            step=self._step,
            reply=step.reply.seq,
            tokens=usage.input_tokens,
            cached_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            compactions=compactions,
            cost_usd=config.compute_cost(usage, config.settings.model).usd + summary_usd,
            needed=len(needs),
            in_view=sum(view.contains(need, self._log.numbers) for need in needs),
            matches_recorded=step.manifest.digest == rendered.digest if step.manifest is not None else None,
        )

    def _calibrate(self, step: RecordedStep, request: Request) -> None:
        """Corrects the token counts as the recorded reply did, if it came from the same model.

        Another request would have been reported in proportion.
        """
        usage, manifest, model = step.reply.metadata.usage, step.manifest, self._engine.policy.model
        if usage is None or usage.estimated or manifest is None or manifest.policy.model != model:
            return
        if not manifest.total_tokens:
            return
        calibration = update_calibration(
            self._engine.runtime.calibrations[model],
            predicted=request.tokens,
            reported=round(usage.input_tokens * request.tokens / manifest.total_tokens),
            messages=len(request.assembly.rendered.messages),
        )
        self._engine.runtime.calibrations[model] = calibration

    async def _compact_in_background(self, request: Request, stored: Sequence[Entry]) -> None:
        """Compacts above the background threshold, as `Conversation.record` does where a model writes summaries."""
        tokens = request.assembly.full_history_tokens + sum(entry.tokens or 0 for entry in stored)
        if not exceeds_background_threshold(self._engine, tokens):
            return
        current = await self._assembler.draft_current()
        plan = current.assembly.build_plan(current.assembly.budget)
        if plan is not None and exceeds_background_threshold(self._engine, current.assembly.full_history_tokens):
            await self._compactor.execute(plan, current.assembly, current.window, trigger="background")

    async def _select_summary(self, _conversation: str, plan: CompactionPlan) -> bool:
        if self._summaries is not None:
            last = self._log.find_recorded_number(plan.covers.last) if plan.covers is not None else None
            self._summaries.select(last)
        return True


def _describe(error: ContextOverflow | InvalidRequest) -> str:
    """What happened, without the names of items: a stored report outlives a purge."""
    if isinstance(error, InvalidRequest):
        return str(error)
    return f"The request needs {error.needed_tokens:,} tokens and there is room for {error.available_tokens:,}."


def count_repeated_tokens(previous: RenderedRequest | None, current: RenderedRequest) -> int:
    """Tokens of the stable prefix: instructions, tools and leading messages that both requests have, byte for byte.

    This is what a provider's prompt cache can serve. A message counts whole or not at all.
    """
    if previous is None or (previous.system, previous.tools) != (current.system, current.tools):
        return 0
    tokens = current.tokens - sum(message.tokens for message in current.messages)
    for before, message in zip(previous.messages, current.messages, strict=False):
        if before.encoded != message.encoded:
            break
        tokens += message.tokens
    return tokens
