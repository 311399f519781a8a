/** The compactions of a branch: which one counts now, which were undone, and what each one changed. */

import type { Compaction, Entry, Span } from "../api/types";
import { counted, grouped } from "./format";

export type Fate = "active" | "beneath" | "replaced" | "undone";

export interface Chapter {
  seq: number;
  at: number;
  compaction: Compaction;
  fate: Fate;
  /** Messages that it archived itself, not those that the one beneath it had archived already. */
  archived: number;
  freed: number;
}

/** Every compaction with its fate, from the entries of kind `compaction` and `restore`, in order. */
export function chapters(entries: readonly Entry[]): Chapter[] {
  const known = new Map<number, Chapter>();
  let active: number | null = null;
  for (const entry of entries) {
    if (entry.kind === "restore") {
      const undone = known.get(entry.body.compaction);
      if (!undone) continue;
      undone.fate = "undone";
      active = undone.compaction.supersedes ?? null;
      continue;
    }
    if (entry.kind !== "compaction") continue;
    const compaction = entry.body;
    const beneath = known.get(compaction.supersedes ?? 0);
    known.set(entry.seq, {
      seq: entry.seq,
      at: entry.at,
      compaction,
      fate: "replaced",
      archived: newly(compaction, beneath?.compaction),
      freed: Math.max(0, (compaction.tokens_before ?? 0) - (compaction.tokens_after ?? 0)),
    });
    active = entry.seq;
  }
  markStanding(known, active);
  return [...known.values()];
}

function newly(compaction: Compaction, beneath: Compaction | undefined): number {
  if (!compaction.covers) return 0;
  const already = beneath?.covers ? beneath.covers.last : 0;
  return Math.max(0, compaction.covers.last - Math.max(compaction.covers.first - 1, already));
}

/** The active one, and those that it stands on; one whose summary was rewritten is replaced. */
function markStanding(known: Map<number, Chapter>, active: number | null): void {
  let chapter = active === null ? undefined : known.get(active);
  if (!chapter) return;
  chapter.fate = "active";
  while (chapter.compaction.supersedes) {
    const beneath = known.get(chapter.compaction.supersedes);
    if (!beneath) return;
    beneath.fate = chapter.compaction.trigger === "edit" ? "replaced" : "beneath";
    chapter = beneath;
  }
}

/** "45 messages archived, 150,000 tokens freed". */
export function headline(chapter: Chapter): string {
  const { compaction } = chapter;
  if (compaction.trigger === "edit") return "Summary rewritten by hand";
  const said: string[] = [];
  if (chapter.archived > 0) said.push(`${counted(chapter.archived, "message")} archived`);
  const outputs = compaction.shortened?.length ?? 0;
  if (outputs > 0 && chapter.archived === 0) said.push(`${counted(outputs, "long text")} shortened`);
  said.push(`${grouped(chapter.freed)} tokens freed`);
  return said.join(", ");
}

const TRIGGERS: Record<string, string> = {
  threshold: "the window was nearly full",
  background: "in the background, before anyone had to wait",
  manual: "by hand",
  overflow: "the provider refused a longer request",
  edit: "by hand",
  model: "the model asked for it",
};

export function because(compaction: Compaction): string {
  return TRIGGERS[compaction.trigger ?? "manual"] ?? "";
}

export const FATES: Record<Fate, string> = {
  active: "in use",
  beneath: "folded into the next",
  replaced: "replaced",
  undone: "undone",
};

/** Whether the model no longer sees this message as it was written. */
export function isArchived(seq: number, covers: Span | null, pins: readonly number[]): boolean {
  return !!covers && seq >= covers.first && seq <= covers.last && !pins.includes(seq);
}
