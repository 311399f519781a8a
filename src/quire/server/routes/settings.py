"""Settings that shape a request: shown, tried on a conversation, changed.

Where the log is and which servers are asked is for whoever starts the server to say, and is not shown here.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError

from quire.engine import Conversation, Engine
from quire.errors import AccessDenied, InvalidConfiguration
from quire.log import MAIN
from quire.server.asking import Managing, Reading, Shared, conversation_of
from quire.server.routes.compaction import PlanShown
from quire.server.routes.context import UsageShown
from quire.settings import Settings

router = APIRouter(prefix="/api/settings", tags=["settings"])

SHOWN = (
    "model",
    "strategy",
    "context_limit",
    "max_prompt_tokens",
    "reserved_response_tokens",
    "context_threshold",
    "context_target",
    "recent_messages_to_keep",
    "min_recent_messages_to_keep",
    "context_background_threshold",
    "context_management_enabled",
    "memory_integration",
    "recall_tokens",
    "document_share",
    "import_share",
    "max_spend",
)


class SettingShown(BaseModel):
    name: str
    value: Any
    default: Any
    description: str
    kind: dict[str, Any] = Field(description="Its type and limits, as JSON Schema.")


class SettingsShown(BaseModel):
    items: list[SettingShown]
    changeable: bool = Field(description="Whether they can be changed here.")


class Tried(BaseModel):
    conversation: str = Field(min_length=1, max_length=200)
    branch: int = Field(default=MAIN, ge=0, le=2**31 - 1)
    changes: dict[str, Any]


class Reckoned(BaseModel):
    usage: UsageShown
    plan: PlanShown | None


class Trial(BaseModel):
    """What the next request would be, as things are and as they would be."""

    before: Reckoned
    after: Reckoned


class Changed(BaseModel):
    changes: dict[str, Any]


@router.get("")
async def get_settings(caller: Reading, serving: Shared) -> SettingsShown:
    return _shown(serving.settings, changeable=serving.local)


def _shown(settings: Settings, *, changeable: bool) -> SettingsShown:
    kinds = Settings.model_json_schema()["properties"]
    return SettingsShown(
        items=[
            SettingShown(
                name=name,
                value=getattr(settings, name),
                default=Settings.model_fields[name].default,
                description=kinds[name].pop("description", ""),
                kind={key: value for key, value in kinds[name].items() if key not in ("title", "default")},
            )
            for name in SHOWN
        ],
        changeable=changeable,
    )


@router.post("/preview")
async def try_settings(caller: Reading, serving: Shared, tried: Tried) -> Trial:
    """What these changes would do to a conversation's next request. Nothing is changed by asking."""
    found = await conversation_of(serving, caller, tried.conversation, tried.branch)
    engine = _changed(found.engine, _allowed(tried.changes))
    other = Conversation(engine, found.id, found.branch)
    return Trial(before=await _reckoned(found), after=await _reckoned(other))


def _changed(engine: Engine, changes: dict[str, Any]) -> Engine:
    try:
        return engine.like(**changes)
    except ValidationError as error:
        raise InvalidConfiguration(_explained(error)) from error


async def _reckoned(conversation: Conversation) -> Reckoned:
    plan = await conversation.plan()
    return Reckoned(
        usage=UsageShown.of(await conversation.usage()), plan=PlanShown.of(plan) if plan is not None else None
    )


@router.patch("")
async def change_settings(caller: Managing, serving: Shared, changed: Changed) -> SettingsShown:
    """From the next request on; only where Quire serves one user on their own machine."""
    if not serving.local:
        raise AccessDenied("Settings of a server for many are changed where it is started, not over the network.")
    try:
        await serving.change(_allowed(changed.changes))
    except ValidationError as error:
        raise InvalidConfiguration(_explained(error)) from error
    return _shown(serving.settings, changeable=True)


def _allowed(changes: dict[str, Any]) -> dict[str, Any]:
    for name in changes:
        if name not in SHOWN:
            raise InvalidConfiguration(f"{name!r} cannot be changed here; these can: {', '.join(SHOWN)}.")
    return changes


def _explained(error: ValidationError) -> str:
    faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors())
    return f"The settings cannot be used: {faults}."
