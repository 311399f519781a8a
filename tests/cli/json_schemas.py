"""JSON Schemas of what each command prints with `--json`; a document has no field that its schema does not name.

Documents about the log and about requests are those of the API: their schemas are derived from `quire.schemas`.
"""

from typing import Any

from pydantic import TypeAdapter

from quire.model import BranchState, Decision, Manifest
from quire.schemas.context import (
    ActiveCompactionSchema,
    CompactionPlanSchema,
    ContextItemSchema,
    ReplaySchema,
    RequestDiffSchema,
)
from quire.schemas.entries import EntrySchema
from quire.schemas.records import (
    BranchSchema,
    ConversationSchema,
    CreatedKeySchema,
    IntegrityFaultSchema,
    KeySchema,
    MemorySchema,
)

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
SCORE: Schema = {"type": "number", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "integer", "minimum": 1_000_000_000_000_000}
"""Microseconds since 1970."""
ANY: Schema = {}


def object_schema(*optional: str, **fields: Schema) -> Schema:
    """Schema of an object with exactly these fields; those in `optional` may be missing."""
    needed = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def array_schema(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def model_schema(model: Any, **more: Schema) -> Schema:
    """Schema of an API model, here with `more` fields; its own `$id` makes its `$defs` resolve in place."""
    schema: Schema = {"$id": f"quire:{model.__name__}"} | TypeAdapter(model).json_schema(mode="serialization")
    if "properties" not in schema:  # A union of models.
        return schema
    fields, required = schema["properties"] | more, {*schema.get("required", ()), *more}
    return schema | {"properties": fields, "required": sorted(required), "additionalProperties": False}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def enum_schema(*values: str) -> Schema:
    return {"enum": list(values)}


BRANCH_FIELDS: dict[str, Schema] = {"conversation": TEXT, "branch": COUNT}
COMPACTION_RESULT = object_schema(**BRANCH_FIELDS, entry=nullable(model_schema(EntrySchema)))
ITEM_FIELDS: dict[str, Schema] = {
    "name": TEXT,
    "description": TEXT,
    "include": enum_schema("always", "manual", "agent"),
    "priority": {"type": "integer"},
    "enabled": BOOLEAN,
}
COUNT_BY_NAME: Schema = {"type": "object", "additionalProperties": COUNT}

SCHEMAS: dict[str, Schema] = {
    "context show": object_schema(
        **BRANCH_FIELDS,
        reply=nullable(POSITIVE),
        manifest=model_schema(Manifest),
        item_counts=object_schema(**dict.fromkeys(("rule", "reference", "tool"), COUNT_BY_NAME)),
        entry=nullable(model_schema(EntrySchema)),
        servers_not_started=array_schema(TEXT),
    ),
    "context summary": object_schema(**BRANCH_FIELDS, active=nullable(model_schema(ActiveCompactionSchema))),
    "context memory": object_schema(
        **BRANCH_FIELDS,
        memory=array_schema(
            object_schema(name=nullable(TEXT), included=BOOLEAN, reason=TEXT, tokens=COUNT, text=nullable(TEXT))
        ),
    ),
    "context stats": object_schema(
        **BRANCH_FIELDS,
        entries=COUNT_BY_NAME,
        messages=COUNT_BY_NAME,
        archived_up_to=nullable(POSITIVE),
        compactions=COUNT,
        pins=COUNT,
        branches=POSITIVE,
        purged=COUNT,
        replies=COUNT,
        tokens=object_schema(stored=COUNT, input=COUNT, output=COUNT, cache_read=COUNT),
        cost_usd=SCORE,
        created_at=TIME,
        last_entry_at=nullable(TIME),
    ),
    "context compact": {
        "anyOf": [
            COMPACTION_RESULT,
            object_schema(**BRANCH_FIELDS, plan=nullable(model_schema(CompactionPlanSchema))),
        ]
    },
    "context undo": object_schema(
        **BRANCH_FIELDS, undone=POSITIVE, active=nullable(model_schema(ActiveCompactionSchema))
    ),
    "context edit": COMPACTION_RESULT,
    "context clear": COMPACTION_RESULT,
    "context export": {
        "anyOf": [
            object_schema(conversation=TEXT, path=TEXT, lines=POSITIVE),
            object_schema(
                conversation=TEXT,
                lines=array_schema({"type": "object", "properties": {"line": TEXT}, "required": ["line"]}),
            ),
        ]
    },
    "context import": object_schema(conversation=TEXT, title=TEXT),
    "context replay": model_schema(ReplaySchema, **BRANCH_FIELDS, reply=POSITIVE),
    "context diff": model_schema(RequestDiffSchema, **BRANCH_FIELDS),
    "context why": object_schema(**BRANCH_FIELDS, reply=nullable(POSITIVE), item=TEXT, decision=model_schema(Decision)),
    "context items": object_schema(
        **BRANCH_FIELDS,
        items=array_schema(model_schema(ContextItemSchema)),
        pins=array_schema(POSITIVE),
        servers_not_started=array_schema(TEXT),
    ),
    "context priority": object_schema(
        **BRANCH_FIELDS,
        priorities=array_schema(object_schema(message=POSITIVE, priority=POSITIVE)),
    ),
    "memory import": object_schema(
        namespace=TEXT, source=TEXT, added=array_schema(TEXT), known=COUNT, retired=array_schema(TEXT), preview=BOOLEAN
    ),
    "memory search": object_schema(
        namespace=TEXT, query=TEXT, memories=array_schema(model_schema(MemorySchema, score=SCORE))
    ),
    "memory relevance": object_schema(
        **BRANCH_FIELDS,
        question=TEXT,
        enabled=BOOLEAN,
        memories=array_schema(object_schema(id=TEXT, text=TEXT, included=BOOLEAN, reason=TEXT, score=nullable(SCORE))),
    ),
    "memory list": object_schema(namespace=TEXT, memories=array_schema(model_schema(MemorySchema))),
    "memory retire": object_schema(memories=array_schema(model_schema(MemorySchema, retired_at=TIME))),
    "config get": object_schema(name=TEXT, value=ANY, origin=TEXT),
    "config set": object_schema(name=TEXT, value=ANY, path=TEXT),
    "config list": object_schema(
        settings=array_schema(object_schema(name=TEXT, value=ANY, origin=TEXT, description=TEXT))
    ),
    "config path": object_schema(
        user=object_schema(path=TEXT, exists=BOOLEAN),
        project=nullable(object_schema(path=TEXT, exists=BOOLEAN)),
        database=TEXT,
        agents=object_schema(path=TEXT, exists=BOOLEAN),
    ),
    "agent list": object_schema(
        agents=array_schema(
            object_schema(
                name=TEXT, path=TEXT, active=BOOLEAN, description=TEXT, model=nullable(TEXT), problem=nullable(TEXT)
            )
        )
    ),
    "agent show": object_schema(
        name=TEXT,
        path=TEXT,
        description=TEXT,
        model=nullable(TEXT),
        instructions=TEXT,
        settings={"type": "object"},
        rules=array_schema(object_schema(**ITEM_FIELDS)),
        references=array_schema(object_schema(**ITEM_FIELDS, path=nullable(TEXT))),
        servers=array_schema(
            object_schema(
                name=TEXT,
                command=nullable(TEXT),
                url=nullable(TEXT),
                transport=enum_schema("stdio", "http", "sse"),
                include=nullable(enum_schema("always", "manual", "agent")),
                enabled=BOOLEAN,
            )
        ),
        memory=object_schema(
            enabled=BOOLEAN, files=array_schema(TEXT), files_enabled=nullable(BOOLEAN), namespace=nullable(TEXT)
        ),
    ),
    "agent config": object_schema(agent=TEXT, path=TEXT, key=TEXT, value=ANY),
    "agent new": object_schema(name=TEXT, path=TEXT),
    "conversation list": object_schema(
        conversations=array_schema(
            model_schema(ConversationSchema, entries=COUNT, branches=array_schema(model_schema(BranchSchema)))
        )
    ),
    "conversation show": object_schema(
        **BRANCH_FIELDS,
        title=TEXT,
        head=COUNT,
        state=model_schema(BranchState),
        entries=array_schema(model_schema(EntrySchema)),
    ),
    "conversation fork": model_schema(BranchSchema, conversation=TEXT),
    "conversation rename": object_schema(conversation=TEXT, title=TEXT),
    "conversation verify": object_schema(
        conversations=array_schema(TEXT),
        faults=array_schema(model_schema(IntegrityFaultSchema, conversation=TEXT)),
    ),
    "conversation secrets": object_schema(
        conversations=COUNT,
        secrets=array_schema(object_schema(conversation=TEXT, branch=COUNT, seq=POSITIVE, kind=TEXT, mask=TEXT)),
    ),
    "conversation share": object_schema(conversation=TEXT, path=TEXT, masked_secrets=COUNT),
    "conversation purge-value": object_schema(
        purged=array_schema(object_schema(conversation=TEXT, branch=COUNT, seq=POSITIVE)),
        rows={"type": "object", "additionalProperties": COUNT},
        remaining=array_schema(TEXT),
    ),
    "conversation purge": object_schema(
        conversation=TEXT, purged=array_schema(object_schema(branch=COUNT, seq=POSITIVE))
    ),
    "key create": model_schema(
        CreatedKeySchema, tenant=TEXT, key={"type": "string", "pattern": "^quire_[0-9a-z]{26}_[0-9A-Za-z]{43}$"}
    ),
    "key list": object_schema(
        tenant=TEXT,
        spent_usd={"type": "number", "minimum": 0},
        max_spend={"type": ["number", "null"]},
        keys=array_schema(model_schema(KeySchema)),
    ),
    "key revoke": model_schema(KeySchema, tenant=TEXT, revoked_at=TIME),
    "db upgrade": object_schema(
        database=TEXT, previous=nullable(TEXT), version=TEXT, queue=nullable(TEXT), role=nullable(TEXT)
    ),
    "db status": object_schema(database=TEXT, version=nullable(TEXT), required=TEXT, current=BOOLEAN),
}
