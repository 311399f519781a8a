import { expect, test } from "vitest";

import { lineage, ownerOf, siblings, type BranchLike } from "../src/lib/branches";

const branch = (number: number, head: number, forked_at = 0, parent: number | null = null): BranchLike => ({
  number, head, forked_at, parent,
});

const MAIN = branch(0, 10);
const EDITED = branch(1, 8, 4, 0);
const AGAIN = branch(2, 6, 4, 1);
const LATER = branch(3, 12, 6, 1);
const ALL = [MAIN, EDITED, AGAIN, LATER];

test("an entry belongs to the branch that first had it", () => {
  expect(ownerOf(ALL, 3, 3)).toBe(0);
  expect(ownerOf(ALL, 3, 5)).toBe(1);
  expect(ownerOf(ALL, 3, 7)).toBe(3);
  expect(lineage(ALL, 3).map(({ branch, last }) => [branch.number, last])).toEqual([[3, 12], [1, 6], [0, 4]]);
});

test("lines that begin in the same place are siblings, seen from each of them", () => {
  expect(siblings(ALL, 0, 5)).toEqual([0, 1, 2]);
  expect(siblings(ALL, 1, 5)).toEqual([0, 1, 2]);
  expect(siblings(ALL, 2, 5)).toEqual([0, 1, 2]);
});

test("a line that goes on from a sibling stands for it", () => {
  expect(siblings(ALL, 3, 5)).toEqual([0, 3, 2]);
  expect(siblings(ALL, 3, 7)).toEqual([1, 3]);
  expect(siblings(ALL, 1, 7)).toEqual([1, 3]);
});

test("what nobody said otherwise has no siblings", () => {
  expect(siblings(ALL, 0, 4)).toEqual([0]);
  expect(siblings(ALL, 1, 6)).toEqual([1]);
});

test("a branch that says nothing yet is no sibling", () => {
  expect(siblings([MAIN, branch(1, 4, 4, 0)], 0, 5)).toEqual([0]);
});

test("the very first message can be said otherwise too", () => {
  expect(siblings([MAIN, branch(1, 2, 0, 0)], 0, 1)).toEqual([0, 1]);
});
