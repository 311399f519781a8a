import { expect, test } from "vitest";

import type { TimelineRequest } from "../src/lib/requestTimeline";
import { chooseColumns, chooseColumnWidth, clampView, extendView, isWhole, revealRequest, wholeView, zoomView } from "../src/lib/timelineView";

const WIDTH = 1_000;

function makeRequests(totals: number[]): TimelineRequest[] {
  return totals.map((total, index) => ({ reply: 2 * index + 2, total }) as TimelineRequest);
}

test("few requests do not fill the width, many share it", () => {
  expect(wholeView(3, WIDTH).span).toBe(25);
  expect(wholeView(5_000, WIDTH)).toEqual({ first: 0, span: 5_000 });
});

test("a zoom keeps the request under the pointer, from all requests to one", () => {
  let view = wholeView(5_000, WIDTH);
  for (let step = 0; step < 40; step++) view = zoomView(view, 1.5, 0.25, 5_000, WIDTH);
  expect(view.span).toBe(1);
  expect(view.first + 0.25 * view.span).toBeCloseTo(1_250);
  for (let step = 0; step < 40; step++) view = zoomView(view, 1 / 1.5, 0.9, 5_000, WIDTH);
  expect(isWhole(view, 5_000, WIDTH)).toBe(true);
  expect(view.first).toBe(0);
});

test("a view stays within the requests and reveals the selected one", () => {
  expect(clampView({ first: -5, span: 10 }, 100, WIDTH)).toEqual({ first: 0, span: 10 });
  expect(clampView({ first: 99, span: 10 }, 100, WIDTH)).toEqual({ first: 90, span: 10 });
  expect(revealRequest({ first: 10, span: 10 }, 25, 100, WIDTH).first).toBe(16);
  expect(revealRequest({ first: 10, span: 10 }, 3, 100, WIDTH).first).toBe(3);
  expect(revealRequest({ first: 10, span: 10 }, 12, 100, WIDTH).first).toBe(10);
});

test("an update shows everything if everything was visible, the newest if that was, else the same requests", () => {
  expect(extendView(wholeView(100, WIDTH), 100, 120, WIDTH)).toEqual(wholeView(120, WIDTH));
  expect(extendView({ first: 90, span: 10 }, 100, 120, WIDTH)).toEqual({ first: 110, span: 10 });
  expect(extendView({ first: 20, span: 10 }, 100, 120, WIDTH)).toEqual({ first: 20, span: 10 });
});

test("requests that share a pixel are drawn as the largest of them, and no pixel is left out", () => {
  const requests = makeRequests([10, 30, 20, 5]);
  const two = chooseColumns(requests, { first: 0, span: 4 }, 2);
  expect(two.map((each) => each.index)).toContain(1);
  const wide = chooseColumns(requests, { first: 0, span: 4 }, 100);
  expect(wide.map(({ index, from, to }) => [index, from, to])).toEqual([[0, 0, 25], [1, 25, 50], [2, 50, 75], [3, 75, 100]]);
  const many = chooseColumns(makeRequests(Array.from({ length: 5_000 }, (_, index) => index)), { first: 0, span: 5_000 }, 900);
  expect(many.length).toBeLessThanOrEqual(901);
  expect(chooseColumnWidth(requests, { first: 0, span: 4 }, 900)).toBe(1);
  expect(chooseColumnWidth(makeRequests(Array.from({ length: 5_000 }, () => 1)), { first: 0, span: 5_000 }, 900)).toBe(3);
  expect(many.every(({ to }, index) => index + 1 === many.length || to >= (many[index + 1]?.from ?? 0))).toBe(true);
  expect(chooseColumns(requests, { first: 1.5, span: 2 }, 100).map((each) => each.index)).toEqual([1, 2, 3]);
});
