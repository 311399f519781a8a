/** One-line texts for entries that are not messages. */

import type { Entry } from "../api/types";
import { t } from "../i18n/language.svelte";
import type { CompactionEntry } from "./compactions";

const ITEM_TYPES = { rule: "itemRule", reference: "itemReference", tool: "itemTool" } as const;

/** Whether an entry needs no line: a badge on the message says it, the context of every request, or a search. */
export function isShownElsewhere(entry: Entry): boolean {
  if (entry.kind === "context_change") return entry.body.action === "add" && entry.body.include === "always";
  return entry.kind === "pin" || entry.kind === "unpin" || entry.kind === "topic_index";
}

export function formatEntry(entry: Entry, compactions: readonly CompactionEntry[]): string {
  switch (entry.kind) {
    case "pin":
      return t("eventPinned", entry.body.message);
    case "unpin":
      return t("eventUnpinned", entry.body.message);
    case "drop":
      return t("eventDropped", entry.body.message, entry.body.reason ?? null);
    case "undrop":
      return t("eventUndropped", entry.body.message);
    case "epoch":
      return t("eventEpoch");
    case "priority":
      return entry.body.priority ? t("eventPriority", entry.body.message, entry.body.priority) : t("eventPriorityReset", entry.body.message);
    case "restore": {
      const undone = compactions.find((each) => each.seq === entry.body.compaction);
      return t("eventCompactionUndone", undone?.compaction.number ?? null);
    }
    case "context_change": {
      const { action, item, include } = entry.body;
      const server = item.server ? ` ${t("ofServer", item.server)}` : "";
      if (action === "add" && include === "always") return t("eventStartsWith", item.name) + server;
      return t(action === "remove" ? "eventRemoved" : "eventAdded", t(ITEM_TYPES[item.type]), item.name) + server;
    }
    default:
      return "";
  }
}
