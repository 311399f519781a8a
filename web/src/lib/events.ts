/** The small facts between messages, in words. */

import type { Entry } from "../api/types";

export function lineOf(entry: Entry): string {
  switch (entry.kind) {
    case "pin":
      return `Pinned #${entry.body.message}`;
    case "unpin":
      return `Unpinned #${entry.body.message}`;
    case "restore":
      return `Compaction #${entry.body.compaction} undone`;
    case "context_change": {
      const { action, item, include } = entry.body;
      const named = `${item.type} “${item.name}”${item.server ? ` of ${item.server}` : ""}`;
      if (action === "remove") return `Removed the ${named}`;
      return include === "always" ? `Begins with the ${named}` : `Added the ${named}`;
    }
    default:
      return "";
  }
}
