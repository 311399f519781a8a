import { expect, test } from "vitest";

import type { Stats, UsageGroup } from "../src/api/types";
import { addSubAgents, formatCost, listPairs, listTables } from "../src/lib/insights";

function makeGroup(name: string, counts: Partial<UsageGroup["counts"]>): UsageGroup {
  return { name, counts: { cost_usd: 0, input_tokens: 0, cache_share: 0, turns: 0, requests: 0, uses: 0, tokens: 0, unpriced_tokens: 0, ...counts } } as UsageGroup;
}

function makeStats(groups: Record<string, UsageGroup[]>): Stats {
  return { groups, documents: [], rules: [] } as unknown as Stats;
}

test("bars compare costs, and dimensions without rows have no table", () => {
  const groups = [makeGroup("a", { cost_usd: 4, input_tokens: 12_345 }), makeGroup("", { cost_usd: 1 })];
  const [table, ...others] = listTables(makeStats({ model: groups, tool: [] }));
  expect(others).toEqual([]);
  expect(table?.rows).toEqual([
    { name: "a", share: 1, cells: ["$4.00", "12k", "0 %", "0"] },
    { name: "Unknown", share: 0.25, cells: ["$1.00", "0", "0 %", "0"] },
  ]);
});

test("bars compare input tokens where most of them have no price", () => {
  const groups = [makeGroup("a", { cost_usd: 4, input_tokens: 100 }), makeGroup("b", { input_tokens: 400, unpriced_tokens: 400 })];
  const [table] = listTables(makeStats({ model: groups }));
  expect(table?.rows.map((row) => row.share)).toEqual([0.25, 1]);
});

test("bars compare input tokens where no price is known, and calls of tools", () => {
  const models = [makeGroup("a", { input_tokens: 50 }), makeGroup("b", { input_tokens: 100 })];
  const tools = [makeGroup("search", { uses: 3, tokens: 40 }), makeGroup("read", { uses: 0, tokens: 90 })];
  const [byModel, byTool] = listTables(makeStats({ model: models, tool: tools }));
  expect(byModel?.rows.map((row) => row.share)).toEqual([0.5, 1]);
  expect(byTool?.rows.map((row) => [row.share, ...row.cells])).toEqual([[1, "3", "40"], [0, "0", "90"]]);
});

test("a cost that is not known of any call is a dash, and else a lower bound", () => {
  const format = (cost_usd: number, unpriced_requests: number) => formatCost({ ...makeGroup("", {}).counts, cost_usd, unpriced_requests });
  expect([format(0, 2), format(1, 2), format(0, 0)]).toEqual(["–", "≥ $1.00", "$0"]);
});

test("a cost with sub-agents is a lower bound if one of them has no known price", () => {
  const own = { cost_usd: 1, unpriced_requests: 0 };
  const format = (unpriced_requests: number) => formatCost(addSubAgents({ ...own, sub_agents: { cost_usd: 2, unpriced_requests } }));
  expect([format(0), format(1), formatCost(addSubAgents({ ...own, sub_agents: null }))]).toEqual(["$3.00", "≥ $3.00", "$1.00"]);
});

test("documents that are used together are rows of a table", () => {
  const pairs = [{ first: "a.md", second: "b.md", conversations: 4 }, { first: "a.md", second: "c.md", conversations: 1 }];
  const [table] = listPairs({ documents: ["a.md", "b.md", "c.md"], pairs });
  expect(table?.rows.map((row) => [row.name, row.share, ...row.cells])).toEqual([["a.md + b.md", 1, "4"], ["a.md + c.md", 0.25, "1"]]);
  expect(listPairs({ documents: [], pairs: [] })).toEqual([]);
});
