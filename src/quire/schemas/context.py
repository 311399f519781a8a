"""Schemas of requests and their context: usage, compaction, items, and manifests in summary, replay and comparison."""

from typing import Any, Literal

from pydantic import AliasPath, Field

from quire.compaction.lost_facts import LostFact
from quire.context.items import AgentItem, get_include_mode, index_agent_items
from quire.ledger import ManifestChange, Replay
from quire.model import (
    Compaction,
    ContextItem,
    Drop,
    Entry,
    Manifest,
    Priority,
    Span,
    Truncation,
    Usage,
)
from quire.model.agents import Agent, AgentTool, IncludeMode
from quire.model.entry_bodies import SessionIncludeMode
from quire.model.manifest import ForwardedForm, SlotUsage
from quire.proxy.edit_effects import EditMoment, RestoredCounts
from quire.schemas import JsonModel

ItemType = Literal["rule", "reference", "tool"]


class ContextUsageSchema(JsonModel):
    """Token usage of the next request; it is compacted when `total_tokens` exceeds `trigger_tokens`."""

    slots: list[SlotUsage]
    total_tokens: int
    window: int = Field(description="10000000 if it is not known: nothing is compacted then.")
    reserved: int = Field(description="Tokens reserved for the reply.")
    trigger_tokens: int
    exact: bool = Field(description="The tokens are counted with the model's own tokenizer, not estimated.")
    document_tokens: int = Field(
        description="Tokens of documents that were added to messages; the other tokens are the messages as written."
    )
    proposes_compaction: bool = Field(
        description="A compaction waits for the user's consent (`compact_when`); requests omit the oldest messages."
    )


class ActiveCompactionSchema(JsonModel):
    seq: int = Field(description="Sequence number of the compaction's entry.")
    created_at: int
    compaction: Compaction = Field(validation_alias="body")


class CompactionPlanSchema(JsonModel):
    covers: Span | None = Field(description="Entries to archive, including the ones that the current summary covers.")
    preserved: list[int] = Field(
        description="Sequence numbers of covered messages that stay in the request because of their priority."
    )
    truncations: list[Truncation]
    freed_tokens: int = Field(description="Tokens that the compaction would free.")
    target_tokens: int
    needs_summary: bool


class ContextItemSchema(JsonModel):
    type: ItemType
    name: str
    server: str | None
    description: str
    agent_mode: IncludeMode | None = Field(description="Include mode in the agent; null if it has no such item.")
    session_mode: IncludeMode | None = Field(description="Include mode in the session; null if it is not in it.")
    enabled: bool

    @classmethod
    def from_item(
        cls, item: ContextItem, agent: Agent, *, session_mode: SessionIncludeMode | None
    ) -> "ContextItemSchema":
        agent_item = index_agent_items(agent).get(item)
        return cls(
            type=item.type,
            name=item.name,
            server=item.server,
            description=_describe(agent_item) if agent_item is not None else "",
            agent_mode=get_include_mode(agent, agent_item) if agent_item is not None else None,
            session_mode=session_mode,
            enabled=agent_item.enabled if agent_item is not None else False,
        )


def _describe(agent_item: AgentItem) -> str:
    return agent_item.definition.description if isinstance(agent_item, AgentTool) else agent_item.description


class ForwardingSchema(JsonModel):
    """How the gateway forwarded a client's request."""

    form: ForwardedForm
    dropped: list[str] = Field(description="Names of what had no place in the upstream's format.")
    unrecorded_messages: int = Field(
        description="Messages at the start of the client's list that replace earlier ones: its own summary."
    )
    first_message: int | None = Field(description="The first message of the log that the client's list has.")

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ForwardingSchema | None":
        forwarded = manifest.forwarded
        if forwarded is None:
            return None
        listed = (row.span.first for row in manifest.decisions if row.kind == "message" and row.span)
        return cls(
            form=forwarded.form,
            dropped=list(forwarded.dropped),
            unrecorded_messages=forwarded.unrecorded_messages or 0,
            first_message=min(listed, default=None),
        )


class ClientCompactionSchema(JsonModel):
    """A compaction that an agent made itself."""

    conversation: str
    branch: int = Field(description="The branch that has the summary and the messages that it replaces.")
    reply: int = Field(description="The reply with the summary.")
    created_at: int
    first: int = Field(description="The first replaced message.")
    last: int
    messages: int = Field(description="Number of replaced messages.")
    lost: list[LostFact] = Field(
        validation_alias=AliasPath("lost", "facts"),
        description="Facts that the summary does not have, the strongest first; at most 50.",
    )
    lost_total: int = Field(validation_alias=AliasPath("lost", "total"))


class RequestSummarySchema(JsonModel):
    """Key figures of one request."""

    reply: int = Field(description="Sequence number of the reply, which identifies the request.")
    created_at: int
    model: str
    total_tokens: int = Field(description="Tokens sent.")
    full_history_tokens: int = Field(description="Tokens that the request would have had with the full history.")
    window: int
    trigger_tokens: int
    max_input_tokens: int
    compaction_seq: int | None = Field(description="Entry of the compaction whose summary the request contains.")
    usage: Usage | None = Field(description="Usage that the provider reported.")
    forwarding: ForwardingSchema | None = Field(description="Set for requests through the gateway.")

    @classmethod
    def from_manifest(cls, manifest: Manifest, reply: Entry) -> "RequestSummarySchema":
        summaries = (row.span.first for row in manifest.included if row.kind == "summary" and row.span)
        return cls(
            reply=reply.seq,
            created_at=reply.created_at,
            model=manifest.policy.model,
            total_tokens=manifest.total_tokens,
            full_history_tokens=manifest.full_history_tokens,
            window=manifest.policy.window,
            trigger_tokens=manifest.trigger_tokens,
            max_input_tokens=manifest.max_input_tokens,
            compaction_seq=next(summaries, None),
            usage=reply.metadata.usage,
            forwarding=ForwardingSchema.from_manifest(manifest),
        )


class ReplaySchema(JsonModel):
    is_as_sent: bool = Field(
        description="`body` is identical to what was sent, to the byte: the digests were compared."
    )
    unknown: str | None = Field(description="What would have to be known for that; null if it is so.")
    sent_digest: str | None = Field(description="SHA-256 of the body that was sent; null if Quire did not send it.")
    body: str | None = Field(description="The body that was sent, with masks if `is_as_sent` is false.")
    changed_by_provider: str | None = Field(
        description="What the provider left out on its side, before the model read the request; null if nothing."
    )
    matches: bool = Field(description="The request that was rebuilt from the log has the digest that was recorded.")
    mismatch: str | None = Field(description="Why it does not match; null if it does.")
    recorded_digest: str
    rebuilt_digest: str | None
    missing: list[str] = Field(description="Sequence numbers or names of content purged since.")
    payload: dict[str, Any] | None = Field(description="The rebuilt request.")

    @classmethod
    def from_replay(cls, replay: Replay) -> "ReplaySchema":
        rendered, forwarded, body = replay.rendered, replay.manifest.forwarded, replay.sent_body
        return cls(
            is_as_sent=replay.is_as_sent,
            unknown=replay.unknown,
            changed_by_provider=replay.changed_by_provider,
            sent_digest=forwarded.digest if forwarded is not None and forwarded.form != "adapted" else None,
            body=body.decode(errors="replace") if body is not None else None,
            matches=replay.matches,
            mismatch=replay.mismatch,
            recorded_digest=replay.manifest.digest,
            rebuilt_digest=rendered.digest if rendered is not None else None,
            missing=list(replay.missing),
            payload=rendered.to_payload() if rendered is not None else None,
        )


class RequestDiffSchema(JsonModel):
    reply: int
    other: int
    changes: list[ManifestChange]


class PinListSchema(JsonModel):
    pins: list[int]


class EditEffectSchema(JsonModel):
    """What waiting edits do to the next request of an agent that keeps its own list, and when."""

    drops: list[int] = Field(
        validation_alias=AliasPath("waiting", "drops"),
        description="Dropped messages of which the model is still sent the whole.",
    )
    restores: list[int] = Field(
        validation_alias=AliasPath("waiting", "restores"),
        description="Restored messages of which the model is still sent a stub.",
    )
    quotes: list[int] = Field(
        validation_alias=AliasPath("waiting", "quotes"),
        description="Pinned messages that are quoted in the next request.",
    )
    compaction: int | None = Field(
        validation_alias=AliasPath("waiting", "summary"),
        description="Sequence number of the agent's compaction that was undone or edited, and is still in its list.",
    )
    moment: EditMoment = Field(
        description="Whether they take effect with the next request, with the user's next message, or with the first "
        "message of the user after the prompt cache has expired."
    )
    cold_in_seconds: int = Field(description="Seconds until the prompt cache has expired; 0 if it has.")
    removed_tokens: int
    added_tokens: int
    prompt_tokens: int = Field(description="Tokens of the next request with the edits, before the user's message.")
    rewritten_tokens: int = Field(description="Tokens that are written to the cache again if the edits begin now.")
    cost_usd: float | None = Field(
        validation_alias=AliasPath("cost", "exact_usd"),
        description="Input cost of the next request if the edits begin with it.",
    )
    unedited_cost_usd: float | None = Field(
        validation_alias=AliasPath("unedited_cost", "exact_usd"),
        description="Input cost of the next request without the edits.",
    )
    restored: RestoredCounts | None = Field(
        description="What comes back of what the agent's summary replaced; null if no compaction was undone."
    )
    thinking_blocks: int = Field(description="Blocks of signed reasoning that the edits remove.")


class DropListSchema(JsonModel):
    drops: list[Drop] = Field(description="Messages that later requests have as stubs.")
    waiting: EditEffectSchema | None = Field(
        description="Edits that an agent's list does not have yet; null if all are in effect."
    )


class PriorityListSchema(JsonModel):
    priorities: list[Priority] = Field(description="Messages for which a priority is set.")
