/** Manifest of a request as sections, badges and explanations for display. */

import type { ContextItem, Decision, ForwardedForm, Manifest, SlotName } from "../api/types";
import { messages } from "./messages";
import { formatDecimal } from "./format";

export type SectionName = "Rules" | "References" | "Tools" | "Memory" | "Summary" | "Messages" | "Recalled";

export interface Section {
  name: SectionName;
  decisions: Decision[];
  tokens: number;
}

/** What was said comes first; tools are many and the same in every request. */
const SECTION_ORDER: SectionName[] = ["Summary", "Messages", "Recalled", "Rules", "References", "Memory", "Tools"];

/** The slot whose colour a section has. */
export const SECTION_SLOTS = {
  Rules: "system", References: "references", Tools: "tools", Memory: "memory", Summary: "summary", Messages: "messages", Recalled: "recall",
} as const satisfies Record<SectionName, SlotName>;

function selectSection(decision: Decision): SectionName {
  switch (decision.kind) {
    case "instructions":
    case "rule":
      return "Rules";
    case "tool":
      return "Tools";
    case "memory":
      return decision.slot === "recall" ? "Recalled" : "Memory";
    case "reference":
      return "References";
    case "summary":
      return "Summary";
    case "document": {
      const isNamed = ["referenced", "imported", "listed"].includes(decision.reason);
      return decision.slot === "recall" && !isNamed ? "Recalled" : "References";
    }
    case "message":
      return decision.slot === "recall" ? "Recalled" : "Messages";
  }
}

const SECTION_LABELS = {
  Rules: "Rules",
  References: "References",
  Tools: "Tools",
  Memory: "Memory",
  Summary: "Summary",
  Messages: "Messages",
  Recalled: "Recalled",
} as const;

export function formatSection(name: SectionName): string {
  return SECTION_LABELS[name];
}

/** Decisions about included candidates, by section. */
export function listIncluded(manifest: Manifest): Section[] {
  return groupBySection(manifest.decisions.filter((decision) => decision.included));
}

/** Decisions about excluded candidates, by section. */
export function listExcluded(manifest: Manifest): Section[] {
  return groupBySection(manifest.decisions.filter((decision) => !decision.included));
}

function groupBySection(decisions: readonly Decision[]): Section[] {
  return SECTION_ORDER.map((name) => {
    const own = decisions.filter((decision) => selectSection(decision) === name);
    return { name, decisions: own, tokens: own.reduce((sum, decision) => sum + decision.tokens, 0) };
  }).filter((section) => section.decisions.length > 0);
}

/** Tokens of documents that were added to messages; the other tokens of the messages are as written. */
export function countDocumentTokens(manifest: Manifest): number {
  return manifest.decisions
    .filter((decision) => decision.included)
    .reduce((sum, { kind, slot, tokens, document_tokens }) => sum + (kind === "document" && slot === "newest" ? tokens : (document_tokens ?? 0)), 0);
}

/** "Always", "Manual", "Matched 0.87". */
export function formatBadge(decision: Decision): string {
  const label = messages.reasonLabels[decision.reason];
  return decision.score === null || decision.score === undefined ? label : `${label} ${formatDecimal(decision.score, 2, 2)}`;
}

export function explainReason(decision: Decision): string {
  const { score, min_score } = decision;
  if (typeof score === "number" && typeof min_score === "number") {
    return messages.scoreBelowMinimum(formatDecimal(score, 2, 2), formatDecimal(min_score, 2));
  }
  return messages.reasonTexts[decision.reason];
}

/** Label of a decision: the name of its candidate, or the numbers of its entries. */
export function formatName(decision: Decision): string {
  if (decision.kind === "instructions") return "Instructions";
  if (decision.name) return decision.name;
  if (decision.kind === "summary" && decision.span) return messages.summaryEntry(decision.span.first);
  if (!decision.span) return decision.pending ? "The question" : messages.kinds[decision.kind];
  const { first, last } = decision.span;
  return first === last ? `#${first}` : messages.entryRange(first, last);
}

/** The agent's item that a decision is about; null for built-in candidates, such as the engine's own tools. */
export function findItem(decision: Decision, items: readonly ContextItem[]): ContextItem | null {
  const sameKind = items.filter((item) => item.type === decision.kind);
  return (
    sameKind.find((item) => item.name === decision.name) ??
    sameKind.find((item) => item.server && decision.name?.endsWith(item.name) && decision.name.startsWith(item.server)) ??
    null
  );
}

/** How the gateway forwarded a request. */
export function explainForm(form: ForwardedForm): string {
  return messages.forms[form];
}
