import { expect, test } from "vitest";

import { Geometry, MAX_LIST_HEIGHT_PX } from "../src/lib/geometry";

function makeGeometry(head: number, size = 40): Geometry {
  const geometry = new Geometry(size);
  geometry.head = head;
  return geometry;
}

test("pages hold every entry once", () => {
  const geometry = makeGeometry(101, 40);
  expect(geometry.pageCount).toBe(3);
  expect([0, 1, 2].map((page) => geometry.spanOf(page))).toEqual([[1, 40], [41, 80], [81, 101]]);
  for (let seq = 1; seq <= 101; seq++) {
    const [first, last] = geometry.spanOf(geometry.pageOf(seq));
    expect(seq >= first && seq <= last).toBe(true);
  }
});

test("the page at an offset is the one whose edges enclose it", () => {
  const geometry = makeGeometry(4_000);
  let seed = 7;
  for (let page = 0; page < 100; page += 3) {
    seed = (seed * 48_271) % 2_147_483_647;
    geometry.measure(page, 500 + (seed % 9_000));
  }
  for (let offset = 0; offset < geometry.totalHeight; offset += 997) {
    const page = geometry.pageAt(offset);
    expect(geometry.topOf(page)).toBeLessThanOrEqual(offset);
    if (page + 1 < geometry.pageCount) expect(geometry.topOf(page + 1)).toBeGreaterThan(offset);
  }
});

test("pages follow one another without gaps", () => {
  const geometry = makeGeometry(500);
  geometry.measure(2, 3_333);
  geometry.measure(7, 1_111);
  for (let page = 0; page < geometry.pageCount; page++) {
    expect(geometry.topOf(page) + geometry.heightOf(page)).toBeCloseTo(geometry.topOf(page + 1), 6);
  }
});

test("a list of a million entries is no taller than browsers can draw", () => {
  const geometry = makeGeometry(1_000_000);
  geometry.measure(3, 60_000);
  expect(geometry.totalHeight).toBeLessThan(MAX_LIST_HEIGHT_PX * 1.1);
});

test("measuring a page returns the difference from its estimate", () => {
  const geometry = makeGeometry(80);
  const before = geometry.totalHeight;
  const difference = geometry.measure(0, 9_000);
  expect(difference).toBe(9_000 - 40 * 120);
  expect(geometry.heightOf(0)).toBe(9_000);
  expect(geometry.totalHeight).toBeGreaterThan(before);
});

test("the height of the last page is out of date when it grows", () => {
  const geometry = makeGeometry(50);
  geometry.measure(1, 2_000);
  geometry.head = 60;
  expect(geometry.heightOf(1)).not.toBe(2_000);
  expect(geometry.spanOf(1)).toEqual([41, 60]);
});

test("an empty list has no pages to draw", () => {
  expect(makeGeometry(0).pagesBetween(0, 1_000)).toEqual([0, -1]);
});
