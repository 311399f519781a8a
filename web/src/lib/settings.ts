/** Form fields of settings: the field type from a setting's JSON Schema, its label, and parsing of its text. */

import type { Setting } from "../api/types";
import { language, t } from "../i18n/language.svelte";

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

/** "context_limit" is "Context limit", unless the language has a label of its own for it. */
export function formatLabel(name: string): string {
  const text = name.replace(/_/g, " ");
  return language.catalogue.settingLabels[name] ?? text.charAt(0).toUpperCase() + text.slice(1);
}

/** The setting's description in the page's language, or the server's own. */
export function describeSetting({ name, description }: Setting): string {
  return language.catalogue.settingDescriptions[name] ?? description.replaceAll("`", "");
}

/** The values that a field takes, for a sentence: "a number from 0.1 to 0.95". */
export function describeRange(field: FieldType): string {
  if (field.type !== "number") return t("anyValue");
  const { minimum, maximum } = field;
  const kind = t(field.isInteger ? "wholeNumber" : "anyNumber");
  if (minimum !== null && maximum !== null) return t("rangeBetween", kind, formatValue(minimum), formatValue(maximum));
  if (minimum !== null) return t("rangeAtLeast", kind, formatValue(minimum));
  return maximum !== null ? t("rangeAtMost", kind, formatValue(maximum)) : kind;
}

const MAX_DECIMALS = 12;

/** A value as the text of its field: numbers in the page's language, without separators between thousands. */
export function formatValue(value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  const options = { useGrouping: false, maximumFractionDigits: MAX_DECIMALS };
  return new Intl.NumberFormat(language.current, options).format(value);
}

/** Parses a number as the page's language writes it; NaN for anything else, because "0,6" must not become 6 in English. */
function parseNumber(text: string): number {
  const parts = new Intl.NumberFormat(language.current).formatToParts(1_000.5);
  const find = (type: "group" | "decimal") => parts.find((part) => part.type === type)?.value ?? "";
  const [whole = "", fraction, ...rest] = text.replace(/\s/g, "").split(find("decimal"));
  const [first = "", ...groups] = whole.split(find("group"));
  const isGrouped = /^[1-9]\d{0,2}$/.test(first) && groups.every((digits) => /^\d{3}$/.test(digits));
  const digits = isGrouped ? first + groups.join("") : whole;
  return rest.length > 0 ? NaN : Number(fraction === undefined ? digits : `${digits}.${fraction}`);
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
