"""A client's request, matched to the log: its new messages, its token counts, and whether it fits."""

from dataclasses import dataclass

from quire.model.lazy import lazy_property
from quire.server.gateway.codecs.base import ClientRequest
from quire.server.gateway.codecs.client_messages import ClientMessage
from quire.server.gateway.codecs.normal_form import extend_path
from quire.server.gateway.engine_variants import EngineVariant, RequestEnvelope
from quire.server.gateway.recognition import HistoryMatch
from quire.server.gateway.rendered_history import RenderedHistory
from quire.view.budget import Budget, allocate_budget
from quire.view.calibration import Calibration
from quire.view.rendered import MessageCounter
from quire.view.strategies import get_strategy


@dataclass(frozen=True, kw_only=True)
class MatchedRequest:
    """A client's request, matched to the log, with token counts."""

    client_request: ClientRequest
    match: HistoryMatch
    variant: EngineVariant
    envelope: RequestEnvelope
    calibration: Calibration
    """Correction of our token counts by those that the provider reported."""

    @property
    def is_native(self) -> bool:
        """Whether the upstream uses the client's format."""
        return self.variant.target is self.client_request.codec

    @property
    def message_counter(self) -> MessageCounter:
        return self.variant.engine.message_counter

    @property
    def new_messages(self) -> tuple[ClientMessage, ...]:
        """Messages that are not in the log yet."""
        return self.client_request.messages[self.match.stored_end :]

    @property
    def answers_stored_call(self) -> bool:
        """Whether the new messages begin with the result of a stored tool call."""
        return bool(self.new_messages) and self.new_messages[0].role == "tool"

    def find_history(self) -> RenderedHistory | None:
        """The rendered history that the request continues, from the cache."""
        if self.match.client_path is None:
            return None
        return self.variant.histories.find(self.variant.tenant, self.variant.target.provider, self.match.head_path)

    def extend_client_path(self, path: bytes) -> bytes:
        """Computes the client's path after the new messages that follow `path`."""
        return extend_path(path, [each.normalized for each in self.new_messages])

    @lazy_property
    def new_tokens(self) -> int:
        return sum(self.message_counter.count(each.message) for each in self.new_messages)

    @lazy_property
    def stored_tokens(self) -> int:
        """Tokens of the stored messages; taken from the last manifest if the same counter made it."""
        if self.match.recorded_tokens is not None and self._has_recorded_tokens:
            return self.match.recorded_tokens[0]
        return sum(
            self.message_counter.count(each.message) for each in self.client_request.messages[: self.match.stored_end]
        )

    @property
    def _has_recorded_tokens(self) -> bool:
        recorded = self.match.recorded_tokens
        return recorded is not None and recorded[1] == self.message_counter.name

    @lazy_property
    def tokens(self) -> int:
        """Tokens of the whole request as the client sent it."""
        response_format = self.client_request.options.response_format
        format_tokens = (
            self.message_counter.token_counter.count(str(response_format)) if response_format is not None else 0
        )
        return (
            self.message_counter.wire_format.request_overhead
            + self.envelope.tokens
            + self.stored_tokens
            + self.new_tokens
            + format_tokens
        )

    @property
    def uncounted_bytes(self) -> int:
        """Size of the work of `count_tokens` for `run_sized`."""
        return self.client_request.work_bytes if self._has_recorded_tokens else len(self.client_request.raw)

    def count_tokens(self) -> None:
        """Computes `tokens`, which is cached: a caller may do this in a thread before it reads any count."""
        _ = self.tokens

    @lazy_property
    def ratio(self) -> float:
        """Expected ratio of the provider's token count to ours."""
        return self.calibration.ratio_for(
            tokens=self.tokens,
            messages=len(self.client_request.messages),
            exact=self.message_counter.token_counter.exact,
        )

    @lazy_property
    def budget(self) -> Budget:
        policy = self.variant.engine.policy
        return allocate_budget(policy, get_strategy(policy.strategy).shares, ratio=self.ratio)

    @property
    def fits(self) -> bool:
        """Whether the request can be passed through. The margin above the trigger is for errors of estimates."""
        return self.tokens <= (
            self.budget.max_input_tokens if self.message_counter.token_counter.exact else self.budget.trigger_tokens
        )
