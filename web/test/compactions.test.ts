import { expect, test } from "vitest";

import type { Entry } from "../src/api/types";
import { formatHeadline, isArchived, listCompactions } from "../src/lib/compactions";

function compaction(seq: number, number: number, first: number, last: number, more: object = {}): Entry {
  const body = { number, covers: { first, last }, summary: "s", tokens_before: 1_000, tokens_after: 400, trigger: "manual", ...more };
  return { seq, kind: "compaction", created_at: seq, body } as unknown as Entry;
}

const restore = (seq: number, of: number) => ({ seq, kind: "restore", created_at: seq, body: { compaction: of } }) as unknown as Entry;

test("each compaction counts only the messages it archived itself", () => {
  const [first, second] = listCompactions([compaction(20, 1, 1, 10), compaction(40, 2, 1, 30, { supersedes: 20 })]);
  expect([first?.archivedCount, second?.archivedCount]).toEqual([10, 19]);
  expect([first?.status, second?.status]).toEqual(["merged", "active"]);
  expect(formatHeadline(second!)).toBe("19 messages archived, 600 tokens freed");
});

test("pins and other events are not counted as archived messages", () => {
  const event = (seq: number) => ({ seq, kind: "pin", created_at: seq, body: { message: 1 } }) as unknown as Entry;
  const entries = [event(1), event(4), compaction(12, 1, 3, 10), event(13), compaction(20, 2, 3, 18, { supersedes: 12 })];
  expect(listCompactions(entries).map((each) => each.archivedCount)).toEqual([7, 6]);
});

test("a clearing says how many tool results it cleared", () => {
  const [entry] = listCompactions([compaction(20, 1, 1, 10, { covers: null, cleared_results: 34, tokens_before: 25_000, tokens_after: 4_000 })]);
  expect(formatHeadline(entry!)).toBe("34 tool results cleared, 21,000 tokens freed");
});

test("what an imported compaction freed is not known if only the tokens before it are", () => {
  const [entry] = listCompactions([compaction(20, 1, 1, 10, { tokens_before: 160_000, tokens_after: 0 })]);
  expect(formatHeadline(entry!)).toBe("10 messages archived");
});

test("undoing a compaction makes the superseded one active", () => {
  const entries = listCompactions([compaction(20, 1, 1, 10), compaction(40, 2, 1, 30, { supersedes: 20 }), restore(41, 40)]);
  expect(entries.map((each) => each.status)).toEqual(["active", "undone"]);
});

test("only the compaction undone last can be redone, until another one is made", () => {
  const entries = [compaction(20, 1, 1, 10), compaction(40, 2, 1, 30, { supersedes: 20 }), restore(41, 40), restore(42, 20)];
  expect(listCompactions(entries).map((each) => each.canRedo)).toEqual([true, false]);
  expect(listCompactions([...entries, compaction(50, 3, 1, 40)]).map((each) => each.canRedo)).toEqual([false, false, false]);
});

test("after all are undone none is active, and a new one can follow", () => {
  expect(listCompactions([compaction(20, 1, 1, 10), restore(21, 20)]).map((each) => each.status)).toEqual(["undone"]);
  const again = listCompactions([compaction(20, 1, 1, 10), restore(21, 20), compaction(30, 2, 1, 15)]);
  expect(again.map((each) => each.status)).toEqual(["undone", "active"]);
});

test("an edited summary replaces the previous one", () => {
  const entries = listCompactions([compaction(20, 1, 1, 10), compaction(21, 2, 1, 10, { supersedes: 20, trigger: "edit" })]);
  expect(entries.map((each) => each.status)).toEqual(["replaced", "active"]);
  expect(formatHeadline(entries[1]!)).toBe("You edited the summary");
});

test("numbers have thousands separators", () => {
  const [entry] = listCompactions([compaction(50, 1, 1, 45, { tokens_before: 160_000, tokens_after: 10_000 })]);
  expect(formatHeadline(entry!)).toBe("45 messages archived, 150,000 tokens freed");
});

test("pins are never archived", () => {
  const covers = { first: 1, last: 10 };
  expect([isArchived(5, covers, []), isArchived(5, covers, [5]), isArchived(11, covers, [])]).toEqual([true, false, false]);
  expect(isArchived(5, null, [])).toBe(false);
  expect(isArchived(5, covers, [], 5)).toBe(false);
});
