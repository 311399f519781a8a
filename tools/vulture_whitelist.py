"""Names that vulture takes for unused, by the reason why they stay. `just check` runs vulture with this file."""

# Imported for annotations in quotes, which vulture does not read; ruff finds unused imports.
ConsoleOptions, Input, KeyPressEvent, Output, QueuedJob, RenderableType, RenderResult
DataSnapshot, ModelInfo, ModelPrice, PostgresInsert, SqliteInsert

# Called or read by a library: Python, SQLAlchemy, Alembic, pydantic, psycopg, uvicorn, FastAPI, prompt_toolkit,
# procrastinate.
__annotations__, __getattr__, bind_processor, cache_ok, capture_signals, check_config, coltype, complete_event
down_revision, field_title_should_be_set, get_col_spec, get_completions, get_retry_decision, ignored_warning_kinds
(
    impl,
    model_config,
    object_bytes,
    prepare_threshold,
    result_processor,
    revision,
    rich_help_panel,
    scheme_name,
    text_factory,
    timestamp,
)

# Options that onnxruntime reads, and a field of features that segments store by name.
directive, inter_op_num_threads, intra_op_num_threads, log_severity_level

# Fields of values that documents read by name.
exact_usd, pending_branches, previous_conversation

# Public API.
FunctionToolRunner, ScriptedModel, after_compaction, before_compaction, remaining_replies
to_messages, to_chat, to_responses

# Gives the list that a client's summary covers, as it was sent.
load_sent_request

# The protocols of the Claude Agent SDK, the OpenAI Agents SDK, LangChain and Pydantic AI, which call them.
list_session_summaries, open_session_store
add_items, clear_session, filter_input, get_items, on_llm_end, open_session, pop_item, run_compaction
awrap_model_call, awrap_tool_call, open_middleware, wrap_model_call, wrap_tool_call
_http_client_factory, after_model_request, before_model_request, for_run, get_toolset, open_capability
prepare_model_request, prepare_tools

# The entry point of a process that `quire run` starts.
serve_commands
serve_run

# Fields of values that are stored, or returned as JSON.
(
    compaction_seq,
    first_byte_at,
    first_message,
    forwarding,
    has_more,
    invalidated_tokens,
    item_counts,
    json_schema,
    lost_total,
    memory_enabled,
)
renderer, is_as_sent
branch_used_last, can_share, parent_agent, savings_per_request, unpriced_turns, unrecorded_messages, was_running

# Fields of parsed values that only tests read so far.
block_ids, body_start, cache_write_price, imported_by, tags

# Renders the table of permissions into the docs, which a test compares.
render_permission_table
