/** Splits the excerpt of a found message into its highlighted and other pieces, around the first highlight. */

export interface ExcerptPiece {
  text: string;
  marked: boolean;
}

/** Characters before the first highlight. */
const LEAD_CHARS = 30;

/** `spans` are in code points, as Python counts them; JavaScript counts UTF-16 code units. */
export function splitExcerpt(excerpt: string, spans: readonly (readonly number[])[], maxChars: number): ExcerptPiece[] {
  const chars = Array.from(excerpt);
  const first = spans[0]?.[0] ?? 0;
  const start = Math.max(0, Math.min(first - LEAD_CHARS, chars.length - maxChars));
  const end = Math.min(chars.length, start + maxChars);
  const pieces: ExcerptPiece[] = [];
  let at = start;
  const push = (to: number, marked: boolean): void => {
    if (to > at) pieces.push({ text: chars.slice(at, to).join(""), marked });
    at = Math.max(at, to);
  };
  for (const [from = 0, to = 0] of spans) {
    push(Math.min(from, end), false);
    push(Math.min(to, end), true);
  }
  push(end, false);
  if (start > 0) pieces.unshift({ text: "…", marked: false });
  if (end < chars.length) pieces.push({ text: "…", marked: false });
  return pieces;
}
