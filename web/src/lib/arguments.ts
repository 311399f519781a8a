/** Formats the arguments of a tool call: JSON as a rule, but a model may write anything. */

/** Indented JSON, or the text itself where it is not JSON. */
export function formatArguments(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The argument values on one line, or the text itself where it is not JSON. */
export function summarizeArguments(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (value === null || typeof value !== "object") return String(value);
    return Object.values(value).map(formatValue).join(", ");
  } catch {
    return text;
  }
}

/** Names and values of the arguments; null where they are no object. */
export function listArguments(text: string): [string, string][] | null {
  try {
    const value: unknown = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
    return Object.entries(value).map(([name, each]) => [name, formatLong(each)]);
  } catch {
    return null;
  }
}

function formatLong(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function formatValue(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
