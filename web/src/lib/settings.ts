/** Form fields of settings: the field type from a setting's JSON Schema, its label, and parsing of its text. */

import type { Setting } from "../api/types";
import { messages } from "./messages";

export type FieldType =
  | { type: "switch" }
  | { type: "number"; isInteger: boolean; minimum: number | null; maximum: number | null; nullable: boolean }
  | { type: "choice"; choices: string[] }
  | { type: "text"; nullable: boolean };

type JsonSchema = {
  type?: string;
  anyOf?: JsonSchema[];
  enum?: string[];
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
};

export const STRATEGIES = ["hybrid", "summarize", "discard"];

export function parseFieldType(setting: Setting): FieldType {
  const declared = setting.json_schema as JsonSchema;
  const schema = declared.anyOf?.find((each) => each.type !== "null") ?? declared;
  const nullable = !!declared.anyOf?.some((each) => each.type === "null");
  if (schema.type === "boolean") return { type: "switch" };
  if (schema.type === "integer" || schema.type === "number") {
    const minimum = schema.minimum ?? schema.exclusiveMinimum ?? null;
    return { type: "number", isInteger: schema.type === "integer", minimum, maximum: schema.maximum ?? null, nullable };
  }
  if (schema.enum) return { type: "choice", choices: schema.enum };
  if (setting.name === "strategy") {
    const current = String(setting.value);
    return { type: "choice", choices: STRATEGIES.includes(current) ? STRATEGIES : [...STRATEGIES, current] };
  }
  return { type: "text", nullable };
}

/** "max_spend" is "Max spend". */
export function formatLabel(name: string): string {
  const text = name.replace(/_/g, " ");
  return name === "context_threshold" ? "Compact at" : text.charAt(0).toUpperCase() + text.slice(1);
}

/** The server's description as plain text. */
export function describeSetting({ description }: Setting): string {
  return description.replaceAll("`", "");
}

/** The values that a field takes, for a sentence: "a number from 0.1 to 0.95". */
export function describeRange(field: FieldType): string {
  if (field.type !== "number") return "a value";
  const { minimum, maximum } = field;
  const kind = field.isInteger ? "a whole number" : "a number";
  if (minimum !== null && maximum !== null) return messages.rangeBetween(kind, formatValue(minimum), formatValue(maximum));
  if (minimum !== null) return messages.rangeAtLeast(kind, formatValue(minimum));
  return maximum !== null ? messages.rangeAtMost(kind, formatValue(maximum)) : kind;
}

const MAX_DECIMALS = 12;

/** A value as the text of its field: numbers without separators between thousands. */
export function formatValue(value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  const options = { useGrouping: false, maximumFractionDigits: MAX_DECIMALS };
  return new Intl.NumberFormat("en", options).format(value);
}

/** Parses a number, with or without commas between thousands; NaN for anything else, because "0,6" must not become 6. */
function parseNumber(text: string): number {
  const plain = text.replace(/\s/g, "");
  return Number(/^[1-9]\d{0,2}(,\d{3})+(\.|$)/.test(plain) ? plain.replaceAll(",", "") : plain);
}

/** Parses a field's text; undefined if it is not a valid value. */
export function parseValue(field: FieldType, text: string): unknown {
  const trimmed = text.trim();
  if (field.type === "number") {
    if (trimmed === "") return field.nullable ? null : undefined;
    const value = parseNumber(trimmed);
    if (!Number.isFinite(value) || (field.isInteger && !Number.isInteger(value))) return undefined;
    const isTooSmall = field.minimum !== null && value < field.minimum;
    const isTooLarge = field.maximum !== null && value > field.maximum;
    return isTooSmall || isTooLarge ? undefined : value;
  }
  if (trimmed === "") return field.type === "text" && field.nullable ? null : undefined;
  return trimmed;
}
