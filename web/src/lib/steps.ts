/** Steps of a turn: runs of entries between a question and its answer, which the transcript folds into one line. */

import type { Entry, Part, ToolCallPart, ToolResultPart } from "../api/types";
import { t } from "../i18n/language.svelte";

/** Shorter runs are not folded. */
const MIN_FOLDED_STEPS = 3;

export interface StepGroup {
  /** Number of its first entry. */
  seq: number;
  entries: Entry[];
}

export type TranscriptItem = { entry: Entry; group?: undefined } | { group: StepGroup; entry?: undefined };

/**
 * Folds each run of steps: replies that call tools, tool results, and the compactions between them. An entry in `breaks`
 * starts another run.
 */
export function groupSteps(entries: readonly Entry[], breaks: ReadonlyMap<number, unknown> = new Map()): TranscriptItem[] {
  const items: TranscriptItem[] = [];
  let run: Entry[] = [];
  let after: Entry[] = [];
  const flush = () => {
    while (run.length > 0 && run.at(-1)?.kind === "compaction") after.unshift(run.pop()!);
    if (run.filter(callsTools).length >= MIN_FOLDED_STEPS) items.push({ group: { seq: run[0]!.seq, entries: run } });
    else items.push(...run.map((entry) => ({ entry })));
    items.push(...after.map((entry) => ({ entry })));
    [run, after] = [[], []];
  };
  for (const entry of entries) {
    const continues = callsTools(entry) || isToolResult(entry) || (run.length > 0 && entry.kind === "compaction");
    if (!continues || breaks.has(entry.seq)) flush();
    if (continues) run.push(entry);
    else items.push({ entry });
  }
  flush();
  return items;
}

function callsTools(entry: Entry): boolean {
  return entry.kind === "message" && entry.body.role === "assistant" && listCalls(entry).length > 0;
}

function isToolResult(entry: Entry): boolean {
  return entry.kind === "message" && entry.body.role === "tool";
}

export function listCalls(entry: Entry): ToolCallPart[] {
  const parts: readonly Part[] = entry.kind === "message" ? entry.body.parts : [];
  return parts.filter((part): part is ToolCallPart => part.type === "tool_call");
}

/** Calls whose result is an error. */
export function listFailedCalls(group: StepGroup, results: ReadonlyMap<string, ToolResultPart>): ToolCallPart[] {
  return group.entries.flatMap(listCalls).filter((call) => results.get(call.id)?.is_error);
}

/** "60 calls in 41 steps, 2 failed; 34 tool results cleared, 21,000 tokens freed". */
export function describeSteps(group: StepGroup, failedCount: number): string {
  const calls = group.entries.flatMap(listCalls).length;
  const steps = group.entries.filter(callsTools).length;
  const phrases = [t("callsInSteps", calls, steps)];
  if (failedCount > 0) phrases.push(t("failedCalls", failedCount));
  return phrases.join(", ") + describeCompactions(group);
}

function describeCompactions(group: StepGroup): string {
  const bodies = group.entries.flatMap((entry) => (entry.kind === "compaction" ? [entry.body] : []));
  if (bodies.length === 0) return "";
  const cleared = bodies.reduce((sum, body) => sum + (body.cleared_results ?? 0), 0);
  const freed = bodies.reduce((sum, body) => sum + Math.max(0, (body.tokens_before ?? 0) - (body.tokens_after ?? 0)), 0);
  const changes = cleared > 0 ? [t("resultsCleared", cleared)] : [t("compactionCount", bodies.length)];
  return `; ${[...changes, t("tokensFreed", freed)].join(", ")}`;
}
