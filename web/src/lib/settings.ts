/** Form fields of settings: the field type from a setting's JSON Schema, its label, and parsing of its text. */

import type { Setting } from "../api/types";

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

const STRATEGIES = ["hybrid", "summarize", "discard"];

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

/** Labels that say more than the setting's name. */
const LABELS: Record<string, string> = { context_threshold: "Compact at" };

/** "context_limit" is "Context limit". */
export function formatLabel(name: string): string {
  const text = name.replace(/_/g, " ");
  return LABELS[name] ?? text.charAt(0).toUpperCase() + text.slice(1);
}

/** The values that a field takes, for a sentence: "a number from 0.1 to 0.95". */
export function describeRange(field: FieldType): string {
  if (field.type !== "number") return "a value";
  const kind = field.isInteger ? "a whole number" : "a number";
  if (field.minimum !== null && field.maximum !== null) return `${kind} from ${field.minimum} to ${field.maximum}`;
  if (field.minimum !== null) return `${kind} of at least ${field.minimum}`;
  return field.maximum !== null ? `${kind} of at most ${field.maximum}` : kind;
}

/** Parses a field's text; undefined if it is not a valid value. */
export function parseValue(field: FieldType, text: string): unknown {
  const trimmed = text.trim();
  if (field.type === "number") {
    if (trimmed === "") return field.nullable ? null : undefined;
    const value = Number(trimmed.replace(/[,\s]/g, ""));
    if (!Number.isFinite(value) || (field.isInteger && !Number.isInteger(value))) return undefined;
    const isTooSmall = field.minimum !== null && value < field.minimum;
    const isTooLarge = field.maximum !== null && value > field.maximum;
    return isTooSmall || isTooLarge ? undefined : value;
  }
  if (trimmed === "") return field.type === "text" && field.nullable ? null : undefined;
  return trimmed;
}
