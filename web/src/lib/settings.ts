/** A setting's kind, from its JSON Schema, and what a field's text means for it. */

import type { Setting } from "../api/types";

export type Kind =
  | { type: "switch" }
  | { type: "number"; whole: boolean; least: number | null; most: number | null; empty: boolean }
  | { type: "choice"; choices: string[] }
  | { type: "text"; empty: boolean };

type Schema = {
  type?: string;
  anyOf?: Schema[];
  enum?: string[];
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
};

const STRATEGIES = ["hybrid", "summarize", "discard"];

export function kindOf(setting: Setting): Kind {
  const given = setting.kind as Schema;
  const own = given.anyOf?.find((each) => each.type !== "null") ?? given;
  const empty = !!given.anyOf?.some((each) => each.type === "null");
  if (own.type === "boolean") return { type: "switch" };
  if (own.type === "integer" || own.type === "number") {
    const least = own.minimum ?? own.exclusiveMinimum ?? null;
    return { type: "number", whole: own.type === "integer", least, most: own.maximum ?? null, empty };
  }
  if (own.enum) return { type: "choice", choices: own.enum };
  if (setting.name === "strategy") {
    const current = String(setting.value);
    return { type: "choice", choices: STRATEGIES.includes(current) ? STRATEGIES : [...STRATEGIES, current] };
  }
  return { type: "text", empty };
}

/** "context_threshold" is "Context threshold". */
export function words(name: string): string {
  const text = name.replace(/_/g, " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The value of a field's text; undefined if it is none. */
export function valueOf(kind: Kind, text: string): unknown {
  const bare = text.trim();
  if (kind.type === "number") {
    if (bare === "") return kind.empty ? null : undefined;
    const value = Number(bare.replace(/[,\s]/g, ""));
    if (!Number.isFinite(value) || (kind.whole && !Number.isInteger(value))) return undefined;
    if ((kind.least !== null && value < kind.least) || (kind.most !== null && value > kind.most)) return undefined;
    return value;
  }
  if (bare === "") return kind.type === "text" && kind.empty ? null : undefined;
  return bare;
}
