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
  const runs: FateRun[] = [];
  let position = 1;
  for (const [, fate, count] of code.matchAll(/([^\d])(\d*)/g)) {
    const length = count ? Number(count) : 1;
    runs.push({ first: position, last: position + length - 1, fate: fate as Fate });
    position += length;
  }
  return runs;
}

/** The compactions, each before the first request that has it. */
export function findCuts({ requests, events }: RequestTimeline): Cut[] {
  const cuts: Cut[] = [];
  let index = 0;
  for (const event of events) {
    if (event.kind !== "compaction" && event.kind !== "provider_edit") continue;
    const actsFrom = event.kind === "compaction" ? event.seq : event.seq - 1;
    while (index < requests.length && (requests[index]?.reply ?? 0) <= actsFrom) index++;
    const request = requests[index];
    if (!request) continue;
    const before = requests[index - 1]?.total ?? 0;
    cuts.push({ index, freed: event.freed_tokens ?? Math.max(0, before - request.total), event });
  }
  return cuts;
}

/** Share of the window below which the largest request, and not the window, sets the scale. */
const MIN_WINDOW_SHARE = 0.3;

/** Tokens at the top of the plot. */
export function findTopTokens(requests: readonly TimelineRequest[]): number {
  const largest = requests.reduce((most, each) => Math.max(most, each.total), 1);
  const window = requests.reduce((most, each) => Math.max(most, each.window ?? 0), 0);
  return window > 0 && largest > MIN_WINDOW_SHARE * window ? 1.08 * window : 1.25 * largest;
}

/** The largest request of each column, where there are more requests than columns. */
export function chooseColumns(requests: readonly TimelineRequest[], columns: number): number[] {
  const count = Math.min(requests.length, Math.max(1, Math.floor(columns)));
  return Array.from({ length: count }, (_, column) => {
    const first = Math.floor((column * requests.length) / count);
    const end = Math.floor(((column + 1) * requests.length) / count);
    let best = first;
    for (let index = first + 1; index < end; index++) {
      if ((requests[index]?.total ?? 0) > (requests[best]?.total ?? 0)) best = index;
    }
    return best;
  });
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
