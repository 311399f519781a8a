"""Builds a policy from settings: looks up the provider and the context window of the model, and fills every field."""

from quire.model.policy import Policy
from quire.settings import Settings
from quire.view.model_specs import context_window_for
from quire.view.wire_formats import provider_for

DEFAULT_CONTEXT_WINDOW = 8_192
"""Tokens. For models that no table lists: small enough for most models in use."""


def policy_for(settings: Settings) -> Policy:
    window = settings.context_limit or context_window_for(settings.model) or DEFAULT_CONTEXT_WINDOW
    if settings.max_prompt_tokens is not None:
        window = min(window, settings.max_prompt_tokens)
    return Policy(
        model=settings.model,
        provider=settings.provider or provider_for(settings.model),
        strategy=settings.strategy,
        window=window,
        reserved_response_tokens=settings.reserved_response_tokens,
        context_threshold=settings.context_threshold,
        context_target=settings.context_target,
        recent_messages_to_keep=settings.recent_messages_to_keep,
        min_recent_messages_to_keep=settings.min_recent_messages_to_keep,
        context_management_enabled=settings.context_management_enabled,
        shares=settings.shares,
        recall_tokens=settings.recall_tokens,
    )
