/** Compactions of a branch: which one is active, which were undone, and what each one changed. */

import type { Compaction, Entry, Span } from "../api/types";
import { messages } from "./messages";

export type Status = "active" | "merged" | "replaced" | "undone";

export interface CompactionEntry {
  seq: number;
  createdAt: number;
  compaction: Compaction;
  status: Status;
  /** Whether it was undone last, and none was made since. */
  canRedo: boolean;
  /** Messages that it archived itself, without those that the superseded compaction had archived already. */
  archivedCount: number;
  freedTokens: number;
}

/** Every compaction with its status, from all entries of the branch that are not messages, in order. */
export function listCompactions(entries: readonly Entry[]): CompactionEntry[] {
  const bySeq = new Map<number, CompactionEntry>();
  let active: number | null = null;
  let undoneLast: CompactionEntry | undefined;
  for (const entry of entries) {
    if (entry.kind === "restore") {
      const undone = bySeq.get(entry.body.compaction);
      if (!undone) continue;
      undone.status = "undone";
      undoneLast = undone;
      active = undone.compaction.supersedes ?? null;
      continue;
    }
    if (entry.kind !== "compaction") continue;
    const compaction = entry.body;
    const superseded = bySeq.get(compaction.supersedes ?? 0);
    bySeq.set(entry.seq, {
      seq: entry.seq,
      createdAt: entry.created_at,
      compaction,
      status: "replaced",
      canRedo: false,
      archivedCount: countNewlyArchived(compaction, superseded?.compaction, entries),
      freedTokens: countFreedTokens(compaction),
    });
    active = entry.seq;
    undoneLast = undefined;
  }
  if (undoneLast) undoneLast.canRedo = true;
  markActiveChain(bySeq, active);
  return [...bySeq.values()];
}

/** 0 if it is not known: an imported compaction may only have the tokens before it. */
export function countFreedTokens({ tokens_before: before = 0, tokens_after: after = 0 }: Compaction): number {
  return after > 0 ? Math.max(0, before - after) : 0;
}

/** Messages that a compaction covers and the superseded one did not: the numbers between them without those of events. */
function countNewlyArchived(compaction: Compaction, superseded: Compaction | undefined, events: readonly Entry[]): number {
  if (!compaction.covers) return 0;
  const { first, last } = compaction.covers;
  const alreadyArchived = Math.max(first - 1, superseded?.covers?.last ?? 0);
  const eventCount = events.filter(({ seq }) => seq > alreadyArchived && seq <= last).length;
  return Math.max(0, last - alreadyArchived - eventCount);
}

/** Marks the active compaction and those merged into it; one whose summary was edited is replaced, not merged. */
function markActiveChain(bySeq: Map<number, CompactionEntry>, active: number | null): void {
  let entry = active === null ? undefined : bySeq.get(active);
  if (!entry) return;
  entry.status = "active";
  while (entry.compaction.supersedes) {
    const superseded = bySeq.get(entry.compaction.supersedes);
    if (!superseded) return;
    superseded.status = entry.compaction.trigger === "edit" ? "replaced" : "merged";
    entry = superseded;
  }
}

/** "45 messages archived, 150,000 tokens freed". */
export function formatHeadline({ compaction, archivedCount, freedTokens }: CompactionEntry): string {
  if (compaction.trigger === "edit") return "You edited the summary";
  const phrases: string[] = [];
  if (archivedCount > 0) phrases.push(messages.messagesArchived(archivedCount));
  const cleared = compaction.cleared_results ?? 0;
  if (cleared > 0) phrases.push(messages.resultsCleared(cleared));
  const truncated = compaction.truncations?.length ?? 0;
  if (truncated > 0 && archivedCount === 0) phrases.push(messages.textsShortened(truncated));
  if (freedTokens > 0) phrases.push(messages.tokensFreed(freedTokens));
  return phrases.join(", ");
}

export function explainTrigger(compaction: Compaction): string {
  return messages.triggers[compaction.trigger ?? "manual"];
}

const STATUS_LABELS = {
  active: "current summary",
  merged: "merged into a newer summary",
  replaced: "replaced",
  undone: "undone",
} as const;

export function formatStatus(status: Status): string {
  return STATUS_LABELS[status];
}

/** Whether a message is covered by the active compaction, and neither pinned, preserved nor the question that stays in the view. */
export function isArchived(seq: number, covers: Span | null, pins: readonly number[], question: number | null = null): boolean {
  return !!covers && seq >= covers.first && seq <= covers.last && !pins.includes(seq) && seq !== question;
}
