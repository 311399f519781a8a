import { expect, test } from "vitest";

import type { TimelineEvent, TimelinePage } from "../src/api/types";
import { addPage, chooseColumns, decodeFates, EMPTY_TIMELINE, findCuts, findTopTokens, sumTimeline } from "../src/lib/requestTimeline";
import { findMessage, findRequest, layOutPicture } from "../src/lib/timelinePicture";

function makeEvent(seq: number, changes: Partial<TimelineEvent> = {}): TimelineEvent {
  return { seq, created_at: 0, kind: "compaction", author: "quire", trigger: "threshold", span: null, freed_tokens: null, undone: null, cost_usd: null, ...changes };
}

function makePage(replies: number[], totals: number[], changes: Partial<TimelinePage> = {}): TimelinePage {
  const fill = <T>(value: T): T[] => replies.map(() => value);
  return {
    conversation: "c", branch: 0, replies, total_tokens: totals, created_at: fill(1), turns: replies.map((_, index) => index + 1), steps: fill(1),
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
  const events = [makeEvent(5, { freed_tokens: 700 }), makeEvent(8, { author: "client" }), makeEvent(99)];
  const timeline = addPage(EMPTY_TIMELINE, makePage([2, 4, 7, 9], [100, 900, 200, 50], { events }), 0);
  expect(findCuts(timeline).map(({ index, freed, event }) => [index, freed, event.author])).toEqual([[2, 700, "quire"], [3, 150, "client"]]);
});

test("more requests than pixels share a column, which has the largest of them", () => {
  const { requests } = addPage(EMPTY_TIMELINE, makePage([2, 4, 6, 8], [10, 30, 20, 5]), 0);
  expect(chooseColumns(requests, 2)).toEqual([1, 2]);
  expect(chooseColumns(requests, 100)).toEqual([0, 1, 2, 3]);
});

test("the scale reaches above the window, unless the requests are far below it", () => {
  const scale = (totals: number[]) => findTopTokens(addPage(EMPTY_TIMELINE, makePage(totals.map((_, index) => index + 1), totals), 0).requests);
  expect(scale([3_000])).toBeCloseTo(4_320);
  expect(scale([400])).toBeCloseTo(500);
});

test("a place in the picture names a request and a message", () => {
  const layout = layOutPicture(1_000, true);
  expect(findRequest(layout, 10, layout.left)).toBe(0);
  expect(findRequest(layout, 10, layout.left + layout.plotWidth - 1)).toBe(9);
  expect(findRequest(layout, 10, 0)).toBeNull();
  expect(findMessage(layout, 50, layout.messagesTop)).toBe(1);
  expect(findMessage(layout, 50, layout.slotsTop)).toBeNull();
  expect(findMessage(layOutPicture(1_000, false), 50, 120)).toBeNull();
});
