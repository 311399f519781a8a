import { expect, test } from "vitest";

import type { Decision, DocumentShown, Manifest, RequestShown, Usage } from "../src/api/types";
import { chart, niceTop } from "../src/lib/chart";
import { graph } from "../src/lib/graph";
import { badge, leftOut, nameOf, used } from "../src/lib/manifest";
import { segments, status } from "../src/lib/meter";

const USAGE: Usage = {
  slots: [
    { slot: "system", budget: 100, used: 100 },
    { slot: "messages", budget: 500, used: 400 },
    { slot: "recall", budget: 100, used: 0 },
  ],
  total: 500, window: 1_000, reserved: 200, trigger: 850, exact: true,
};

test("the bar is the window: used, free and reserved are all of it", () => {
  const parts = segments(USAGE, 50);
  expect(parts.map((part) => part.key)).toEqual(["system", "messages", "reply", "free", "reserved"]);
  expect(parts.reduce((sum, part) => sum + part.tokens, 0)).toBe(1_000);
  expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(1);
});

test("an overfull window is drawn full", () => {
  const parts = segments({ ...USAGE, slots: [{ slot: "messages", budget: 0, used: 3_000 }], total: 3_000 });
  expect(parts.reduce((sum, part) => sum + part.share, 0)).toBeCloseTo(1);
});

test("the meter warns before and at the threshold", () => {
  const at = (total: number) => status({ ...USAGE, total });
  expect([at(700), at(800), at(851)]).toEqual(["calm", "near", "over"]);
});

test("bars of the chart stand inside it, and compactions are marked where the summary changes", () => {
  const made = (reply: number, total: number, summary: number | null) =>
    ({ reply, at: 0, model: "m", total, wanted: total, window: 5_000, trigger: 4_250, room: 4_500, summary,
      usage: { input_tokens: total, output_tokens: 1, cache_read_tokens: total / 2, cache_write_tokens: 0 } }) as RequestShown;
  const { bars } = chart([made(2, 1_000, null), made(4, 3_000, null), made(8, 900, 7), made(10, 1_200, 7)], 300, 100);
  expect(bars.map((bar) => bar.compacted)).toEqual([false, false, true, false]);
  for (const bar of bars) {
    expect(bar.y).toBeGreaterThanOrEqual(0);
    expect(bar.y + bar.height).toBeCloseTo(100);
    expect(bar.cachedHeight).toBeCloseTo(bar.height / 2);
    expect(bar.x + bar.width).toBeLessThanOrEqual(300);
  }
  expect([niceTop(850), niceTop(1_001), niceTop(4_250)]).toEqual([1_000, 1_500, 5_000]);
});

const row = (given: Partial<Decision>) => ({ slot: "system", what: "rule", included: true, reason: "always", tokens: 1, ...given }) as Decision;

test("what was used stands in sections with its badge", () => {
  const decisions = [
    row({ name: "plain" }),
    row({ name: "safety", slot: "recall", reason: "agent", score: 0.8712 }),
    row({ what: "message", slot: "messages", reason: "recent", span: { first: 3, last: 5 }, tokens: 40 }),
    row({ what: "message", slot: "recall", reason: "recalled", span: { first: 1, last: 1 }, score: 0.5 }),
    row({ what: "message", included: false, reason: "archived", slot: "messages", span: { first: 1, last: 2 } }),
  ];
  const manifest = { decisions } as unknown as Manifest;
  expect(used(manifest).map((each) => [each.name, each.rows.length])).toEqual([["Rules", 2], ["Messages", 1], ["Recalled", 1]]);
  expect(decisions.map(badge)).toEqual(["Always", "Agent 0.87", "Recent", "Recalled 0.50", "Archived"]);
  expect([nameOf(decisions[2]!), nameOf(decisions[3]!)]).toEqual(["#3 to #5 (3 entries)", "#1"]);
  expect(leftOut(manifest)).toHaveLength(1);
});

test("the graph joins a document with every message that used it, once", () => {
  const use = (seq: number, kind = "direct") => ({ seq, role: "user", kind, injected: true, blob: null, snippet: null });
  const documents: DocumentShown[] = [
    { link: "[[A]]", path: "A.md", summary: null, uses: [use(3), use(3), use(9, "search")] },
    { link: "[[B]]", path: null, summary: null, uses: [use(9)] },
  ];
  const drawn = graph(documents);
  expect(drawn.turns.map((node) => node.seq)).toEqual([3, 9]);
  expect(drawn.lines.map((line) => [line.document, line.seq, line.direct])).toEqual([[0, 3, true], [0, 9, false], [1, 9, true]]);
  for (const node of [...drawn.documents, ...drawn.turns]) expect(node.y).toBeLessThan(drawn.height);
});
