import { expect, test } from "vitest";

import type { BacktestVariant } from "../src/api/types";
import { chooseUnit, formatEstimate, formatShareEstimate, layOutPlot } from "../src/lib/backtest";

function makeVariant(name: string, tokens: number[], changes: Partial<BacktestVariant> = {}): BacktestVariant {
  const points = tokens.map((value, index) => ({ position: index + 1, tokens: value, cached_tokens: value / 2, conversations: 1 }));
  const count = { value: tokens.length, plus_minus: null };
  return { name, turns: count, requests: count, by_turn: points, by_request: points, ...changes } as BacktestVariant;
}

test("the lines of a plot share one scale", () => {
  const plot = layOutPlot([makeVariant("a", [0, 50, 100, 50, 0]), makeVariant("b", [25, 25, 25, 25, 25])], 100, 50);
  expect(plot.unit).toBe("turn");
  expect(plot.last).toBe(5);
  expect(plot.ticks.map((each) => each.tokens)).toEqual([50, 100]);
  expect(plot.lines[0]!.sent).toBe("M0.0 50.0L25.0 25.0L50.0 0.0L75.0 25.0L100.0 50.0");
  expect(plot.lines[1]!.cached).toBe("M0.0 43.8L25.0 43.8L50.0 43.8L75.0 43.8L100.0 43.8");
  expect(plot.lines.map((each) => each.color)).toEqual([0, 1]);
});

test("a single point is a short line, and nothing is an empty plot", () => {
  expect(layOutPlot([makeVariant("a", [10])], 100, 50).lines[0]!.sent).toBe("M50.0 0.0L51.0 0.0");
  expect(layOutPlot([], 100, 50).lines).toEqual([]);
});

test("few turns, or many requests in each, are plotted by request", () => {
  expect(chooseUnit(makeVariant("a", [1, 2, 3, 4]))).toBe("request");
  expect(chooseUnit(makeVariant("a", [1, 2, 3, 4, 5], { requests: { value: 16, plus_minus: null } }))).toBe("request");
  expect(chooseUnit(makeVariant("a", [1, 2, 3, 4, 5], { requests: { value: 15, plus_minus: null } }))).toBe("turn");
});

test("estimates have an interval where they are of a sample", () => {
  expect(formatEstimate({ value: 12_345.6, plus_minus: null })).toBe("12,346");
  expect(formatEstimate({ value: 1.25, plus_minus: 0.5 }, 1)).toBe("1.3 ± 0.5");
  expect(formatShareEstimate({ value: 0.42, plus_minus: 0.03 })).toBe("42 ± 3 %");
  expect(formatEstimate(null)).toBe("–");
});
