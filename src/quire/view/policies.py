"""From settings to a policy: the model's provider and window are looked up, and nothing is left open."""

from quire.model.policy import Policy
from quire.settings import Settings
from quire.view.models import window_of
from quire.view.shapes import provider_of

UNKNOWN_WINDOW = 8_192
"""For models that no table knows: small enough for most that are in use."""


def policy_for(settings: Settings) -> Policy:
    window = settings.context_limit or window_of(settings.model) or UNKNOWN_WINDOW
    if settings.max_prompt_tokens is not None:
        window = min(window, settings.max_prompt_tokens)
    return Policy(
        model=settings.model,
        provider=settings.provider or provider_of(settings.model),
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
