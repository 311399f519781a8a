/** One-line texts for entries that are not messages. */

import type { Entry } from "../api/types";
import { messages } from "./messages";
import type { CompactionEntry } from "./compactions";

const ITEM_TYPES = { rule: "rule", reference: "reference", tool: "tool" } as const;

/** Whether an entry needs no line: a badge on the message says it, the context of every request, or a search. */
export function isShownElsewhere(entry: Entry): boolean {
  if (entry.kind === "context_change") return entry.body.action === "add" && entry.body.include === "always";
  return entry.kind === "pin" || entry.kind === "unpin" || entry.kind === "topic_index";
}

export function formatEntry(entry: Entry, compactions: readonly CompactionEntry[]): string {
  switch (entry.kind) {
    case "pin":
      return messages.eventPinned(entry.body.message);
    case "unpin":
      return messages.eventUnpinned(entry.body.message);
    case "drop":
      return messages.eventDropped(entry.body.message, entry.body.reason ?? null);
    case "undrop":
      return messages.eventUndropped(entry.body.message);
    case "epoch":
      return "Edits of the agent's context took effect";
    case "priority":
      return entry.body.priority ? messages.eventPriority(entry.body.message, entry.body.priority) : messages.eventPriorityReset(entry.body.message);
    case "restore": {
      const undone = compactions.find((each) => each.seq === entry.body.compaction);
      return messages.eventCompactionUndone(undone?.compaction.number ?? null);
    }
    case "context_change": {
      const { action, item, include } = entry.body;
      const server = item.server ? ` ${messages.ofServer(item.server)}` : "";
      if (action === "add" && include === "always") return messages.eventStartsWith(item.name) + server;
      return messages[action === "remove" ? "eventRemoved" : "eventAdded"](ITEM_TYPES[item.type], item.name) + server;
    }
    default:
      return "";
  }
}
