/** The bar of the context window: who uses what, what is kept free for the reply, where compaction sets in. */

import type { SlotName, Usage } from "../api/types";

export const SLOTS: readonly SlotName[] = [
  "system", "tools", "memory", "references", "summary", "messages", "recall", "newest",
];

export const SLOT_WORDS: Record<SlotName, { name: string; what: string }> = {
  system: { name: "Instructions", what: "the agent's instructions and rules" },
  tools: { name: "Tools", what: "definitions of the tools on offer" },
  memory: { name: "Memory", what: "project memory files and what the agent remembers" },
  references: { name: "References", what: "documents of the session" },
  summary: { name: "Summary", what: "the summary of archived messages" },
  messages: { name: "Messages", what: "the conversation since the summary" },
  recall: { name: "Recalled", what: "chosen for this request alone" },
  newest: { name: "Newest", what: "the newest question and its tool results" },
};

export type Segment = {
  key: SlotName | "reply" | "free" | "reserved";
  name: string;
  what: string;
  tokens: number;
  /** Of the window, 0 to 1. */
  share: number;
};

/** Segments from left to right, filling the window. `streaming` is what has come of a reply so far. */
export function segments(usage: Usage, streaming = 0): Segment[] {
  const window = Math.max(1, usage.window);
  const made: Segment[] = [];
  const add = (key: Segment["key"], name: string, what: string, tokens: number) => {
    if (tokens > 0) made.push({ key, name, what, tokens, share: tokens / window });
  };
  for (const slot of SLOTS) {
    const use = usage.slots.find((each) => each.slot === slot);
    if (use) add(slot, SLOT_WORDS[slot].name, SLOT_WORDS[slot].what, use.used);
  }
  add("reply", "Reply", "being written now", streaming);
  const used = made.reduce((sum, each) => sum + each.tokens, 0);
  add("free", "Free", "not used by the next request", Math.max(0, window - usage.reserved - used));
  add("reserved", "Reserved", "kept free for the reply", Math.min(usage.reserved, Math.max(0, window - used)));
  return fitted(made);
}

/** A window that is overfull is drawn full, its segments in proportion. */
function fitted(made: Segment[]): Segment[] {
  const sum = made.reduce((total, each) => total + each.share, 0);
  return sum <= 1 ? made : made.map((each) => ({ ...each, share: each.share / sum }));
}

export type Status = "calm" | "near" | "over";

/** Over the trigger, the next request is compacted first; near is nine tenths of the way. */
export function status(usage: Usage, streaming = 0): Status {
  const total = usage.total + streaming;
  if (total > usage.trigger) return "over";
  return total > 0.9 * usage.trigger ? "near" : "calm";
}

/** An estimate for text that is still being written; the true count comes with the entry. */
export function tokensOf(text: string): number {
  return Math.ceil(text.length / 4);
}
