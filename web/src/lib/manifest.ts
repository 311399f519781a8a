/** Manifest of a request as sections, badges and explanations for display. */

import type { ContextItem, Decision, DecisionReason, ForwardedForm, Manifest } from "../api/types";
import { formatCount } from "./format";

export type SectionName = "Rules" | "References" | "Tools" | "Memory" | "Summary" | "Messages" | "Recalled";

export interface Section {
  name: SectionName;
  decisions: Decision[];
  tokens: number;
}

const SECTION_ORDER: SectionName[] = ["Rules", "References", "Tools", "Memory", "Summary", "Messages", "Recalled"];

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

const ITEM_KINDS = ["rule", "reference", "tool"] as const;

/** Word for the include mode of an item, by the reason of its decision; a carried tool was matched by an earlier message. */
const INCLUDE_MODES: Partial<Record<DecisionReason, string>> = {
  always: "always",
  manual: "manual",
  agent: "matched",
  carried: "matched",
};

/** "5 rules (2 always, 3 matched), 1 reference (always), 3 tools (all manual)"; empty without items. */
export function formatItemCounts(manifest: Manifest): string {
  return ITEM_KINDS.map((kind) => {
    const counts = new Map<string, number>();
    for (const decision of manifest.decisions) {
      const mode = INCLUDE_MODES[decision.reason];
      if (decision.included && decision.kind === kind && mode) counts.set(mode, (counts.get(mode) ?? 0) + 1);
    }
    return formatKind(kind, counts);
  })
    .filter((phrase) => phrase !== "")
    .join(", ");
}

function formatKind(kind: string, counts: ReadonlyMap<string, number>): string {
  const modes = ["always", "manual", "matched"].filter((mode) => counts.has(mode));
  const total = modes.reduce((sum, mode) => sum + (counts.get(mode) ?? 0), 0);
  if (total === 0) return "";
  const only = total === 1 ? modes[0] : `all ${modes[0]}`;
  const detail = modes.length === 1 ? only : modes.map((mode) => `${counts.get(mode)} ${mode}`).join(", ");
  return `${formatCount(total, kind)} (${detail})`;
}

/** Tokens of documents that were added to messages; the other tokens of the messages are as written. */
export function countDocumentTokens(manifest: Manifest): number {
  return manifest.decisions
    .filter((decision) => decision.included)
    .reduce((sum, { kind, slot, tokens, document_tokens }) => sum + (kind === "document" && slot === "newest" ? tokens : (document_tokens ?? 0)), 0);
}

const REASON_LABELS: Record<DecisionReason, string> = {
  always: "Always",
  manual: "Manual",
  agent: "Matched",
  carried: "Kept from earlier",
  pinned: "Pinned",
  priority: "Priority",
  recalled: "Recalled",
  instructions: "Always",
  memory: "Memory",
  summary: "Summary",
  recent: "Recent",
  newest: "This turn",
  question: "Question",
  referenced: "Linked",
  imported: "Imported",
  excerpted: "Excerpt",
  cleared: "Pointer only",
  listed: "Listed",
  over_budget: "No room",
  below_score: "Not relevant enough",
  archived: "Archived",
  not_added: "Not added",
  removed: "Removed",
  disabled: "Disabled",
  orphaned: "Orphaned",
  not_found: "Not found",
};

/** "Always", "Manual", "Matched 0.87". */
export function formatBadge(decision: Decision): string {
  const label = REASON_LABELS[decision.reason] ?? decision.reason;
  return decision.score === null || decision.score === undefined ? label : `${label} ${decision.score.toFixed(2)}`;
}

const REASON_TEXTS: Record<DecisionReason, string> = {
  instructions: "The agent's own instructions come first in every request.",
  always: "The agent includes it in every session.",
  manual: "It was added to this session by hand.",
  agent: "The search matched it to the question.",
  carried: "An earlier message needed it; tools stay for the session, so that the provider's cache stays valid.",
  memory: "The project's memory, or a statement that the agent remembers.",
  pinned: "It is pinned, and stays word for word in every request.",
  priority: "Archived, but it stays in the request because of its priority.",
  recent: "It is newer than the summary.",
  newest: "It is the current question, or part of its answer.",
  question: "It is the question of this turn, whose older steps are archived.",
  summary: "It replaces the archived messages.",
  recalled: "Archived, and recalled because it is relevant to the question.",
  referenced: "A message links to it.",
  imported: "A message imports it with @.",
  excerpted: "Too long to be sent whole: its beginning, its end and the number to read the rest by.",
  cleared: "An old tool result, replaced by a pointer with the number to read it by.",
  over_budget: "The budget had no room left for it.",
  below_score: "Its score for this question is below the threshold.",
  archived: "The summary replaces it.",
  not_added: "It is not in this session: add it to include it in every request.",
  removed: "It was removed from this session.",
  disabled: "The agent's configuration turns it off.",
  orphaned: "A tool result without its call, which no provider accepts.",
  listed: "Too large to be sent whole: listed with its summary, for the model to read with a tool.",
  not_found: "No document or item has this name.",
};

export function explainReason(decision: Decision): string {
  return REASON_TEXTS[decision.reason] ?? "";
}

/** Label of a decision: the name of its candidate, or the numbers of its entries. */
export function formatName(decision: Decision): string {
  if (decision.kind === "instructions") return "Instructions";
  if (decision.name) return decision.name;
  if (decision.kind === "summary" && decision.span) return `Summary, entry #${decision.span.first}`;
  if (!decision.span) return decision.pending ? "The question" : decision.kind;
  const { first, last } = decision.span;
  return first === last ? `#${first}` : `#${first} to #${last} (${formatCount(last - first + 1, "entry", "entries")})`;
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

const FORM_TEXTS: Record<ForwardedForm, string> = {
  unchanged: "The gateway forwarded it unchanged, byte for byte.",
  model_renamed: "The gateway replaced the model's name and forwarded the rest unchanged.",
  fitted: "It exceeded the context window; the gateway forwarded it with messages that fit.",
  translated: "The gateway translated it into the upstream's format.",
  edited: "The gateway forwarded it without thinking that another model had left unsigned.",
  translated_fitted: "It exceeded the context window; the gateway translated it into the upstream's format with messages that fit.",
};

/** How the gateway forwarded a request. */
export function explainForm(form: ForwardedForm): string {
  return FORM_TEXTS[form];
}
