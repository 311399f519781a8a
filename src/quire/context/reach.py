"""The tools by which a model reaches what is not in front of it: archived messages, documents, memories.

Only their definitions and how their arguments are read; who holds the log and the vault answers them.
"""

import json
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quire.errors import InvalidRequest
from quire.model import ToolDefinition

Limit = Annotated[int, Field(ge=1, le=20, description="At most so many.")]


class _Call(BaseModel):
    """A tool's arguments; its docstring is what the model is told of it."""

    model_config = ConfigDict(extra="ignore")
    tool: ClassVar[str]

    @classmethod
    def definition(cls) -> ToolDefinition:
        schema = cls.model_json_schema()
        parameters = {"type": "object", "properties": schema["properties"], "required": schema.get("required", [])}
        return ToolDefinition(name=cls.tool, description=" ".join((cls.__doc__ or "").split()), parameters=parameters)


class HistorySearch(_Call):
    """Search the earlier part of this conversation that is no longer in front of you. Gives numbered messages."""

    tool = "history_search"
    query: str = Field(description="What to look for, in words that were likely used.")
    limit: Limit = 8


class HistoryRead(_Call):
    """Read messages of this conversation by their numbers, word for word."""

    tool = "history_read"
    first: int = Field(ge=1, description="The number of the first message to read.")
    last: int | None = Field(default=None, ge=1, description="The number of the last one; the same, if left out.")


class ReadDocument(_Call):
    """Read a document of the vault by its path, whole or from a place on."""

    tool = "read_document"
    path: str = Field(description="The path from the vault's root, as the other tools give it.")
    start: int = Field(default=0, ge=0, description="The character to begin with, to go on in a long document.")


class FindDocuments(_Call):
    """Find documents of the vault that bear on a question. Gives paths with a line about each."""

    tool = "find_documents"
    query: str = Field(description="What the documents should be about.")
    limit: Limit = 8


class FindExcerpts(_Call):
    """Find passages in the vault's documents that bear on a question. Gives the passages with their paths."""

    tool = "find_excerpts"
    query: str = Field(description="What the passages should be about.")
    limit: Limit = 5


class ResolveWikilink(_Call):
    """Say which document a [[wikilink]] leads to."""

    tool = "resolve_wikilink"
    link: str = Field(description="The link, with or without its brackets.")


class Remember(_Call):
    """Remember something lasting that the user said, for later conversations. Give `replaces` to correct an entry."""

    tool = "remember"
    text: str = Field(description="One fact or wish in a sentence that can be understood on its own.")
    replaces: str | None = Field(default=None, description="The id of the entry that this one corrects.")


HISTORY: tuple[type[_Call], ...] = (HistorySearch, HistoryRead)
DOCUMENTS: tuple[type[_Call], ...] = (FindDocuments, FindExcerpts, ReadDocument, ResolveWikilink)
MEMORY: tuple[type[_Call], ...] = (Remember,)
CALLS = {call.tool: call for call in (*HISTORY, *DOCUMENTS, *MEMORY)}

Call = HistorySearch | HistoryRead | ReadDocument | FindDocuments | FindExcerpts | ResolveWikilink | Remember


def definitions(*, documents: bool, memory: bool) -> list[ToolDefinition]:
    """The tools that can be answered: of documents only with a vault, of memory only where something is remembered."""
    offered = (*HISTORY, *(DOCUMENTS if documents else ()), *(MEMORY if memory else ()))
    return [call.definition() for call in offered]


def read_call(name: str, arguments: str) -> Call:
    """The call that a model makes; what is wrong with it is said so that the model can mend it."""
    try:
        given: Any = json.loads(arguments or "{}")
        return CALLS[name].model_validate(given)  # type: ignore[return-value]
    except KeyError:
        raise InvalidRequest(f"There is no tool {name!r} here; there are {', '.join(sorted(CALLS))}.") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise InvalidRequest(f"{name} cannot be called like this: {faults}.") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"The arguments of {name} are no valid JSON.") from None
