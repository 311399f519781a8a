"""Settings that affect requests: get, preview on a conversation, change.

The database and the upstreams are configured where the server is started, and are not exposed here.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field, ValidationError

from quire.engine import Conversation
from quire.errors import AccessDenied, InvalidConfiguration
from quire.log import MAIN_BRANCH
from quire.schemas import JsonModel
from quire.schemas.context import CompactionPlanSchema, ContextUsageSchema
from quire.server.auth import require_action
from quire.server.caller import Caller
from quire.server.dependencies import ReadCaller, ReadEngine, StateDep, load_conversation
from quire.settings import Settings

router = APIRouter(prefix="/api/settings", tags=["settings"])

EDITABLE_SETTINGS = (
    "model",
    "strategy",
    "context_limit",
    "reserved_response_tokens",
    "context_threshold",
    "recent_messages_to_keep",
    "min_recent_messages_to_keep",
    "context_background_threshold",
    "compact_when",
    "context_management_enabled",
    "memory_integration",
    "recall_tokens",
    "document_share",
    "max_spend",
)
"""Names of the settings that the API exposes."""


class SettingSchema(BaseModel):
    name: str
    value: Any
    default: Any
    description: str
    json_schema: dict[str, Any] = Field(description="JSON Schema of the setting: type and limits.")


class SettingsSchema(BaseModel):
    items: list[SettingSchema]
    editable: bool = Field(description="Whether this server lets its user change settings.")


class PreviewSettingsBody(BaseModel):
    conversation: str = Field(min_length=1, max_length=200)
    branch: int = Field(default=MAIN_BRANCH, ge=0, le=2**31 - 1)
    changes: dict[str, Any]


class SettingsEffectSchema(JsonModel):
    usage: ContextUsageSchema
    plan: CompactionPlanSchema | None


class SettingsPreviewSchema(BaseModel):
    """The next request with the current settings and with the changed ones."""

    before: SettingsEffectSchema
    after: SettingsEffectSchema


class ChangeSettingsBody(BaseModel):
    changes: dict[str, Any]


@router.get("")
async def get_settings(caller: ReadCaller, server_state: StateDep) -> SettingsSchema:
    return _to_schema(server_state.settings, editable=server_state.is_local)


def _to_schema(settings: Settings, *, editable: bool) -> SettingsSchema:
    schemas = Settings.model_json_schema()["properties"]
    return SettingsSchema(
        items=[
            SettingSchema(
                name=name,
                value=getattr(settings, name),
                default=Settings.model_fields[name].default,
                description=schemas[name].pop("description", ""),
                json_schema={key: value for key, value in schemas[name].items() if key not in ("title", "default")},
            )
            for name in EDITABLE_SETTINGS
        ],
        editable=editable,
    )


@router.post("/preview")
async def preview_settings(engine: ReadEngine, body: PreviewSettingsBody) -> SettingsPreviewSchema:
    """Previews the effect of changed settings on a conversation's next request. Changes nothing."""
    current = await load_conversation(engine, body.conversation, body.branch)
    with _check_changes(body.changes):
        changed = Conversation(engine.with_changes(**body.changes), current.id, current.branch)
    return SettingsPreviewSchema(before=await _measure_effect(current), after=await _measure_effect(changed))


async def _measure_effect(conversation: Conversation) -> SettingsEffectSchema:
    effect = {"usage": await conversation.usage(), "plan": await conversation.plan_compaction()}
    return SettingsEffectSchema.model_validate(effect)


@router.patch("")
async def change_settings(
    caller: Annotated[Caller, Depends(require_action("change_settings"))],
    server_state: StateDep,
    body: ChangeSettingsBody,
) -> SettingsSchema:
    """Changes settings from the next request on. Only on a local server with one user."""
    if not server_state.is_local:
        raise AccessDenied("A shared server's settings cannot be changed over the API; change them where it starts.")
    with _check_changes(body.changes):
        await server_state.change_settings(body.changes)
    return _to_schema(server_state.settings, editable=True)


@contextmanager
def _check_changes(changes: dict[str, Any]) -> Generator[None]:
    """Raises `InvalidConfiguration` for a setting that cannot be changed here, and for values that are not valid."""
    for name in changes:
        if name not in EDITABLE_SETTINGS:
            raise InvalidConfiguration(
                f"The setting {name!r} cannot be changed here; these can: {', '.join(EDITABLE_SETTINGS)}."
            )
    try:
        yield
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors())
        raise InvalidConfiguration(f"The settings are invalid: {details}.") from error
