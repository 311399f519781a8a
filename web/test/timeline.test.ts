import { expect, test } from "vitest";

import type { Conversation } from "../src/api/types";
import { describeOrigin, groupByDay } from "../src/lib/timeline";

const at = (year: number, month: number, day: number, hour = 12) => new Date(year, month - 1, day, hour).getTime() * 1_000;
const make = (id: string, updated: number, origin: Partial<Conversation["origin"]> | null = null): Conversation => ({
  id,
  title: id,
  created_at: 1,
  updated_at: updated,
  tags: [],
  owner: null,
  origin: origin && { client: null, session: null, project: null, agent: null, parent_agent: null, purpose: null, ...origin },
});
const NOW = at(2026, 3, 2, 0) / 1_000;

test("conversations are grouped by local day, in the order of the list", () => {
  const days = groupByDay(
    [make("a", at(2026, 3, 2, 0)), make("b", at(2026, 3, 1, 23)), make("c", at(2026, 3, 1, 1)), make("d", at(2025, 12, 24))],
    NOW,
  );
  expect(days.map((day) => [day.key, day.conversations.map((each) => each.id)])).toEqual([
    ["2026-03-02", ["a"]],
    ["2026-03-01", ["b", "c"]],
    ["2025-12-24", ["d"]],
  ]);
  expect(days.slice(0, 2).map((day) => day.label)).toEqual(["Today", "Yesterday"]);
  expect(days[2]!.label).toContain("2025");
});

test("no conversations, no days", () => {
  expect(groupByDay([], NOW)).toEqual([]);
});

test("a row states where its conversation comes from", () => {
  const time = at(2026, 3, 1, 9);
  expect(describeOrigin(make("a", time, { client: "chatgpt" }))).toMatch(/^09:00.*, ChatGPT$/);
  expect(describeOrigin(make("a", time, { client: "codex", project: "/home/ann/mill" }))).toMatch(/, Codex, mill$/);
  expect(describeOrigin(make("a", time))).not.toContain(",");
});
