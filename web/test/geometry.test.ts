import { expect, test } from "vitest";

import { Geometry, TALLEST } from "../src/lib/geometry";

function made(head: number, size = 40): Geometry {
  const geometry = new Geometry(size);
  geometry.head = head;
  return geometry;
}

test("pages hold every entry once", () => {
  const geometry = made(101, 40);
  expect(geometry.pages).toBe(3);
  expect([0, 1, 2].map((page) => geometry.span(page))).toEqual([[1, 40], [41, 80], [81, 101]]);
  for (let seq = 1; seq <= 101; seq++) {
    const [first, last] = geometry.span(geometry.page(seq));
    expect(seq >= first && seq <= last).toBe(true);
  }
});

test("the page at a distance is the one whose edges enclose it", () => {
  const geometry = made(4_000);
  let seed = 7;
  for (let page = 0; page < 100; page += 3) {
    seed = (seed * 48_271) % 2_147_483_647;
    geometry.measure(page, 500 + (seed % 9_000));
  }
  for (let distance = 0; distance < geometry.total; distance += 997) {
    const page = geometry.at(distance);
    expect(geometry.top(page)).toBeLessThanOrEqual(distance);
    if (page + 1 < geometry.pages) expect(geometry.top(page + 1)).toBeGreaterThan(distance);
  }
});

test("pages follow one another without gaps", () => {
  const geometry = made(500);
  geometry.measure(2, 3_333);
  geometry.measure(7, 1_111);
  for (let page = 0; page < geometry.pages; page++) {
    expect(geometry.top(page) + geometry.height(page)).toBeCloseTo(geometry.top(page + 1), 6);
  }
});

test("a list of a million entries is no taller than browsers can draw", () => {
  const geometry = made(1_000_000);
  geometry.measure(3, 60_000);
  expect(geometry.total).toBeLessThan(TALLEST * 1.1);
});

test("a measured page says by how much it was misjudged", () => {
  const geometry = made(80);
  const before = geometry.total;
  const difference = geometry.measure(0, 9_000);
  expect(difference).toBe(9_000 - 40 * 120);
  expect(geometry.height(0)).toBe(9_000);
  expect(geometry.total).toBeGreaterThan(before);
});

test("the last page is measured anew when it grows", () => {
  const geometry = made(50);
  geometry.measure(1, 2_000);
  geometry.head = 60;
  expect(geometry.height(1)).not.toBe(2_000);
  expect(geometry.span(1)).toEqual([41, 60]);
});

test("an empty list has no pages to draw", () => {
  expect(made(0).between(0, 1_000)).toEqual([0, -1]);
});
