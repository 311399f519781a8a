/** One line for each message of a context: who wrote it, and its first words. */

import type { Decision, Entry, Message } from "../api/types";
import { summarizeArguments } from "./arguments";

const MAX_WORDS_CHARS = 90;
/** Emphasis, code and headings: signs that first words are easier to read without. */
const MARKDOWN_SIGNS = /\*\*|`|^#+ /gm;
/** Entries that lie closer together than this are loaded in one range. */
const MAX_GAP = 40;
/** Bounds of what one context loads. */
const MAX_RANGES = 8;
export const MAX_RANGE_ENTRIES = 200;

/** What a decision, or a change of one, is about. */
export interface Candidate {
  kind: string;
  span?: Decision["span"] | undefined;
}

export function describeMessage(message: Message): string {
  return `${message.name ?? message.role.charAt(0).toUpperCase() + message.role.slice(1)}: ${listWords(message)}`;
}

function listWords({ parts }: Message): string {
  const words = parts.map((part) => {
    if (part.type === "text") return part.text.slice(0, 3 * MAX_WORDS_CHARS).replace(MARKDOWN_SIGNS, "");
    if (part.type === "tool_call") return `${part.name}(${summarizeArguments(part.arguments)})`;
    if (part.type === "tool_result") return part.content.map((piece) => (piece.type === "text" ? piece.text : "")).join(" ");
    return part.type === "thinking" ? "" : `[${part.type}]`;
  });
  const text = words.join(" ").slice(0, 2 * MAX_WORDS_CHARS).replace(/\s+/g, " ").trim();
  return text.length > MAX_WORDS_CHARS ? `${text.slice(0, MAX_WORDS_CHARS).trimEnd()}…` : text || "without text";
}

/** Ranges of entry numbers that cover the messages of decisions, the newest first. */
export function listMessageRanges(decisions: readonly Candidate[]): [number, number][] {
  const numbers = decisions.flatMap((each) => (each.kind === "message" && each.span ? [each.span.first] : []));
  const ranges: [number, number][] = [];
  for (const seq of [...new Set(numbers)].sort((a, b) => b - a)) {
    const range = ranges.at(-1);
    if (range && range[0] - seq <= MAX_GAP && range[1] - seq < MAX_RANGE_ENTRIES) range[0] = seq;
    else ranges.push([seq, seq]);
  }
  return ranges.slice(0, MAX_RANGES);
}

export function describeEntries(entries: readonly Entry[]): [number, string][] {
  return entries.flatMap((entry): [number, string][] =>
    entry.kind === "message" && !entry.purged ? [[entry.seq, describeMessage(entry.body)]] : [],
  );
}
