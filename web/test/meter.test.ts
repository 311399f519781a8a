import { expect, test } from "vitest";

import type { ContextUsage, Decision, Manifest, ReferencedDocument } from "../src/api/types";
import type { Cut, TimelineRequest } from "../src/lib/requestTimeline";
import { layOutChart, roundUp } from "../src/lib/chart";
import { layOutGraph } from "../src/lib/graph";
import { countDocumentTokens, formatBadge, formatName, listExcluded, listIncluded } from "../src/lib/manifest";
import { buildSegments, computeLevel, describeUsage, formatTokens, knowsWindow } from "../src/lib/meter";

const USAGE: ContextUsage = {
  slots: [
    { slot: "system", budget: 100, used: 100 },
    { slot: "messages", budget: 500, used: 400 },
    { slot: "recall", budget: 100, used: 0 },
  ],
  total_tokens: 500, window: 1_000, reserved: 200, trigger_tokens: 850, exact: true, document_tokens: 0,
  proposes_compaction: false,
};

test("the bar is the window: used, free and reserved are all of it", () => {
  const parts = buildSegments(USAGE, 50);
  expect(parts.map((part) => part.key)).toEqual(["system", "messages", "reply", "free", "reserved"]);
  expect(parts.reduce((sum, part) => sum + part.tokens, 0)).toBe(1_000);
  expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(1);
});

test("an overfull window is drawn full", () => {
  const parts = buildSegments({ ...USAGE, slots: [{ slot: "messages", budget: 0, used: 3_000 }], total_tokens: 3_000 });
  expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(1);
});

test("a window that is not known is no figure", () => {
  const unknown = { ...USAGE, window: 10_000_000, trigger_tokens: 8_500_000 };
  expect(knowsWindow(unknown)).toBe(false);
  expect(describeUsage(unknown)).toBe("500 tokens; the model's window is not known, so nothing is compacted");
  expect(buildSegments(unknown).map((part) => part.key)).toEqual(["system", "messages", "reserved"]);
});

test("the meter warns before and at the threshold", () => {
  const levelAt = (total_tokens: number) => computeLevel({ ...USAGE, total_tokens });
  expect([levelAt(700), levelAt(800), levelAt(851)]).toEqual(["calm", "near", "over"]);
});

test("above the trigger the sentence names the whole history, and no share of the window", () => {
  expect(describeUsage(USAGE)).toBe("500 of 1,000 tokens, 50 %");
  expect(describeUsage({ ...USAGE, exact: false, document_tokens: 30 })).toBe("about 500 of 1,000 tokens, 50 %, 30 in documents");
  const over = { ...USAGE, total_tokens: 2_606 };
  expect(describeUsage(over)).toBe("The history has 2,606 tokens, the window 1,000; the next request compacts it first");
  expect(describeUsage({ ...over, proposes_compaction: true })).toContain("omits the oldest messages");
});

test("bars fit into the chart, and compactions are marked before the first request that has them", () => {
  const request = (reply: number, total: number) => ({ reply, total, trigger: 4_250, cacheRead: total / 2 }) as TimelineRequest;
  const cuts = [{ index: 2, freed: 2_100 } as Cut];
  const { bars } = layOutChart([request(2, 1_000), request(4, 3_000), request(8, 900), request(10, 1_200)], cuts, 300, 100);
  expect(bars.map((bar) => bar.compacted)).toEqual([false, false, true, false]);
  for (const bar of bars) {
    expect(bar.y).toBeGreaterThanOrEqual(0);
    expect(bar.y + bar.height).toBeCloseTo(100);
    expect(bar.cachedHeight).toBeCloseTo(bar.height / 2);
    expect(bar.x + bar.width).toBeLessThanOrEqual(300);
  }
  expect([roundUp(850), roundUp(1_001), roundUp(4_250)]).toEqual([1_000, 1_500, 5_000]);
});

const decide = (fields: Partial<Decision>) =>
  ({ slot: "system", kind: "rule", included: true, reason: "always", tokens: 1, ...fields }) as Decision;

test("included candidates are grouped into sections, with badges", () => {
  const decisions = [
    decide({ name: "plain" }),
    decide({ name: "safety", slot: "recall", reason: "agent", score: 0.8712 }),
    decide({ kind: "message", slot: "messages", reason: "recent", span: { first: 3, last: 5 }, tokens: 40 }),
    decide({ kind: "message", slot: "recall", reason: "recalled", span: { first: 1, last: 1 }, score: 0.5 }),
    decide({ kind: "message", included: false, reason: "archived", slot: "messages", span: { first: 1, last: 2 } }),
  ];
  const manifest = { decisions } as unknown as Manifest;
  expect(listIncluded(manifest).map((each) => [each.name, each.decisions.length])).toEqual([["Messages", 1], ["Recalled", 1], ["Rules", 2]]);
  expect(decisions.map(formatBadge)).toEqual(["Always", "Matched 0.87", "Recent", "Recalled 0.50", "Archived"]);
  expect([formatName(decisions[2]!), formatName(decisions[3]!)]).toEqual(["#3 to #5 (3 entries)", "#1"]);
  expect(listExcluded(manifest).map((each) => [each.name, each.decisions.length])).toEqual([["Messages", 1]]);
});

test("a message counts as sent and as written", () => {
  expect(formatTokens({ tokens: 1_234, written_tokens: 40, estimated: false, usage: null })).toBe(" · 1.2k tokens (40 as written)");
  expect(formatTokens({ tokens: 40, written_tokens: 40, estimated: true, usage: null })).toBe(" · about 40 tokens");
  expect(formatTokens({ tokens: null, written_tokens: null, estimated: false, usage: null })).toBe("");
  const usage = { model: "claude", input_tokens: 900, output_tokens: 140, cache_read_tokens: 0, cache_write_tokens: 0 };
  expect(formatTokens({ tokens: null, written_tokens: null, estimated: false, usage })).toBe(" · 140 tokens");
  const rows = [
    decide({ kind: "document", slot: "newest", reason: "referenced", tokens: 30 }),
    decide({ kind: "document", slot: "recall", reason: "recalled", tokens: 50 }),
    decide({ kind: "message", slot: "messages", reason: "recent", tokens: 90, document_tokens: 7 }),
    decide({ kind: "document", slot: "newest", reason: "listed", included: false, tokens: 99 }),
  ];
  expect(countDocumentTokens({ decisions: rows } as unknown as Manifest)).toBe(37);
});

test("the graph joins a document with every message that used it, once", () => {
  const use = (seq: number, kind = "direct") => ({ seq, role: "user", kind, injected: true, blob: null, snippet: null });
  const documents: ReferencedDocument[] = [
    { link: "[[A]]", path: "A.md", summary: null, uses: [use(3), use(3), use(9, "search")] },
    { link: "[[B]]", path: null, summary: null, uses: [use(9)] },
  ];
  const graph = layOutGraph(documents);
  expect(graph.messages.map((node) => node.seq)).toEqual([3, 9]);
  expect(graph.edges.map((edge) => [edge.document, edge.seq, edge.direct])).toEqual([[0, 3, true], [0, 9, false], [1, 9, true]]);
  for (const node of [...graph.documents, ...graph.messages]) expect(node.y).toBeLessThan(graph.height);
});
