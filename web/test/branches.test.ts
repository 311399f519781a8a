import { expect, test } from "vitest";

import { findOwner, findSiblings, traceLineage, type BranchLike } from "../src/lib/branches";

const branch = (number: number, head: number, fork_seq = 0, parent: number | null = null): BranchLike => ({
  number, head, fork_seq, parent,
});

const MAIN = branch(0, 10);
const EDITED = branch(1, 8, 4, 0);
const EDITED_AGAIN = branch(2, 6, 4, 1);
const LATER_FORK = branch(3, 12, 6, 1);
const ALL = [MAIN, EDITED, EDITED_AGAIN, LATER_FORK];

test("an entry belongs to the branch that first had it", () => {
  expect(findOwner(ALL, 3, 3)).toBe(0);
  expect(findOwner(ALL, 3, 5)).toBe(1);
  expect(findOwner(ALL, 3, 7)).toBe(3);
  expect(traceLineage(ALL, 3).map(({ branch, last }) => [branch.number, last])).toEqual([[3, 12], [1, 6], [0, 4]]);
});

test("branches that fork at the same entry are siblings, seen from each of them", () => {
  expect(findSiblings(ALL, 0, 5)).toEqual([0, 1, 2]);
  expect(findSiblings(ALL, 1, 5)).toEqual([0, 1, 2]);
  expect(findSiblings(ALL, 2, 5)).toEqual([0, 1, 2]);
});

test("a later fork takes the place of the sibling it continues", () => {
  expect(findSiblings(ALL, 3, 5)).toEqual([0, 3, 2]);
  expect(findSiblings(ALL, 3, 7)).toEqual([1, 3]);
  expect(findSiblings(ALL, 1, 7)).toEqual([1, 3]);
});

test("an entry without another version has no siblings", () => {
  expect(findSiblings(ALL, 0, 4)).toEqual([0]);
  expect(findSiblings(ALL, 1, 6)).toEqual([1]);
});

test("a branch without entries of its own is no sibling", () => {
  expect(findSiblings([MAIN, branch(1, 4, 4, 0)], 0, 5)).toEqual([0]);
});

test("the first message can have versions too", () => {
  expect(findSiblings([MAIN, branch(1, 2, 0, 0)], 0, 1)).toEqual([0, 1]);
});
