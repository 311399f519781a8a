/** Plot and table of a backtest, computed from its result. */

import type { BacktestVariant, Estimate } from "../api/types";
import { roundUp } from "./chart";
import { formatDecimal, formatNumber } from "./format";

export type PlotUnit = "turn" | "request";

export interface PlotLine {
  name: string;
  /** Number of its colour, from 0. */
  color: number;
  /** Paths of the tokens sent, and of those that the prompt cache can serve. */
  sent: string;
  cached: string;
}

export interface Plot {
  unit: PlotUnit;
  lines: PlotLine[];
  ticks: { y: number; tokens: number }[];
  /** The last position. */
  last: number;
}

export const COLORS = 6;
const MIN_PLOTTED_TURNS = 5;
const MAX_REQUESTS_PER_TURN = 3;

/** Turns, unless there are few of them or each has many requests, as an agent's. */
export function chooseUnit(variant: BacktestVariant): PlotUnit {
  const { turns, requests } = variant;
  const isChat = !!turns && !!requests && requests.value <= MAX_REQUESTS_PER_TURN * turns.value;
  return isChat && variant.by_turn.length >= MIN_PLOTTED_TURNS ? "turn" : "request";
}

export function layOutPlot(variants: readonly BacktestVariant[], width: number, height: number): Plot {
  const unit = variants[0] ? chooseUnit(variants[0]) : "turn";
  const series = variants.map((each) => (unit === "turn" ? each.by_turn : each.by_request));
  const last = Math.max(1, ...series.flatMap((points) => points.map((point) => point.position)));
  const top = roundUp(Math.max(1, ...series.flatMap((points) => points.map((point) => point.tokens))));
  const x = (position: number) => (last > 1 ? ((position - 1) / (last - 1)) * width : width / 2);
  const y = (tokens: number) => height - (tokens / top) * height;
  const draw = (places: [number, number][]) => {
    // A path of one point draws nothing without a length.
    const points = places.length === 1 ? [places[0]!, [places[0]![0] + 1, places[0]![1]]] : places;
    return points.map(([across, down], index) => `${index ? "L" : "M"}${across!.toFixed(1)} ${down!.toFixed(1)}`).join("");
  };
  const lines = series.map((points, index) => ({
    name: variants[index]!.name,
    color: index % COLORS,
    sent: draw(points.map((point) => [x(point.position), y(point.tokens)])),
    cached: draw(points.map((point) => [x(point.position), y(point.cached_tokens)])),
  }));
  return { unit, lines, last, ticks: [0.5, 1].map((part) => ({ y: y(top * part), tokens: top * part })) };
}

/** "1,234 ± 56". */
export function formatEstimate(estimate: Estimate | null, decimals = 0): string {
  if (!estimate) return "–";
  const format = (value: number) => (decimals ? formatDecimal(value, decimals, decimals) : formatNumber(value));
  return estimate.plus_minus === null ? format(estimate.value) : `${format(estimate.value)} ± ${format(estimate.plus_minus)}`;
}

/** "42 ± 3 %". */
export function formatShareEstimate(estimate: Estimate | null): string {
  if (!estimate) return "–";
  const share = { value: 100 * estimate.value, plus_minus: estimate.plus_minus === null ? null : 100 * estimate.plus_minus };
  return `${formatEstimate(share)} %`;
}
