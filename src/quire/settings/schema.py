"""Schema of the settings: name, default, limits and description. Reads no file and no environment variable."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from quire.model.base import FrozenModel
from quire.model.people import UserRole, split_space
from quire.model.policy import SHARE_PRESETS, ShareName, WireFormatName
from quire.model.secret_patterns import compile_secret_pattern
from quire.rows import DEFAULT_TENANT

T = TypeVar("T")

EXTRACT_SUMMARIZER = "extract"
"""Value of the setting `summarizer` for extracts instead of summaries by a model."""
MAX_SUMMARY_PROMPT_CHARS = 20_000
"""Maximum length of the setting `summary_prompt`."""
DEFAULT_SESSION_HEADERS = {
    "x-claude-code-session-id": "claude-code",
    "x-session-affinity": "opencode",
    "thread-id": "codex",
    "session-id": "codex",
    "x-openwebui-chat-id": "open-webui",
}
"""Headers in which known clients send the ID of their session. Of several in a request, the first counts.

With a ChatGPT login opencode sends `session-id` too.
"""


class ModelEntry(FrozenModel):
    """What the settings say about the models of one name or pattern."""

    window: int | None = Field(default=None, gt=0, description="Context window in tokens.")
    output_limit: int | None = Field(default=None, gt=0, description="Maximum tokens of one reply.")
    tokenizer: str | None = Field(
        default=None,
        description="Vocabulary of the model, or the path of a tokenizer.json. Default: inferred from its name.",
    )
    input_price: float | None = Field(default=None, ge=0, description="US dollars per million input tokens.")
    cached_input_price: float | None = Field(
        default=None, ge=0, description="US dollars per million input tokens from the provider's prompt cache."
    )
    output_price: float | None = Field(default=None, ge=0, description="US dollars per million output tokens.")
    wire_format: WireFormatName | None = Field(
        default=None,
        description="Wire format of its provider: chat or responses (OpenAI), messages (Anthropic), gemini (Google).",
    )

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("set input_price and output_price together, or neither")
        if self.cached_input_price is not None and self.input_price is None:
            raise ValueError("cached_input_price needs input_price and output_price")
        return self


class Upstream(FrozenModel):
    """A server to which the gateway sends requests for some models. `models` describes the models themselves."""

    base_url: str = Field(description="Base URL of its API, such as https://…/v1.")
    model: str | None = Field(
        default=None, description="Name of the model at the upstream. Default: the name that the client sent."
    )
    speaks: tuple[WireFormatName, ...] = Field(
        default=("chat",),
        min_length=1,
        description="Its wire formats: chat, messages, responses, gemini. Requests in other formats are translated, "
        "except from and to gemini.",
    )
    credentials: Literal["operator", "client"] = Field(
        default="operator",
        description="Whose credentials it gets: the operator's `api_key_env`, or the client's own, unchanged.",
    )
    api_key_env: str | None = Field(default=None, description="Environment variable with its API key.")
    overflow: Literal["fit", "refuse"] | None = Field(
        default=None,
        description="Whether a request above the context window is fitted or refused. Default: refused only if it is "
        "passed through as messages or responses.",
    )
    reserved_response_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Upper limit on the tokens reserved for a reply. Default: a quarter of the window.",
    )

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if self.credentials == "client" and self.api_key_env is not None:
            raise ValueError('credentials = "client" excludes api_key_env')
        return self


class TenantQuota(FrozenModel):
    """What a tenant may use with all its API keys together. None is no limit."""

    max_spend: float | None = Field(default=None, gt=0, description="Maximum cost in US dollars.")
    requests_per_minute: int | None = Field(default=None, gt=0, description="Rate limit.")
    stored_bytes: int | None = Field(
        default=None, gt=0, description="Maximum bytes of stored messages, blobs and request bodies."
    )
    worker_seconds: float | None = Field(
        default=None, gt=0, description="CPU seconds in a minute for computation on long texts, in each server process."
    )


class TenantMasking(FrozenModel):
    """Masking of a tenant's secrets before they are stored."""

    patterns: dict[str, str] = Field(
        default_factory=dict[str, str],
        max_length=50,
        description="Own secrets, by name, in addition to the known formats: such as ACME-[0-9A-F]{16}.",
    )

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, patterns: dict[str, str]) -> dict[str, str]:
        for kind, text in patterns.items():
            compile_secret_pattern(kind, text)
        return patterns


class Encryption(FrozenModel):
    """Encryption of stored text, with a data key for each tenant."""

    tenants: tuple[str, ...] = Field(
        default=("*",), min_length=1, description="Tenants that are encrypted, by name or by pattern such as *."
    )
    key_file: str | None = Field(
        default=None, description="File with key-encryption keys of 32 bytes in base64, the current one first."
    )
    key_env: str | None = Field(default=None, description="Environment variable with these keys.")
    key_command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="Program that wraps and unwraps data keys, with its arguments."
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(each is not None for each in (self.key_file, self.key_env, self.key_command)) != 1:
            raise ValueError("set one of key_file, key_env and key_command")
        return self


class GroupRole(FrozenModel):
    """What the people of a group are: their tenant, and their role in it."""

    tenant: str = Field(pattern=r"^[^/]+$", description="Name of the tenant, without a slash.")
    role: UserRole = Field(description="member, owner, auditor or operator.")


class Workloads(FrozenModel):
    """Programs that present a token of their platform instead of an API key."""

    audience: str = Field(min_length=1, description="Audience that the tokens must have.")
    subjects: dict[str, str] = Field(
        description="Tenant of each subject, by pattern, such as system:serviceaccount:ci:*.", min_length=1
    )


class SignIn(FrozenModel):
    """Sign-in by an identity provider with OpenID Connect."""

    issuer: str = Field(description="URL of the identity provider, as in its discovery document.")
    client_id: str = Field(min_length=1, description="Name under which the provider knows this server.")
    client_secret_env: str | None = Field(
        default=None, description="Environment variable with the client's secret; else the client is public."
    )
    url: str = Field(description="Address at which people open this server, such as https://quire.example.org.")
    subject_claim: str = Field(
        default="sub", min_length=1, description="Claim with the provider's permanent id of a person; oid of Entra ID."
    )
    groups_claim: str = Field(default="groups", description="Claim with the names of a person's groups.")
    groups: dict[str, GroupRole] = Field(
        min_length=1, description="Tenant and role of each group of the provider; * is everyone who can sign in."
    )
    provisioning: Literal["sign_in", "scim"] = Field(
        default="sign_in",
        description="Who is let in, and with which groups: whom the provider signs in, or whom a directory has created "
        "by SCIM.",
    )
    audit_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP endpoint to which the audit trail is sent, such as https://…/v1/logs."
    )
    audit_headers_env: str | None = Field(
        default=None,
        description="Environment variable with headers for that endpoint, as in OTEL_EXPORTER_OTLP_HEADERS.",
    )
    workloads: dict[str, Workloads] = Field(
        default_factory=dict[str, Workloads], description="Platforms whose tokens replace API keys, by issuer."
    )

    @field_validator("issuer", "url", "audit_endpoint")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        is_loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        if not (parts.scheme == "https" or is_loopback) or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("use an https:// address without a query; http:// only on loopback")
        return url.rstrip("/")


class Settings(FrozenModel):
    """All settings. The field names are the TOML keys. Environment variables have the prefix `QUIRE_`."""

    database_url: str | None = Field(
        default=None,
        description="Database of the log: sqlite:///path or postgresql://… Default: a file in your data directory.",
    )
    tenant: str = Field(
        default=DEFAULT_TENANT,
        description="Tenant whose conversations a command reads and writes. A server takes it from the API key.",
    )
    listen_database_url: str | None = Field(
        default=None,
        description="Direct PostgreSQL URL on which a server listens for changes, if `database_url` is a pooler in "
        "transaction mode. Default: `database_url`.",
    )
    base_url: str | None = Field(
        default=None, description="Base URL of an OpenAI-compatible server, such as http://127.0.0.1:11434/v1."
    )
    agent: str | None = Field(default=None, description="TOML file of the agent to use.")
    vault: str | None = Field(default=None, description="Folder in which [[links]] and @paths are resolved.")
    summarizer: str | None = Field(
        default=None,
        description="Model that writes summaries. `extract` takes lines of the messages, without a model. Default: the "
        "model that answers.",
    )
    summary_prompt: str | None = Field(
        default=None,
        max_length=MAX_SUMMARY_PROMPT_CHARS,
        description="What a summary contains, in words for the summarizer, instead of the built-in headings.",
    )
    topic_index: bool = Field(
        default=False,
        description="After a compaction, let the summarizer list topics, names and events of the archived messages, so "
        "that search and recall find them by other words. Costs about one more read of these messages.",
    )
    embeddings: str | None = Field(
        default=None,
        description="Semantic search: `local` for the offline embedding model, `onnx:FOLDER` for a sentence encoder "
        "with model.onnx and tokenizer.json, or the base URL of a server, with its model after a #.",
    )
    model: str = Field(default="gpt-4o", description="Model that answers.")
    wire_format: WireFormatName | None = Field(
        default=None, description="Wire format of every model. Default: from `models`, or inferred from the name."
    )
    strategy: str = Field(
        default="hybrid", description="Compaction strategy: discard, summarize, hybrid, or one that you register."
    )
    context_limit: int | None = Field(
        default=None,
        gt=0,
        description="Upper limit on the context window of every model, prompt and reply together. If no table lists "
        "the model, it is the window.",
    )
    reserved_response_tokens: int = Field(
        default=512, ge=0, description="Tokens of the context window reserved for the reply."
    )
    context_threshold: float = Field(
        default=0.85,
        gt=0,
        le=1,
        description="Compact before a request that uses more than this share of the context window.",
    )
    recent_messages_to_keep: int = Field(
        default=6, ge=0, description="Recent messages that `summarize` does not compact."
    )
    min_recent_messages_to_keep: int = Field(
        default=2, ge=0, description="Minimum recent messages that no strategy compacts."
    )
    context_background_threshold: float | None = Field(
        default=0.7,
        gt=0,
        le=1,
        description="After a reply, compact in the background above this share of the context window.",
    )
    compact_when: Literal["needed", "ask"] = Field(
        default="needed",
        description="When to compact: as soon as it is needed, or only after the user agrees (chat and web interface).",
    )
    max_spend: float | None = Field(
        default=None,
        gt=0,
        description="Maximum cost of a conversation in US dollars, including summaries. A call whose input alone would "
        "exceed it is refused; the last reply may exceed it. Refuses unpriced models.",
    )
    daily_budget: float | None = Field(
        default=None,
        gt=0,
        description="US dollars for all calls of a UTC day, including imported ones. The status line warns at 80 %.",
    )
    daily_budget_stops: bool = Field(
        default=False, description="Whether calls through Quire are refused once the daily budget is spent."
    )
    context_management_enabled: bool = Field(default=True, description="If false, nothing is compacted.")
    memory_integration: bool = Field(
        default=True, description="Include the project's memory files and the agent's memories."
    )
    document_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="If linked documents do not all fit, each is included in full up to this share of the remaining "
        "tokens. A file that a message imports with @path may use up to one half. 0 includes none.",
    )
    remember_documents_after: int | None = Field(
        default=None,
        gt=0,
        description="Number of messages of one conversation that refer to a document before the agent remembers it. "
        "Default: never.",
    )
    selection_top_k: int = Field(default=8, ge=0, description="Maximum agent-mode items that one message may include.")
    selection_min_score: float = Field(default=0.35, ge=0, le=1, description="Minimum score of an agent-mode item.")
    context_tools: bool | None = Field(
        default=None,
        description="Offer the model tools that search the history and read documents: true in every request, false in "
        "none. Default: once something is listed or archived.",
    )
    recall_tokens: int | None = Field(
        default=2_000, ge=0, description="Maximum tokens of recalled messages in a request. 0 disables recall."
    )
    max_steps: int = Field(
        default=50, gt=0, description="Maximum model calls in one turn, with tool calls between them."
    )
    model_timeout: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without output after which a model call, or a call of an upstream, times out.",
    )
    tool_timeout: float = Field(default=120.0, gt=0, description="Timeout of one tool call, in seconds.")
    models: dict[str, ModelEntry] = Field(
        default_factory=dict[str, ModelEntry],
        description="What is known about models, by name or pattern such as claude-*. Default: from genai-prices.",
    )
    upstreams: dict[str, Upstream] = Field(
        default_factory=dict[str, Upstream],
        description="Upstreams of the gateway by model name or pattern such as gpt-*. Default: `base_url`.",
    )
    session_headers: dict[str, str] = Field(
        default_factory=DEFAULT_SESSION_HEADERS.copy,
        description="Headers in which clients send their session ID, with the client's name, added to the built-in "
        "ones. An empty name turns a header off.",
    )
    pass_other_paths: bool = Field(
        default=False,
        description="Pass embeddings, moderations, rerank, audio and images under /v1 to the upstream, unrecorded.",
    )
    record_unstored: bool = Field(
        default=True,
        description="Record turns of clients that set `store` to false. If false, nothing of them is stored.",
    )
    on_store_failure: Literal["refuse", "pass_through"] = Field(
        default="refuse",
        description="While the database is unavailable, the gateway refuses requests or passes them through. A server "
        "of the local user alone passes them through unless this is set.",
    )
    requests_per_minute: int | None = Field(
        default=600, gt=0, description="Rate limit of one API key, unless the key has its own."
    )
    tenant_quotas: dict[str, TenantQuota] = Field(
        default_factory=dict[str, TenantQuota],
        description="Quotas of a tenant with all its API keys, by name or by pattern such as *: max_spend, "
        "requests_per_minute, stored_bytes, worker_seconds.",
    )
    tenant_masking: dict[str, TenantMasking] = Field(
        default_factory=dict[str, TenantMasking],
        description="Tenants whose secrets are masked before they are stored, by name or by pattern such as *: "
        "patterns. See docs/secrets.md; requests to models are sent as they are.",
    )
    encryption: Encryption | None = Field(
        default=None,
        description="Encrypt the stored text of tenants: tenants, and one of key_file, key_env and key_command. See "
        "docs/encryption.md; else it is stored as it is.",
    )
    sign_in: SignIn | None = Field(
        default=None,
        description="Sign-in by an identity provider (OpenID Connect): issuer, client_id, client_secret_env, url, "
        "subject_claim, groups_claim, groups, provisioning, audit_endpoint, audit_headers_env, workloads. See "
        "docs/sign-in.md; else there are only API keys.",
    )
    trusted_tenants: tuple[str, ...] = Field(
        default=(),
        description="Tenants whose API keys use the server's vault, agent and MCP servers. Others have none of these.",
    )
    mcp_hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names under which the server serves /mcp, such as quire.example.org, besides localhost.",
    )
    max_request_bytes: int = Field(default=20_000_000, gt=0, description="Maximum size of a request body, in bytes.")
    object_storage_url: str | None = Field(
        default=None,
        description="Object storage for large blobs and unused conversations: s3://bucket/prefix, gs://, az:// or "
        "file:///folder. Credentials come from the environment. See docs/object-storage.md.",
    )
    offload_after_days: int | None = Field(
        default=None,
        gt=0,
        description="Move a conversation to the object storage after this many days without use. It comes back when it "
        "is opened.",
    )
    thin_manifests_after_days: int | None = Field(
        default=None,
        gt=0,
        description="Remove what only a replay needs from the records of requests that are older than this many days. "
        "See docs/deployment.md#retention.",
    )
    retention_days: int | None = Field(
        default=None, gt=0, description="Erase conversations permanently after this many days without use."
    )
    shares: dict[ShareName, float] | None = Field(
        default=None,
        description="Share of the available input tokens that each slot or priority class may use, instead of the "
        'strategy\'s. "classes" gives 20 % to memory and 30, 25 and 20 % to critical, important and normal messages.',
    )

    @field_validator("shares", mode="before")
    @classmethod
    def _expand_preset(cls, shares: object) -> object:
        if not isinstance(shares, str):
            return shares
        if shares not in SHARE_PRESETS:
            raise ValueError(f"{shares!r} is no preset; use {', '.join(SHARE_PRESETS)}, or a table of shares")
        return SHARE_PRESETS[shares]

    @field_validator("session_headers")
    @classmethod
    def _add_default_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        return DEFAULT_SESSION_HEADERS | {header.lower(): client for header, client in headers.items()}


_NO_QUOTA = TenantQuota()


def tenant_quota_for(settings: Settings, tenant: str) -> TenantQuota:
    """Quotas of the tenant. Where none names a person, the quotas of the person's tenant apply to each person."""
    return _find_for_tenant(settings.tenant_quotas, tenant) or _NO_QUOTA


def tenant_masking_for(masking: Mapping[str, TenantMasking], tenant: str) -> TenantMasking | None:
    """How the tenant's secrets are masked before they are stored; None if they are not."""
    return _find_for_tenant(masking, tenant)


def is_encrypted_tenant(encryption: Encryption, tenant: str) -> bool:
    """Whether the settings say that the tenant is encrypted. A person's space is if its tenant is."""
    return _find_for_tenant(dict.fromkeys(encryption.tenants, True), tenant) is not None


def _find_for_tenant(values: Mapping[str, T], tenant: str) -> T | None:
    """The value with the exact name of the tenant, else of the first matching pattern."""
    names = dict.fromkeys((tenant, split_space(tenant)[0]))
    exact = (values[name] for name in names if name in values)
    matches = (each for name in names for pattern, each in values.items() if fnmatchcase(name, pattern))
    return next(exact, None) or next(matches, None)


def upstream_for(settings: Settings, model: str) -> Upstream | None:
    """Upstream with the exact name of the model, else the first matching pattern.

    Else the upstream whose own `model` has that name, else `base_url`, if set.
    """
    upstreams = settings.upstreams
    upstream = upstreams.get(model) or next(
        (candidate for pattern, candidate in upstreams.items() if fnmatchcase(model, pattern)),
        next((candidate for candidate in upstreams.values() if candidate.model == model), None),
    )
    if upstream is None and settings.base_url is not None:
        return Upstream(base_url=settings.base_url)
    return upstream
