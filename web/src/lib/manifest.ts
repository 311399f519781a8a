/** The record of a request, in the sections and words that people read. */

import type { Decision, Item, Manifest, Reason } from "../api/types";
import { counted } from "./format";

export type SectionName = "Rules" | "References" | "Tools" | "Memory" | "Summary" | "Messages" | "Recalled";

export interface Section {
  name: SectionName;
  rows: Decision[];
  tokens: number;
}

const ORDER: SectionName[] = ["Rules", "References", "Tools", "Memory", "Summary", "Messages", "Recalled"];

function sectionOf(row: Decision): SectionName {
  switch (row.what) {
    case "instructions":
    case "rule":
      return "Rules";
    case "tool":
      return "Tools";
    case "memory":
      return row.slot === "recall" ? "Recalled" : "Memory";
    case "reference":
      return "References";
    case "summary":
      return "Summary";
    case "document":
      return row.slot === "recall" && !["referenced", "imported", "listed"].includes(row.reason) ? "Recalled" : "References";
    case "message":
      return row.slot === "recall" ? "Recalled" : "Messages";
  }
}

/** What was in the request, by section; sections without anything are left out. */
export function used(manifest: Manifest): Section[] {
  return sections(manifest.decisions.filter((row) => row.included));
}

export function leftOut(manifest: Manifest): Decision[] {
  return manifest.decisions.filter((row) => !row.included);
}

export function sections(rows: readonly Decision[]): Section[] {
  return ORDER.map((name) => {
    const own = rows.filter((row) => sectionOf(row) === name);
    return { name, rows: own, tokens: own.reduce((sum, row) => sum + (row.tokens ?? 0), 0) };
  }).filter((section) => section.rows.length > 0);
}

const BADGES: Partial<Record<Reason, string>> = {
  always: "Always",
  manual: "Manual",
  agent: "Agent",
  carried: "Carried",
  pinned: "Pinned",
  recalled: "Recalled",
  instructions: "Always",
  memory: "Memory",
  summary: "Summary",
  recent: "Recent",
  newest: "Newest",
  referenced: "Linked",
  imported: "Imported",
  excerpted: "Excerpt",
  cleared: "Stub",
  listed: "Listed",
};

/** "Always", "Manual", "Agent 0.87". */
export function badge(row: Decision): string {
  const word = BADGES[row.reason] ?? LEFT_OUT[row.reason] ?? row.reason;
  return row.score === null || row.score === undefined ? word : `${word} ${row.score.toFixed(2)}`;
}

const LEFT_OUT: Partial<Record<Reason, string>> = {
  over_budget: "Over budget",
  below_score: "Below score",
  archived: "Archived",
  disabled: "Disabled",
  incomplete: "Incomplete",
  not_found: "Not found",
};

const WHY: Record<Reason, string> = {
  instructions: "The agent's own instructions stand first in every request.",
  always: "The agent brings it into every session.",
  manual: "Someone added it to this session.",
  agent: "The search found that it bears on the question.",
  carried: "An earlier message called for it; tools stay for the session, so that the provider's cache holds.",
  memory: "The project's memory, or something the agent remembers.",
  pinned: "It is pinned, and stays word for word whatever is compacted.",
  recent: "It stands after the summary.",
  newest: "It is the newest question, or belongs to its answer.",
  summary: "It stands in place of the archived messages.",
  recalled: "Archived, and brought back because it bears on the question.",
  referenced: "A message links to it.",
  imported: "A message imports it with @.",
  excerpted: "Too long to be shown whole: its beginning, its end and a number to read the rest by.",
  cleared: "An old tool output, shown as a stub with a number to read it by.",
  over_budget: "There was no room left for it.",
  below_score: "It bears too little on the question.",
  archived: "The summary stands in its place.",
  disabled: "It is switched off, or was taken out of the session.",
  incomplete: "A tool call without its result, which no provider accepts.",
  listed: "Too large to be shown whole: named with its summary, for the model to read with a tool.",
  not_found: "There is nothing of that name.",
};

export function why(row: Decision): string {
  return WHY[row.reason] ?? "";
}

/** What a row is called: its name, or the messages it stands for. */
export function nameOf(row: Decision): string {
  if (row.what === "instructions") return "Instructions";
  if (row.name) return row.name;
  if (row.what === "summary" && row.span) return `Summary, entry #${row.span.first}`;
  if (!row.span) return row.asked ? "The question" : row.what;
  const { first, last } = row.span;
  return first === last ? `#${first}` : `#${first} to #${last} (${counted(last - first + 1, "entry", "entries")})`;
}

/** The item of the agent's that a row stands for; what the engine offers by itself, such as its own tools, is none. */
export function itemOf(row: Decision, items: readonly Item[]): Item | null {
  const named = items.filter((item) => item.type === row.what);
  return (
    named.find((item) => item.name === row.name) ??
    named.find((item) => item.server && row.name?.endsWith(item.name) && row.name.startsWith(item.server)) ??
    null
  );
}
