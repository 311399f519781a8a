/** Rows of the insights view, computed from the statistics that the server returns. */

import type { DocumentGraph, Stats, UsageGroup } from "../api/types";
import { formatCompact, formatDay, formatDollars, formatPercent } from "./format";
import { messages } from "./messages";

const text = messages.insights;
export type Grouping = keyof typeof text.by;

export const GROUPINGS: readonly Grouping[] = ["day", "model", "project", "source", "slot", "tool"];

/** In place of a number that is not known. */
export const UNKNOWN = "–";

interface Cost {
  cost_usd: number | null;
  unpriced_requests: number;
}

/** The cost of a conversation or a turn and its sub-agents. */
export function addSubAgents(own: Cost & { sub_agents: Cost | null }): Cost {
  return {
    cost_usd: (own.cost_usd ?? 0) + (own.sub_agents?.cost_usd ?? 0),
    unpriced_requests: own.unpriced_requests + (own.sub_agents?.unpriced_requests ?? 0),
  };
}

/** The cost, a lower bound if calls have no known price, or a dash if none has one. */
export function formatCost(counts: Cost): string {
  if (!counts.unpriced_requests) return formatDollars(counts.cost_usd ?? 0);
  return counts.cost_usd ? `≥ ${formatDollars(counts.cost_usd)}` : UNKNOWN;
}

export interface InsightRow {
  name: string;
  /** Length of the bar, from 0 to 1. */
  share: number;
  cells: string[];
}

export interface InsightTable {
  key: string;
  title: string;
  columns: string[];
  rows: InsightRow[];
}

/** The tables of all dimensions that have rows. */
export function listTables(stats: Stats): InsightTable[] {
  const tables = GROUPINGS.map((grouping) => buildTable(grouping, stats.groups[grouping] ?? []));
  const items = [
    buildItemTable("documents", text.documents, stats.documents, [text.messages, text.tokens], (each) => [each.counts.uses, each.counts.tokens]),
    buildItemTable("rules", text.rules, stats.rules, [text.requests, text.tokens], (each) => [each.counts.requests, each.counts.tokens]),
  ];
  return [...tables, ...items].filter((table) => table.rows.length > 0);
}

/** Documents that the same conversations use. */
export function listPairs({ pairs }: DocumentGraph): InsightTable[] {
  const largest = Math.max(...pairs.map((each) => each.conversations), 0);
  const rows = pairs.map(({ first, second, conversations }) => ({
    name: `${first} + ${second}`,
    share: conversations / largest,
    cells: [formatCompact(conversations)],
  }));
  return rows.length ? [{ key: "pairs", title: text.pairs, columns: [text.conversations], rows }] : [];
}

function buildTable(grouping: Grouping, groups: UsageGroup[]): InsightTable {
  const title = text.by[grouping];
  if (grouping === "slot")
    return buildItemTable(grouping, title, groups, [text.tokens, text.requests], (each) => [each.counts.tokens, each.counts.requests]);
  if (grouping === "tool")
    return buildItemTable(grouping, title, groups, [text.calls, text.tokens], (each) => [each.counts.uses, each.counts.tokens]);
  // Bars of costs would hide what has no price, if that is most of it.
  const unpriced = groups.reduce((sum, each) => sum + each.counts.unpriced_tokens, 0);
  const hasCost = groups.some((each) => each.counts.cost_usd > 0) && 2 * unpriced <= groups.reduce((sum, each) => sum + each.counts.input_tokens, 0);
  const size = (each: UsageGroup) => (hasCost ? each.counts.cost_usd : each.counts.input_tokens);
  const largest = Math.max(...groups.map(size), 0);
  const rows = groups.map((each) => ({
    name: (grouping === "day" ? formatDay(each.name) : each.name) || ((text.unnamed as Record<string, string>)[grouping] ?? ""),
    share: largest > 0 ? size(each) / largest : 0,
    cells: [formatCost(each.counts), formatCompact(each.counts.input_tokens), formatPercent(each.counts.cache_share, 1), formatCompact(each.counts.turns)],
  }));
  return { key: grouping, title, columns: [text.cost, text.input, text.cached, text.turns], rows };
}

function buildItemTable(
  key: string, title: string, groups: UsageGroup[], columns: string[], measure: (each: UsageGroup) => number[],
): InsightTable {
  const sizes = groups.map((each) => measure(each)[0] ?? 0);
  const largest = Math.max(...sizes, 0);
  const rows = groups.map((each, index) => ({
    name: each.name,
    share: largest > 0 ? (sizes[index] ?? 0) / largest : 0,
    cells: measure(each).map(formatCompact),
  }));
  return { key, title, columns, rows };
}
