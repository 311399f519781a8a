import { expect, test } from "vitest";

import type { TimelineEvent, TimelinePage } from "../src/api/types";
import { addPage, countFates, decodeFates, EMPTY_TIMELINE, findCuts, findFirstWhole, findScale, sumTimeline } from "../src/lib/requestTimeline";
import { findCut, findMessage, findRequest, layOutPicture } from "../src/lib/timelinePicture";

function makeEvent(seq: number, changes: Partial<TimelineEvent> = {}): TimelineEvent {
  return { seq, created_at: 0, kind: "compaction", author: "quire", trigger: "threshold", span: null, freed_tokens: null, undone: null, cost_usd: null, ...changes };
}

function makePage(replies: number[], totals: number[], changes: Partial<TimelinePage> = {}): TimelinePage {
  const fill = <T>(value: T): T[] => replies.map(() => value);
  return {
    conversation: "c", branch: 0, unpriced: [], unanswered: [], sub_agent_usd: fill(null), sub_agents: { sub_agents: 0, cost_usd: 0, unpriced_requests: 0 }, replies, total_tokens: totals, created_at: fill(1), turns: replies.map((_, index) => index + 1), steps: fill(1),
    limits: [{ reply: replies[0] ?? 1, model: "m", window: 4_000, trigger_tokens: 3_400 }], full_history_tokens: fill(1),
    slots: { messages: totals }, fates: fill("w2"), estimated: [], input_tokens: totals, output_tokens: fill(1),
    cache_read_tokens: totals.map((total) => total / 2), cache_write_tokens: fill(0), cost_usd: fill(0.5), events: [], next_since: null, ...changes,
  };
}

test("a run-length code names what became of each entry", () => {
  expect(decodeFates("s40r2-w")).toEqual([
    { first: 1, last: 40, fate: "s" }, { first: 41, last: 42, fate: "r" }, { first: 43, last: 43, fate: "-" }, { first: 44, last: 44, fate: "w" },
  ]);
  expect(decodeFates("")).toEqual([]);
});

test("an update replaces what came after the last known request, and repeats nothing", () => {
  const first = addPage(EMPTY_TIMELINE, makePage([2, 4], [100, 200], { events: [makeEvent(3), makeEvent(5)] }), 0);
  const second = addPage(first, makePage([7], [90], { events: [makeEvent(5), makeEvent(6, { kind: "pin" })] }), 4);
  expect(second.requests.map((each) => each.reply)).toEqual([2, 4, 7]);
  expect(second.events.map((each) => each.seq)).toEqual([3, 5, 6]);
  expect(second.requests[2]).toMatchObject({ total: 90, window: 4_000, trigger: 3_400, slots: { messages: 90, tools: 0 } });
  expect(sumTimeline(second)).toEqual({ requests: 3, turns: 2, compactions: 2, cached: 0.5, cost: 1.5 });
});

test("an imported request has a total and no slots", () => {
  const limits = [{ reply: 2, model: "m", window: null, trigger_tokens: null }];
  const { requests } = addPage(EMPTY_TIMELINE, makePage([2], [900], { limits, slots: {} }), 0);
  expect(requests[0]).toMatchObject({ total: 900, window: null, slots: null });
});

test("a cut is before the first request that has the compaction, and says what it freed", () => {
  const trailing = [makeEvent(97), makeEvent(98, { kind: "restore", undone: 97 }), makeEvent(99, { freed_tokens: 30 })];
  const events = [makeEvent(5, { freed_tokens: 700 }), makeEvent(8, { author: "client" }), ...trailing];
  const timeline = addPage(EMPTY_TIMELINE, makePage([2, 4, 7, 9], [100, 900, 200, 50], { events }), 0);
  expect(findCuts(timeline).map(({ index, freed, event }) => [index, freed, event.author])).toEqual([[2, 700, "quire"], [3, 150, "client"], [4, 30, "quire"]]);
});

test("the scale reaches above the window, unless the requests are far below it", () => {
  const scale = (totals: number[]) => findScale(addPage(EMPTY_TIMELINE, makePage(totals.map((_, index) => index + 1), totals), 0).requests).tokens;
  expect(scale([3_000])).toBeCloseTo(4_320);
  expect(scale([400])).toBeCloseTo(500);
});

test("a request says how many entries had each fate, and from where on the model saw them", () => {
  const [request] = addPage(EMPTY_TIMELINE, makePage([9], [900], { fates: ["s40r2s3-w5k"] }), 0).requests;
  if (!request) throw new Error("no request");
  expect(countFates(request)).toEqual([["k", 1], ["r", 2], ["w", 5], ["s", 43]]);
  expect(findFirstWhole(request)).toBe(46);
});

test("a place in the picture names a request, a message and a compaction", () => {
  const layout = layOutPicture(1_000, 400, { messages: true, cache: true, cost: true });
  const view = { first: 0, span: 10 };
  expect(findRequest(layout, view, 10, layout.left)).toBe(0);
  expect(findRequest(layout, view, 10, layout.left + layout.plotWidth - 1)).toBe(9);
  expect(findRequest(layout, { first: 4, span: 2 }, 10, layout.left)).toBe(4);
  expect(findRequest(layout, view, 10, 0)).toBeNull();
  expect(findMessage(layout, 50, layout.messagesTop)).toBe(1);
  expect(findMessage(layout, 50, layout.slotsTop)).toBeNull();
  expect(findMessage(layOutPicture(1_000, 130, { messages: false, cache: false, cost: false }), 50, 120)).toBeNull();
  const cut = { index: 5, freed: 700, event: makeEvent(5) };
  const x = layout.left + layout.plotWidth / 2;
  expect(findCut(layout, view, [cut], x + 5, 8)).toBe(cut);
  expect(findCut(layout, view, [cut], x + 5, layout.slotsTop + 20)).toBeNull();
  expect(findCut(layout, { first: 6, span: 2 }, [cut], x, 8)).toBeNull();
});

test("the parts of the picture fill its height and do not overlap", () => {
  for (const height of [130, 250, 700]) {
    const layout = layOutPicture(1_000, height, { messages: height > 200, cache: true, cost: true });
    expect(layout.height).toBe(height);
    expect(layout.slotsTop + layout.slotsHeight).toBeLessThanOrEqual(layout.messagesTop);
    expect(layout.messagesTop + layout.messagesHeight).toBeLessThanOrEqual(layout.cacheTop);
    expect(layout.cacheTop + layout.cacheHeight).toBeLessThanOrEqual(layout.costTop);
    expect(layout.costTop + layout.costHeight).toBeLessThanOrEqual(layout.height);
  }
});
