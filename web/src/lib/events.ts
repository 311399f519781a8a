/** One-line texts for entries that are not messages. */

import type { Entry } from "../api/types";
import type { CompactionEntry } from "./compactions";

export function formatEntry(entry: Entry, compactions: readonly CompactionEntry[]): string {
  switch (entry.kind) {
    case "pin":
      return `Pinned #${entry.body.message}`;
    case "unpin":
      return `Unpinned #${entry.body.message}`;
    case "priority":
      return entry.body.priority ? `Set priority ${entry.body.priority} on #${entry.body.message}` : `Reset the priority of #${entry.body.message}`;
    case "restore": {
      const undone = compactions.find((each) => each.seq === entry.body.compaction);
      return undone ? `Compaction ${undone.compaction.number} undone` : "Compaction undone";
    }
    case "context_change": {
      const { action, item, include } = entry.body;
      const server = item.server ? ` of ${item.server}` : "";
      if (action === "add" && include === "always") return `Starts with: ${item.name}${server}`;
      return `${action === "remove" ? "Removed" : "Added"} the ${item.type} “${item.name}”${server}`;
    }
    default:
      return "";
  }
}
