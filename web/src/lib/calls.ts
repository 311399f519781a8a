/** Arguments of a tool call, which are whatever the model wrote. */

export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** One line that says what a call is about: its values, or the text itself where it is no JSON. */
export function gist(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (value === null || typeof value !== "object") return String(value);
    return Object.values(value).map(shown).join(", ");
  } catch {
    return text;
  }
}

function shown(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
