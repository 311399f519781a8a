/** Steps of a turn: runs of entries between a question and its answer, which the transcript folds into one line. */

import type { Entry, Part, ToolCallPart, ToolResultPart } from "../api/types";
import { messages } from "./messages";
import { countFreedTokens } from "./compactions";
import { formatDollars, formatDuration } from "./format";
import type { TimelineRequest, TurnTotals } from "./requestTimeline";
import { readOutcome, type CallOutcome } from "./toolCalls";

/** Shorter runs are not folded. */
const MIN_FOLDED_STEPS = 3;

export interface StepGroup {
  /** Number of its first entry. */
  seq: number;
  entries: Entry[];
  /** Time of the question before it, or of its first entry where another page has the question. */
  startedAt: number;
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
  let startedAt: number | null = null;
  const flush = () => {
    while (run.length > 0 && run.at(-1)?.kind === "compaction") after.unshift(run.pop()!);
    if (run.filter(callsTools).length >= MIN_FOLDED_STEPS) items.push({ group: { seq: run[0]!.seq, entries: run, startedAt: startedAt ?? run[0]!.created_at } });
    else items.push(...run.map((entry) => ({ entry })));
    items.push(...after.map((entry) => ({ entry })));
    startedAt = run.at(-1)?.created_at ?? startedAt;
    [run, after] = [[], []];
  };
  for (const entry of entries) {
    const continues = callsTools(entry) || isToolResult(entry) || (run.length > 0 && entry.kind === "compaction");
    if (!continues || breaks.has(entry.seq)) flush();
    if (continues) run.push(entry);
    else {
      items.push({ entry });
      startedAt = entry.created_at;
    }
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

/** How each call of the group ended, in their order; null for one without a result. */
export function listOutcomes(group: StepGroup, results: ReadonlyMap<string, ToolResultPart>): [ToolCallPart, CallOutcome | null][] {
  return group.entries.flatMap(listCalls).map((call) => {
    const result = results.get(call.id);
    return [call, result ? readOutcome(result) : null];
  });
}

/** "60 calls in 41 steps, 2 failed, 1 denied; 34 tool results cleared, 21,000 tokens freed". */
export function describeSteps(group: StepGroup, outcomes: readonly (CallOutcome | null)[]): string {
  const count = (outcome: CallOutcome) => outcomes.filter((each) => each === outcome).length;
  const phrases = [messages.callsInSteps(outcomes.length, group.entries.filter(callsTools).length)];
  if (count("failed") > 0) phrases.push(messages.failedCalls(count("failed")));
  if (count("denied") > 0) phrases.push(messages.deniedCalls(count("denied")));
  return phrases.join(", ") + describeCompactions(group);
}

/** "Steps 21 to 40" of a turn that several groups share; null where one group has the whole turn. */
export function describePart(group: StepGroup, find: (reply: number) => TimelineRequest | undefined, turns: ReadonlyMap<number, TurnTotals>): string | null {
  const replies = group.entries.filter(callsTools);
  const [first, last] = [find(replies[0]?.seq ?? 0), find(replies.at(-1)?.seq ?? 0)];
  const total = (first && turns.get(first.turn)?.steps) ?? 0;
  // The last step is the answer.
  if (!first || !last || total <= replies.length + 1) return null;
  return messages.stepsOfLongTurn(first.step, last.step);
}

/** "12 min 4 s · $0.52" for a whole turn. */
export function describeTurn({ startedAt, endedAt, cost }: TurnTotals): string {
  const phrases = endedAt > startedAt ? [formatDuration((endedAt - startedAt) / 1_000)] : [];
  return (cost === null ? phrases : [...phrases, formatDollars(cost)]).join(" · ");
}

/** "3 min 20 s · $0.12": from the question to the last result, and what the requests of its replies cost. */
export function describeEffort(group: StepGroup, findCost: (reply: number) => number | null): string {
  const duration = ((group.entries.at(-1)?.created_at ?? 0) - group.startedAt) / 1_000;
  const costs = group.entries.filter(callsTools).map((entry) => findCost(entry.seq));
  const known = costs.filter((cost) => cost !== null);
  const cost = formatDollars(known.reduce((sum, each) => sum + each, 0));
  const phrases = duration > 0 ? [formatDuration(duration)] : [];
  if (known.length > 0) phrases.push(known.length === costs.length ? cost : messages.atLeast(cost));
  return phrases.join(" · ");
}

function describeCompactions(group: StepGroup): string {
  const bodies = group.entries.flatMap((entry) => (entry.kind === "compaction" ? [entry.body] : []));
  if (bodies.length === 0) return "";
  const cleared = bodies.reduce((sum, body) => sum + (body.cleared_results ?? 0), 0);
  const freed = bodies.reduce((sum, body) => sum + countFreedTokens(body), 0);
  const changes = cleared > 0 ? [messages.resultsCleared(cleared)] : [messages.compactionCount(bodies.length)];
  return `; ${[...changes, ...(freed > 0 ? [messages.tokensFreed(freed)] : [])].join(", ")}`;
}
