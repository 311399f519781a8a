"""What each command's `--json` prints, as JSON Schema. Nothing may be there that a schema does not name."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
SCORE: Schema = {"type": "number", "minimum": 0}
YES: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$"}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
ANYTHING: Schema = {}


def thing(*optional: str, **fields: Schema) -> Schema:
    """An object with exactly these fields; those in `optional` may be missing."""
    needed = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


SLOT = one_of("system", "tools", "memory", "references", "summary", "messages", "recall", "newest")
SPAN = thing(first=POSITIVE, last=POSITIVE)
DECISION = thing(
    "span", "name", "blob", "score", "excerpt", "pieces", "asked",
    slot=SLOT,
    what=one_of("instructions", "rule", "tool", "memory", "reference", "summary", "message", "document"),
    included=YES,
    reason=TEXT,
    tokens=NUMBER,
    span=SPAN,
    name=TEXT,
    blob=DIGEST,
    score=SCORE,
    excerpt=NUMBER,
    pieces=many(many(NUMBER)),
    asked=YES,
)  # fmt: skip
PLACE: dict[str, Schema] = {"conversation": TEXT, "branch": NUMBER}
COMPACTION = thing(
    number=POSITIVE,
    entry=POSITIVE,
    at=TIME,
    covers=maybe(SPAN),
    summary=maybe(TEXT),
    sources=many(POSITIVE),
    trigger=one_of("threshold", "background", "manual", "overflow", "edit", "model"),
    strategy=TEXT,
    model=maybe(TEXT),
    tokens_before=NUMBER,
    tokens_after=NUMBER,
    failures=many(TEXT),
)
COMPACTED = thing(**PLACE, compaction=maybe(COMPACTION))
MEMORY: dict[str, Schema] = {
    "id": TEXT,
    "text": TEXT,
    "source": maybe(TEXT),
    "cites": maybe(thing(conversation=TEXT, branch=NUMBER, number=POSITIVE)),
    "created_at": TIME,
    "retired_at": maybe(TIME),
    "replaced_by": maybe(TEXT),
}
ITEM: dict[str, Schema] = {
    "name": TEXT,
    "description": TEXT,
    "include": one_of("always", "manual", "agent"),
    "priority": {"type": "integer"},
    "enabled": YES,
}
KEY: dict[str, Schema] = {
    "id": TEXT,
    "tenant": TEXT,
    "name": TEXT,
    "scopes": many(one_of("read", "write", "chat", "admin")),
    "requests_per_minute": maybe(POSITIVE),
    "created_at": TIME,
    "expires_at": maybe(TIME),
    "revoked_at": maybe(TIME),
}
COUNTS: Schema = {"type": "object", "additionalProperties": NUMBER}

SCHEMAS: dict[str, Schema] = {
    "context show": thing(
        **PLACE,
        reply=maybe(POSITIVE),
        model=TEXT,
        strategy=TEXT,
        exact=YES,
        window=POSITIVE,
        reserved=NUMBER,
        trigger=NUMBER,
        total=NUMBER,
        wanted=NUMBER,
        slots=many(thing("overflows", slot=SLOT, budget=NUMBER, used=NUMBER, overflows=YES)),
        included=many(DECISION),
        left_out=many(DECISION),
        servers_not_started=many(TEXT),
    ),
    "context summary": COMPACTED,
    "context memory": thing(
        **PLACE,
        memory=many(thing(name=maybe(TEXT), included=YES, reason=TEXT, tokens=NUMBER, text=maybe(TEXT))),
    ),
    "context stats": thing(
        **PLACE,
        entries=COUNTS,
        messages=COUNTS,
        archived_up_to=maybe(POSITIVE),
        compactions=NUMBER,
        pins=NUMBER,
        branches=POSITIVE,
        purged=NUMBER,
        replies=NUMBER,
        tokens=thing(stored=NUMBER, input=NUMBER, output=NUMBER, cache_read=NUMBER),
        spent=SCORE,
        begun_at=TIME,
        last_at=maybe(TIME),
    ),
    "context compact": {
        "anyOf": [
            COMPACTED,
            thing(
                **PLACE,
                plan=maybe(
                    thing(covers=maybe(SPAN), shortened=many(POSITIVE), tokens=NUMBER, target=NUMBER, summarize=YES)
                ),
            ),
        ]
    },
    "context undo": thing(**PLACE, undone=POSITIVE, active=maybe(POSITIVE)),
    "context edit": COMPACTED,
    "context clear": COMPACTED,
    "context export": {
        "anyOf": [
            thing(conversation=TEXT, path=TEXT, lines=POSITIVE),
            thing(
                conversation=TEXT,
                lines=many({"type": "object", "properties": {"line": TEXT}, "required": ["line"]}),
            ),
        ]
    },
    "context import": thing(conversation=TEXT, title=TEXT),
    "context replay": thing(
        **PLACE,
        reply=POSITIVE,
        matches=YES,
        recorded=DIGEST,
        rebuilt=maybe(DIGEST),
        missing=many(TEXT),
        request=maybe({"type": "object", "required": ["messages"]}),
    ),
    "context diff": {
        **thing(
            **PLACE,
            to=POSITIVE,
            changes=many(
                thing(what=TEXT, name=maybe(TEXT), span=maybe(SPAN), before=maybe(DECISION), after=maybe(DECISION))
            ),
            **{"from": POSITIVE},
        )
    },
    "context why": thing(**PLACE, reply=maybe(POSITIVE), item=TEXT, decision=DECISION),
    "context items": thing(
        **PLACE,
        items=many(
            thing(
                type=one_of("rule", "reference", "tool"),
                name=TEXT,
                server=maybe(TEXT),
                include=one_of("always", "manual", "agent"),
                known=YES,
                description=TEXT,
            )
        ),
        pins=many(POSITIVE),
        servers_not_started=many(TEXT),
    ),
    "memory import": thing(shelf=TEXT, source=TEXT, added=many(TEXT), known=NUMBER, retired=many(TEXT), preview=YES),
    "memory search": thing(shelf=TEXT, query=TEXT, memories=many(thing(**MEMORY, score=SCORE))),
    "memory relevance": thing(
        **PLACE,
        question=TEXT,
        enabled=YES,
        memories=many(thing(id=TEXT, text=TEXT, included=YES, reason=TEXT, score=maybe(SCORE))),
    ),
    "memory list": thing(shelf=TEXT, memories=many(thing(**MEMORY))),
    "memory retire": thing(memories=many(thing(**MEMORY | {"retired_at": TIME}))),
    "config get": thing(name=TEXT, value=ANYTHING, origin=TEXT),
    "config set": thing(name=TEXT, value=ANYTHING, path=TEXT),
    "config list": thing(settings=many(thing(name=TEXT, value=ANYTHING, origin=TEXT, description=TEXT))),
    "config path": thing(
        user=thing(path=TEXT, exists=YES),
        project=maybe(thing(path=TEXT, exists=YES)),
        database=TEXT,
        agents=thing(path=TEXT, exists=YES),
    ),
    "agent list": thing(
        agents=many(thing(name=TEXT, path=TEXT, used=YES, description=TEXT, model=maybe(TEXT), problem=maybe(TEXT)))
    ),
    "agent show": thing(
        name=TEXT,
        path=TEXT,
        description=TEXT,
        model=maybe(TEXT),
        instructions=TEXT,
        settings={"type": "object"},
        rules=many(thing(**ITEM)),
        references=many(thing(**ITEM, path=maybe(TEXT))),
        servers=many(
            thing(
                name=TEXT,
                command=maybe(TEXT),
                url=maybe(TEXT),
                transport=one_of("stdio", "http", "sse"),
                include=maybe(one_of("always", "manual", "agent")),
                enabled=YES,
            )
        ),
        memory=thing(enabled=YES, files=many(TEXT), shelf=maybe(TEXT)),
    ),
    "agent config": thing(agent=TEXT, path=TEXT, key=TEXT, value=ANYTHING),
    "agent new": thing(name=TEXT, path=TEXT),
    "conversation list": thing(
        conversations=many(thing(id=TEXT, title=TEXT, entries=NUMBER, branches=POSITIVE, created_at=TIME, used_at=TIME))
    ),
    "conversation show": thing(
        **PLACE,
        title=TEXT,
        head=NUMBER,
        entries=many(
            thing(
                number=POSITIVE,
                kind=one_of("message", "compaction", "restore", "pin", "unpin", "context_change"),
                role=maybe(one_of("system", "user", "assistant", "tool")),
                name=maybe(TEXT),
                at=TIME,
                tokens=maybe(NUMBER),
                archived=YES,
                pinned=YES,
                purged=YES,
                unfinished=YES,
                references=many(TEXT),
                body={"type": "object"},
            )
        ),
    ),
    "conversation search": thing(
        query=TEXT,
        messages=many(
            thing(conversation=TEXT, branch=NUMBER, number=POSITIVE, role=TEXT, at=TIME, score=SCORE, text=TEXT)
        ),
    ),
    "conversation fork": thing(**PLACE, name=TEXT, **{"from": thing(branch=NUMBER, number=NUMBER)}),
    "conversation rename": thing(conversation=TEXT, title=TEXT),
    "conversation verify": thing(
        conversations=many(TEXT),
        faults=many(thing(conversation=TEXT, branch=NUMBER, number=POSITIVE, problem=TEXT)),
    ),
    "conversation purge": thing(conversation=TEXT, purged=many(thing(branch=NUMBER, number=POSITIVE))),
    "key create": thing(**KEY, key={"type": "string", "pattern": "^quire_[0-9a-z]{26}_[0-9A-Za-z]{43}$"}),
    "key list": thing(tenant=TEXT, keys=many(thing(**KEY))),
    "key revoke": thing(**KEY | {"revoked_at": TIME}),
    "db upgrade": thing(database=TEXT, before=maybe(TEXT), now=TEXT, queue=maybe(TEXT), role=maybe(TEXT)),
    "db status": thing(database=TEXT, found=maybe(TEXT), needed=TEXT, current=YES),
}
