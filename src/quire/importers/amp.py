"""Reads the threads of Amp: one JSON file each, with messages of Anthropic's format."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from quire.errors import InvalidEntry
from quire.importers.anthropic_content import parse_content
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_data_folder, list_editor_folders
from quire.importers.readers import read_json_object
from quire.importers.source_fields import add_usage, parse_time, read_id, read_title, retain_fields
from quire.log.types import ConversationOrigin
from quire.model.json_values import filter_objects, get_object, get_text
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

_MESSAGE_FIELDS = frozenset({"role", "messageId", "content", "state", "usage", "meta"})


class AmpSource(StoredSource):
    name = "amp"
    title = "Amp"
    patterns = ("T-*.json",)
    is_experimental = True
    not_stored = ("sub-agents", "times", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield find_data_folder(env) / "amp" / "threads"
        yield from (folder / "globalStorage" / "sourcegraph.amp" / "threads3" for folder in list_editor_folders(env))

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        thread = read_json_object(path)
        id_ = read_id(thread.get("id")) or path.stem
        trees = filter_objects(get_object(get_object(thread, "env"), "initial").get("trees"))
        uri = next((uri for tree in trees if (uri := get_text(tree, "uri"))), None)
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(thread),
            title=read_title(thread.get("title")),
            origin=ConversationOrigin(
                client=self.name, session=id_, project=unquote(urlsplit(uri).path) if uri is not None else None
            ),
            created_at=parse_time(thread.get("created")),
        )

    def _read_messages(self, thread: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        for index, raw in enumerate(filter_objects(thread.get("messages"))):
            id_ = f"message:{read_id(raw.get('messageId')) or index}"
            try:
                messages = parse_content(raw.get("role"), raw.get("content"))
            except (InvalidEntry, ValueError, TypeError) as error:
                yield SourceError.of(id_, error)
                continue
            if messages and (fields := retain_fields(raw, _MESSAGE_FIELDS, self.name)):
                messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            usage = get_object(raw, "usage")
            yield from links.add(
                id_,
                messages,
                after=links.last,
                at=parse_time(get_object(raw, "meta").get("sentAt")),
                usage=add_usage(
                    usage.get("model"),
                    uncached=usage.get("inputTokens"),
                    cache_read=usage.get("cacheReadInputTokens"),
                    cache_write=usage.get("cacheCreationInputTokens"),
                    output=usage.get("outputTokens"),
                ),
            )
