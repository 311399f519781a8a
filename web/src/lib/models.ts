/** Groups, filters and describes models for the list of models. */

import type { Model } from "../api/types";
import { formatDecimal } from "./format";

export interface ModelGroup {
  source: Model["source"];
  models: Model[];
}

const SOURCES: readonly Model["source"][] = ["settings", "upstream", "price_list"];

/** Models whose name contains every word of the query, by source. */
export function groupModels(models: readonly Model[], query: string): ModelGroup[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = models.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  return SOURCES.map((source) => {
    const models = found.filter((each) => each.source === source);
    // A price list goes back for years; the models with large windows are the current ones.
    return { source, models: source === "price_list" ? models.toSorted((one, other) => (other.window ?? 0) - (one.window ?? 0)) : models };
  }).filter((group) => group.models.length > 0);
}

/** A number of tokens such as 128k or 1M. */
export function formatWindow(tokens: number): string {
  if (tokens >= 1_000_000) return `${formatDecimal(tokens / 1_000_000, 1)}M`;
  return tokens >= 1_000 ? `${Math.round(tokens / 1_000)}k` : String(tokens);
}

/** Prices of input and output per million tokens. */
export function formatPrices(input: number, output: number): string {
  return `$${formatPrice(input)} / $${formatPrice(output)}`;
}

function formatPrice(price: number): string {
  return price >= 1 ? formatDecimal(price, 2) : formatDecimal(Number(price.toPrecision(3)), 12);
}
