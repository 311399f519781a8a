"""The settings, in one table: name, default, limits and purpose. Nothing here reads a file or the environment."""

from typing import Literal

from pydantic import Field

from quire.model.policy import Provider, Slot
from quire.model.value import Value


class Upstream(Value):
    """A server that answers for some models of the gateway."""

    base_url: str = Field(description="Where its OpenAI-compatible interface begins, such as https://…/v1.")
    model: str | None = Field(default=None, description="What it calls the model; else as the client does.")
    key_from: str | None = Field(
        default=None, description="The environment variable with its key; else the client's own key goes on."
    )
    context_limit: int | None = Field(default=None, gt=0, description="The model's window, where no table knows it.")
    tokenizer: str | None = Field(default=None, description="As in the settings at large.")


class Settings(Value):
    database_url: str | None = Field(
        default=None, description="Where the log is: sqlite:///path or postgresql://…; else a file among your data."
    )
    base_url: str | None = Field(
        default=None, description="An OpenAI-compatible server to ask, such as http://127.0.0.1:11434/v1."
    )
    agent: str | None = Field(default=None, description="The TOML file of the agent to use.")
    vault: str | None = Field(default=None, description="The folder that [[links]] and @paths lead into.")
    summarizer: str | None = Field(
        default=None, description="The model that writes summaries; without one they are extracts."
    )
    embeddings: str | None = Field(
        default=None, description="Search by meaning: `local` for the offline model, or a server's base URL."
    )
    embeddings_model: str | None = Field(default=None, description="The model to ask that server for.")
    model: str = Field(default="gpt-4o", description="The model that requests are made for.")
    provider: Provider | None = Field(
        default=None, description="Whose request shape the model takes; else by its name."
    )
    tokenizer: str | None = Field(
        default=None, description="A vocabulary, or the path of a tokenizer.json; else by the model's name."
    )
    strategy: str = Field(default="hybrid", description="discard, summarize, hybrid, or one that you register.")
    context_limit: int | None = Field(
        default=None, gt=0, description="The model's window in tokens; else from the table of models, else 8,192."
    )
    max_prompt_tokens: int | None = Field(
        default=None, gt=0, description="Use no more of the window than this, whatever the model would take."
    )
    reserved_response_tokens: int = Field(default=512, ge=0, description="Left free for the reply.")
    context_threshold: float = Field(
        default=0.85, gt=0, le=1, description="Compact before a request that fills more of the window than this."
    )
    context_target: float = Field(default=0.5, gt=0, le=1, description="Compact down to this part of the room.")
    recent_messages_to_keep: int = Field(default=6, ge=0, description="Messages that `summarize` keeps as they are.")
    min_recent_messages_to_keep: int = Field(default=2, ge=0, description="The fewest that any strategy keeps.")
    context_background_threshold: float | None = Field(
        default=0.7, gt=0, le=1, description="After a reply, compact in the background from this part of the window on."
    )
    max_spend: float | None = Field(
        default=None, gt=0, description="The most that a conversation may cost, in dollars, summaries included."
    )
    input_price: float | None = Field(
        default=None, ge=0, description="Dollars for a million input tokens; else from the table of models."
    )
    output_price: float | None = Field(
        default=None, ge=0, description="Dollars for a million output tokens; else from the table of models."
    )
    summary_timeout: float = Field(default=60.0, gt=0, description="Seconds to wait for a summary.")
    context_management_enabled: bool = Field(default=True, description="Off: nothing is ever compacted.")
    memory_integration: bool = Field(
        default=True, description="Bring in the project's memory files and what the agent remembers."
    )
    document_share: float = Field(
        default=0.2, ge=0, le=1, description="A linked document is shown whole up to this part of the tokens left."
    )
    import_share: float = Field(
        default=0.5, ge=0, le=1, description="The same for a file that a message imports with @path."
    )
    ambiguous_links: Literal["list", "first"] = Field(
        default="list", description="What a link to several notes does: list them, or take the first."
    )
    selection_top_k: int = Field(default=8, ge=0, description="Agent-mode items that one message may bring in.")
    selection_top_n: int = Field(default=3, ge=0, description="Of these, so many of one type.")
    selection_min_score: float = Field(
        default=0.35, ge=0, le=1, description="The least score with which an agent-mode item comes in."
    )
    context_tools: bool = Field(
        default=False, description="Offer the model tools to search the history and to read documents."
    )
    recall_tokens: int | None = Field(
        default=2_000, ge=0, description="The most that archived messages may take in a request; 0 recalls none."
    )
    max_steps: int = Field(
        default=50, gt=0, description="The most replies that one turn may have, with calls of tools between them."
    )
    model_timeout: float = Field(default=300.0, gt=0, description="Seconds that a model may say nothing in a turn.")
    tool_timeout: float = Field(default=120.0, gt=0, description="Seconds that one call of a tool may take.")
    server_timeout: float = Field(
        default=30.0, gt=0, description="Seconds that an MCP server has to start, and to list its tools."
    )
    upstreams: dict[str, Upstream] = Field(
        default_factory=dict[str, Upstream],
        description="Where the gateway sends requests, by model or by a pattern such as gpt-*; else to base_url.",
    )
    store_down: Literal["refuse", "pass"] = Field(
        default="refuse", description="What the gateway does while the log cannot be reached: refuse, or pass on as is."
    )
    upstream_timeout: float = Field(default=600.0, gt=0, description="Seconds that an upstream may say nothing.")
    requests_per_minute: int | None = Field(
        default=600, gt=0, description="The most that one key may ask of the server, unless the key says otherwise."
    )
    max_request_bytes: int = Field(
        default=20_000_000, gt=0, description="The largest body of a request that the server reads."
    )
    retention_days: int | None = Field(
        default=None, gt=0, description="Purge conversations that nobody has used for so many days."
    )
    shares: dict[Slot, float] | None = Field(
        default=None, description="The part of the room that each slot may take, in place of the strategy's."
    )
