"""Schemas of the built-in tools, for what a request omits: archived messages, documents, memories.

Only the definitions and the parsing of arguments; `engine.builtin_tools` executes the calls.
"""

import json
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quire.errors import InvalidRequest
from quire.model import ToolDefinition

ResultLimit = Annotated[int, Field(ge=1, le=20, description="Maximum number of results.")]


class ToolArguments(BaseModel):
    """Arguments of a tool; the class docstring is the tool's description for the model."""

    model_config = ConfigDict(extra="ignore")
    tool_name: ClassVar[str]

    @classmethod
    def to_definition(cls) -> ToolDefinition:
        schema = cls.model_json_schema()
        parameters = {"type": "object", "properties": schema["properties"], "required": schema.get("required", [])}
        return ToolDefinition(
            name=cls.tool_name, description=" ".join((cls.__doc__ or "").split()), parameters=parameters
        )


class SearchHistory(ToolArguments):
    """Search the earlier part of this conversation that is no longer in your context, and all memories. Returns
    numbered messages, and memories by id."""

    tool_name = "history_search"
    query: str = Field(description="What to look for, in words that were likely used.")
    limit: ResultLimit = 8


class ReadHistory(ToolArguments):
    """Read messages of this conversation by their numbers, word for word."""

    tool_name = "history_read"
    first: int = Field(ge=1, description="The number of the first message to read.")
    last: int | None = Field(default=None, ge=1, description="The number of the last one; defaults to the first.")


class ReadDocument(ToolArguments):
    """Read a document of the vault by its path, in full or from a given character."""

    tool_name = "read_document"
    path: str = Field(description="The path from the vault's root, as the other tools give it.")
    start: int = Field(default=0, ge=0, description="The character to start at, to continue in a long document.")


class FindDocuments(ToolArguments):
    """Find documents of the vault that are relevant to a question. Returns paths with a line about each."""

    tool_name = "find_documents"
    query: str = Field(description="What the documents should be about.")
    limit: ResultLimit = 8


class FindExcerpts(ToolArguments):
    """Find passages in the vault's documents that are relevant to a question. Returns passages with their paths."""

    tool_name = "find_excerpts"
    query: str = Field(description="What the passages should be about.")
    limit: ResultLimit = 5


class ResolveWikilink(ToolArguments):
    """Resolve a [[wikilink]] to the document that it links to."""

    tool_name = "resolve_wikilink"
    link: str = Field(description="The link, with or without its brackets.")


class Remember(ToolArguments):
    """Remember something lasting that the user said, for later conversations. To correct or extend a memory, give its
    id as `replaces`."""

    tool_name = "remember"
    text: str = Field(description="One fact or preference in a sentence that can be understood on its own.")
    replaces: str | None = Field(
        default=None,
        description="The id of the memory that this one corrects or extends, as in brackets after it, or in its label.",
    )


HISTORY_TOOLS: tuple[type[ToolArguments], ...] = (SearchHistory, ReadHistory)
DOCUMENT_TOOLS: tuple[type[ToolArguments], ...] = (ReadDocument, FindDocuments, FindExcerpts, ResolveWikilink)
MEMORY_TOOLS: tuple[type[ToolArguments], ...] = (Remember,)
BUILTIN_TOOLS = {call.tool_name: call for call in (*HISTORY_TOOLS, *DOCUMENT_TOOLS, *MEMORY_TOOLS)}

BuiltinToolCall = SearchHistory | ReadHistory | ReadDocument | FindDocuments | FindExcerpts | ResolveWikilink | Remember


def build_builtin_tools(*, has_vault: bool, has_memory: bool) -> list[ToolDefinition]:
    """Definitions of the available tools: document tools only with a vault, memory tools only with memory enabled."""
    available = (*HISTORY_TOOLS, *(DOCUMENT_TOOLS if has_vault else ()), *(MEMORY_TOOLS if has_memory else ()))
    return [call.to_definition() for call in available]


def parse_builtin_call(name: str, arguments: str) -> BuiltinToolCall:
    """Parses a model's call; the errors say what to correct, so that the model can retry."""
    try:
        given: Any = json.loads(arguments or "{}")
        return BUILTIN_TOOLS[name].model_validate(given)  # type: ignore[return-value]
    except KeyError:
        raise InvalidRequest(f"There is no tool {name!r}; the tools are {', '.join(sorted(BUILTIN_TOOLS))}.") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise InvalidRequest(f"The arguments of {name} are invalid: {problems}.") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"The arguments of {name} are not valid JSON; send a JSON object.") from None
