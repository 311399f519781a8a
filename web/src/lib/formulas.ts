/** Finds formulas in Markdown: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` as a block. */

export interface Formula {
  /** The formula with its delimiters. */
  raw: string;
  tex: string;
}

/** Longer formulas stay as they are written: the search for an end must not slow down hostile text. */
const MAX_BLOCK_CHARS = 10_000;
const MAX_INLINE_CHARS = 1_000;
const BLOCK = /^(?:\$\$([^$]+?)\$\$|\\\[(.+?)\\\])[ \t]*(?:\n|$)/s;
const PARENTHESES = /^\\\((.+?)\\\)/s;
const DOUBLE_DOLLARS = /^\$\$([^$\n]+?)\$\$/;
/** No space inside the dollars and no digit after them, so that prices are no formulas. */
const DOLLARS = /^\$(?![\s$])((?:[^$\\\n]|\\[^\n])*?[^\s$\\])\$(?![\d$])/;

/** The formula at the start of the text, on lines of its own. */
export function matchBlockFormula(text: string): Formula | null {
  return toFormula(BLOCK.exec(text.slice(0, MAX_BLOCK_CHARS)));
}

/** The formula at the start of the text, within a line. */
export function matchInlineFormula(text: string): Formula | null {
  const start = text.slice(0, MAX_INLINE_CHARS);
  return toFormula(PARENTHESES.exec(start) ?? DOUBLE_DOLLARS.exec(start) ?? DOLLARS.exec(start));
}

function toFormula(match: RegExpExecArray | null): Formula | null {
  const tex = (match?.[1] ?? match?.[2])?.trim();
  return match && tex ? { raw: match[0], tex } : null;
}
