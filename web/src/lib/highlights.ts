/** Splits the excerpt of a found message into its highlighted and other pieces, around the first highlight. */

export interface ExcerptPiece {
  text: string;
  marked: boolean;
}

/** Characters before the first highlight. */
const LEAD_CHARS = 30;
/** Characters by which a cut moves so that it does not divide a word. */
const MAX_SHIFT_CHARS = 15;

/** Signs of Markdown and tags, which say nothing in an excerpt of one line. */
const MARKUP = /\*\*|__|`+|~~|\[\[|\]\]|<\/?[a-z][\w:-]*(?: [^<>]*)?\/?>|^\s*(?:#{1,6}|[-*>]) /gi;

const isSpace = (char: string | undefined): boolean => char === undefined || /\s/.test(char);

/** `spans` are in code points, as Python counts them; JavaScript counts UTF-16 code units. */
export function splitExcerpt(excerpt: string, spans: readonly (readonly number[])[], maxChars: number): ExcerptPiece[] {
  const chars = Array.from(excerpt);
  const first = spans[0]?.[0] ?? 0;
  const cut = Math.max(0, Math.min(first - LEAD_CHARS, chars.length - maxChars));
  const start = alignStart(chars, cut, Math.min(first, cut + MAX_SHIFT_CHARS));
  const limit = Math.min(chars.length, cut + maxChars);
  const end = alignEnd(chars, limit, Math.max(spans[0]?.[1] ?? 0, limit - MAX_SHIFT_CHARS));
  const pieces: ExcerptPiece[] = [];
  let at = start;
  const push = (to: number, marked: boolean): void => {
    const text = chars.slice(at, Math.max(at, to)).join("");
    const plain = marked ? text : text.replace(MARKUP, "");
    if (plain) pieces.push({ text: plain, marked });
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

/** The first start of a word between two places; the first place if there is none. */
function alignStart(chars: readonly string[], from: number, to: number): number {
  for (let at = from; at <= to; at++) if (isSpace(chars[at - 1]) && !isSpace(chars[at])) return at;
  return from;
}

/** The last end of a word between two places; the last place if there is none. */
function alignEnd(chars: readonly string[], to: number, from: number): number {
  for (let at = to; at > from; at--) if (isSpace(chars[at]) && !isSpace(chars[at - 1])) return at;
  return to;
}
