import { expect, test } from "vitest";

import type { Entry } from "../src/api/types";
import { chapters, headline, isArchived } from "../src/lib/story";

function compaction(seq: number, number: number, first: number, last: number, more: object = {}): Entry {
  const body = { number, covers: { first, last }, summary: "s", tokens_before: 1_000, tokens_after: 400, trigger: "manual", ...more };
  return { seq, kind: "compaction", at: seq, body } as unknown as Entry;
}

const restore = (seq: number, of: number) => ({ seq, kind: "restore", at: seq, body: { compaction: of } }) as unknown as Entry;

test("each compaction counts what it archived itself", () => {
  const [first, second] = chapters([compaction(20, 1, 1, 10), compaction(40, 2, 1, 30, { supersedes: 20 })]);
  expect([first?.archived, second?.archived]).toEqual([10, 20]);
  expect([first?.fate, second?.fate]).toEqual(["beneath", "active"]);
  expect(headline(second!)).toBe("20 messages archived, 600 tokens freed");
});

test("an undone compaction gives way to the one beneath", () => {
  const found = chapters([compaction(20, 1, 1, 10), compaction(40, 2, 1, 30, { supersedes: 20 }), restore(41, 40)]);
  expect(found.map((chapter) => chapter.fate)).toEqual(["active", "undone"]);
});

test("undone to the first, none is active, and it can begin anew", () => {
  expect(chapters([compaction(20, 1, 1, 10), restore(21, 20)]).map((each) => each.fate)).toEqual(["undone"]);
  const again = chapters([compaction(20, 1, 1, 10), restore(21, 20), compaction(30, 2, 1, 15)]);
  expect(again.map((each) => each.fate)).toEqual(["undone", "active"]);
});

test("a rewritten summary replaces the one before", () => {
  const found = chapters([compaction(20, 1, 1, 10), compaction(21, 2, 1, 10, { supersedes: 20, trigger: "edit" })]);
  expect(found.map((each) => each.fate)).toEqual(["replaced", "active"]);
  expect(headline(found[1]!)).toBe("Summary rewritten by hand");
});

test("numbers are grouped as people read them", () => {
  const [chapter] = chapters([compaction(50, 1, 1, 45, { tokens_before: 160_000, tokens_after: 10_000 })]);
  expect(headline(chapter!)).toBe("45 messages archived, 150,000 tokens freed");
});

test("pins are never archived", () => {
  const covers = { first: 1, last: 10 };
  expect([isArchived(5, covers, []), isArchived(5, covers, [5]), isArchived(11, covers, [])]).toEqual([true, false, false]);
  expect(isArchived(5, null, [])).toBe(false);
});
