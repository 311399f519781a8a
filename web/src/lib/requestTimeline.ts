/** The timeline of a conversation's requests: pages joined, fates decoded, columns and cuts laid out. No drawing. */

import type { SlotName, TimelineEvent, TimelinePage } from "../api/types";
import { SLOTS } from "./meter";

/** What became of a message in a request; the API describes the letters. */
export type Fate = "w" | "x" | "c" | "s" | "r" | "d" | "k" | "b" | "o" | "-";

export interface FateRun {
  first: number;
  last: number;
  fate: Fate;
}

export interface TimelineRequest {
  reply: number;
  createdAt: number;
  turn: number;
  step: number;
  model: string | null;
  window: number | null;
  trigger: number | null;
  total: number;
  /** Tokens by slot; null for an imported request, of which only the usage is known. */
  slots: Record<SlotName, number> | null;
  fates: string;
  estimated: boolean;
  input: number | null;
  output: number | null;
  cacheRead: number | null;
  cacheWrite: number | null;
  cost: number | null;
}

export interface RequestTimeline {
  requests: TimelineRequest[];
  events: TimelineEvent[];
}

export const EMPTY_TIMELINE: RequestTimeline = { requests: [], events: [] };

/** A compaction before the request with this index, and the tokens that it freed. */
export interface Cut {
  index: number;
  freed: number;
  event: TimelineEvent;
}

/** Adds a page that was loaded with `since`: it replaces what the timeline has after that reply. */
export function addPage(timeline: RequestTimeline, page: TimelinePage, since: number): RequestTimeline {
  const requests = timeline.requests.filter((each) => each.reply <= since);
  const events = timeline.events.filter((each) => each.seq <= since);
  const estimated = new Set(page.estimated);
  let limit = -1;
  page.replies.forEach((reply, index) => {
    while ((page.limits[limit + 1]?.reply ?? Infinity) <= reply) limit++;
    const limits = page.limits[limit];
    const known = limits?.window !== null && limits?.window !== undefined;
    requests.push({
      reply,
      createdAt: page.created_at[index] ?? 0,
      turn: page.turns[index] ?? 0,
      step: page.steps[index] ?? 0,
      model: limits?.model ?? null,
      window: limits?.window ?? null,
      trigger: limits?.trigger_tokens ?? null,
      total: page.total_tokens[index] ?? 0,
      slots: known ? (Object.fromEntries(SLOTS.map((slot) => [slot, page.slots[slot]?.[index] ?? 0])) as Record<SlotName, number>) : null,
      fates: page.fates[index] ?? "",
      estimated: estimated.has(reply),
      input: page.input_tokens[index] ?? null,
      output: page.output_tokens[index] ?? null,
      cacheRead: page.cache_read_tokens[index] ?? null,
      cacheWrite: page.cache_write_tokens[index] ?? null,
      cost: page.cost_usd[index] ?? null,
    });
  });
  return { requests, events: [...events, ...page.events] };
}

/** The runs of a run-length code such as "s40r2w3": entries 1 to 40, 41 to 42, and 43 to 45. */
export function decodeFates(code: string): FateRun[] {
  let first = 1;
  return Array.from(packFates(code), (packed) => {
    const last = packed >>> FATE_BITS;
    const run = { first, last, fate: FATES[packed & FATE_MASK] as Fate };
    first = last + 1;
    return run;
  });
}

/** Fates by what a pixel of several messages has: the later one of them. */
export const FATES: readonly Fate[] = ["-", "o", "s", "w", "x", "c", "r", "b", "d", "k"];

/** A packed run is the last entry, shifted by these bits, and the index of the fate in `FATES`. */
export const FATE_BITS = 4;
export const FATE_MASK = (1 << FATE_BITS) - 1;
const FATES_BY_CODE = new Map(FATES.map((fate, index) => [fate.charCodeAt(0), index]));

/** The runs of a code as one number each. */
export function packFates(code: string): Uint32Array {
  const runs: number[] = [];
  let position = 0;
  for (let index = 0; index < code.length; ) {
    const fate = FATES_BY_CODE.get(code.charCodeAt(index++)) ?? 0;
    let length = 0;
    for (let digit = code.charCodeAt(index) - 48; digit >= 0 && digit <= 9; digit = code.charCodeAt(++index) - 48) length = 10 * length + digit;
    position += length || 1;
    runs.push((position << FATE_BITS) | fate);
  }
  return Uint32Array.from(runs);
}

const packedFates = new WeakMap<TimelineRequest, Uint32Array>();

/** The packed runs of a request. They are decoded when they are first drawn: most requests of a long timeline never are. */
export function readRuns(request: TimelineRequest): Uint32Array {
  let runs = packedFates.get(request);
  if (!runs) packedFates.set(request, (runs = packFates(request.fates)));
  return runs;
}

/** How many entries had each fate, in the order of `FATES` from the last. */
export function countFates(request: TimelineRequest): [Fate, number][] {
  const counts = new Map<Fate, number>();
  for (const { first, last, fate } of decodeFates(request.fates)) counts.set(fate, (counts.get(fate) ?? 0) + last - first + 1);
  return FATES.toReversed().flatMap((fate): [Fate, number][] => (fate !== "-" && counts.has(fate) ? [[fate, counts.get(fate) ?? 0]] : []));
}

/** The first message that a request has as it was written, after those that only the summary has; 1 if it has them all. */
export function findFirstWhole(request: TimelineRequest): number {
  return (decodeFates(request.fates).findLast(({ fate }) => fate === "s")?.last ?? 0) + 1;
}

/** The compactions, each before the first request that has it; after the last one, if no request has it yet. */
export function findCuts({ requests, events }: RequestTimeline): Cut[] {
  const cuts: Cut[] = [];
  let index = 0;
  for (const event of events) {
    if (event.kind !== "compaction" && event.kind !== "provider_edit") continue;
    const actsFrom = event.kind === "compaction" ? event.seq : event.seq - 1;
    while (index < requests.length && (requests[index]?.reply ?? 0) <= actsFrom) index++;
    const request = requests[index];
    if (!request && events.some((each) => each.undone === event.seq)) continue;
    const before = requests[index - 1]?.total ?? 0;
    cuts.push({ index, freed: event.freed_tokens ?? Math.max(0, before - (request?.total ?? before)), event });
  }
  return cuts;
}

/** Share of the window below which the largest request, and not the window, sets the scale. */
const MIN_WINDOW_SHARE = 0.3;

/** What the plot has at its top: the same for every part of the timeline, so that zooming changes no height. */
export interface TimelineScale {
  tokens: number;
  inputTokens: number;
  cost: number;
}

export function findScale(requests: readonly TimelineRequest[]): TimelineScale {
  let [total, window, inputTokens, cost] = [1, 0, 1, 0];
  for (const each of requests) {
    total = Math.max(total, each.total);
    window = Math.max(window, each.window ?? 0);
    inputTokens = Math.max(inputTokens, each.input ?? 0);
    cost = Math.max(cost, each.cost ?? 0);
  }
  const tokens = window > 0 && total > MIN_WINDOW_SHARE * window ? 1.08 * window : 1.25 * total;
  return { tokens, inputTokens, cost };
}

/** One turn: all steps from its question to its answer. */
export interface TurnTotals {
  steps: number;
  startedAt: number;
  endedAt: number;
  /** Null if no price is known. */
  cost: number | null;
}

export function sumTurns(requests: readonly TimelineRequest[]): Map<number, TurnTotals> {
  const turns = new Map<number, TurnTotals>();
  for (const { turn, createdAt, cost } of requests) {
    const totals = turns.get(turn) ?? { steps: 0, startedAt: createdAt, endedAt: createdAt, cost: null };
    turns.set(turn, { ...totals, steps: totals.steps + 1, endedAt: createdAt, cost: cost === null ? totals.cost : (totals.cost ?? 0) + cost });
  }
  return turns;
}

export interface TimelineTotals {
  requests: number;
  turns: number;
  compactions: number;
  /** Share of the input that was read from the cache; null if the provider reported none. */
  cached: number | null;
  cost: number | null;
}

export function sumTimeline({ requests, events }: RequestTimeline): TimelineTotals {
  const input = requests.reduce((sum, each) => sum + (each.input ?? 0), 0);
  const read = requests.reduce((sum, each) => sum + (each.cacheRead ?? 0), 0);
  const cost = requests.reduce((sum, each) => sum + (each.cost ?? 0), 0);
  return {
    requests: requests.length,
    turns: new Set(requests.map((each) => each.turn)).size,
    compactions: events.filter((each) => each.kind === "compaction").length,
    cached: input > 0 && read > 0 ? read / input : null,
    cost: cost > 0 ? cost : null,
  };
}
