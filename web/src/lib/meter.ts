/** Context meter: the window's tokens by slot, the reserve for the reply, and the compaction trigger. */

import type { ContextUsage, MessageEntry, SlotName } from "../api/types";
import { messages } from "./messages";
import { formatCompact, formatNumber, formatPercent } from "./format";

export const SLOTS: readonly SlotName[] = [
  "system", "tools", "memory", "references", "summary", "messages", "recall", "newest",
];

/** Keys of the names of the slots. */
export const SLOT_NAMES = {
  system: "Instructions", tools: "Tools", memory: "Memory", references: "References",
  summary: "Summary", messages: "Messages", recall: "Recalled", newest: "This turn",
} as const;

const SLOT_TEXTS = {
  system: "the agent's instructions and rules",
  tools: "definitions of the offered tools",
  memory: "project memory files and the agent's memories",
  references: "documents of the session",
  summary: "the summary of archived messages",
  messages: "the conversation since the summary",
  recall: "chosen for this request only",
  newest: "the current question and its tool results",
} as const;

/** The window of a model that no table lists, as the server states it: nothing is compacted. */
const UNKNOWN_WINDOW = 10_000_000;

export function knowsWindow(usage: Pick<ContextUsage, "window">): boolean {
  return usage.window !== UNKNOWN_WINDOW;
}

export type Segment = {
  key: SlotName | "reply" | "free" | "reserved";
  name: string;
  description: string;
  tokens: number;
  /** Fraction of the window, 0 to 1. */
  share: number;
};

/** Segments from left to right that fill the window. `streamedTokens` is the size of the reply so far. */
export function buildSegments(usage: ContextUsage, streamedTokens = 0): Segment[] {
  const spent = usage.slots.reduce((sum, each) => sum + each.used, 0) + streamedTokens + usage.reserved;
  const window = Math.max(1, knowsWindow(usage) ? usage.window : spent);
  const segments: Segment[] = [];
  const add = (key: Segment["key"], name: string, description: string, tokens: number) => {
    if (tokens > 0) segments.push({ key, name, description, tokens, share: tokens / window });
  };
  for (const slot of SLOTS) {
    add(slot, SLOT_NAMES[slot], SLOT_TEXTS[slot], usage.slots.find((each) => each.slot === slot)?.used ?? 0);
  }
  add("reply", "Reply", "being written now", streamedTokens);
  const used = segments.reduce((sum, each) => sum + each.tokens, 0);
  add("free", "Free", "not used by the next request", Math.max(0, window - usage.reserved - used));
  add("reserved", "Reserved", "reserved for the reply", Math.min(usage.reserved, Math.max(0, window - used)));
  return scaleToFit(segments);
}

/** Scales the segments of an overfull window in proportion, so that they fill it exactly. */
function scaleToFit(segments: Segment[]): Segment[] {
  const sum = segments.reduce((total, each) => total + each.share, 0);
  return sum <= 1 ? segments : segments.map((each) => ({ ...each, share: each.share / sum }));
}

export type UsageLevel = "calm" | "near" | "over";

/** Fraction of the trigger from which the meter warns. */
const NEAR_TRIGGER = 0.9;

/** Above the trigger, the next request is compacted before it is sent. */
export function computeLevel(usage: ContextUsage, streamedTokens = 0): UsageLevel {
  const total = usage.total_tokens + streamedTokens;
  if (total > usage.trigger_tokens) return "over";
  return total > NEAR_TRIGGER * usage.trigger_tokens ? "near" : "calm";
}

/** The meter in one sentence. Above the trigger the figure is the whole history, which no request will contain. */
export function describeUsage(usage: ContextUsage, streamedTokens = 0): string {
  const total = usage.total_tokens + streamedTokens;
  const tokens = usage.exact ? formatNumber(total) : messages.about(formatNumber(total));
  if (!knowsWindow(usage)) return messages.meterUnknown(tokens);
  if (computeLevel(usage, streamedTokens) !== "over") {
    const documents = usage.document_tokens ? `, ${messages.meterDocuments(usage.document_tokens)}` : "";
    return messages.meterText(tokens, usage.window, formatPercent(total, usage.window)) + documents;
  }
  return messages.meterOver(tokens, usage.window, (usage.proposes_compaction ? "the next request omits the oldest messages" : "the next request compacts it first"));
}

/**
 * " · 1.2k tokens (40 as written)": as sent, and as written where documents were added; of an imported reply those that
 * its provider counted. Empty if they are not known.
 */
export function formatTokens(entry: Pick<MessageEntry, "tokens" | "written_tokens" | "estimated" | "usage">): string {
  const count = entry.tokens ?? entry.usage?.output_tokens;
  if (count === undefined) return "";
  const hasDocuments = entry.written_tokens !== null && entry.written_tokens !== entry.tokens;
  const written = hasDocuments ? ` (${messages.asWritten(formatCompact(entry.written_tokens ?? 0))})` : "";
  const tokens = messages.messageTokens(formatCompact(count));
  return ` · ${entry.estimated ? messages.about(tokens) : tokens}${written}`;
}

/** Estimates the tokens of text that is still streaming; the recorded entry has the real count. */
export function estimateTokens(text: string): number {
  return Math.ceil(text.length / 4);
}
