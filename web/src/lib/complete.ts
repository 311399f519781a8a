/** Completion of [[notes]] and @files while writing: what is being typed, and the text with a choice put in. */

export interface Typed {
  kind: "link" | "file";
  /** What was typed of the name so far. */
  query: string;
  /** Where the mark begins. */
  start: number;
  end: number;
}

const LONGEST = 100;

/** What stands unfinished before the caret, if anything. */
export function typedAt(text: string, caret: number): Typed | null {
  const before = text.slice(0, caret);
  const link = before.lastIndexOf("[[");
  if (link >= 0) {
    const query = before.slice(link + 2);
    if (!/[\]\n|#]/.test(query) && query.length <= LONGEST) return { kind: "link", query, start: link, end: caret };
  }
  const file = /(^|[\s(])@([^\s@]{0,100})$/.exec(before);
  if (file) {
    const query = file[2] ?? "";
    return { kind: "file", query, start: caret - query.length - 1, end: caret };
  }
  return null;
}

/** The text with the name in place of what was typed, and where the caret goes. */
export function completed(text: string, typed: Typed, name: string): { text: string; caret: number } {
  const after = text.slice(typed.end);
  const quoted = /\s/.test(name) ? `@"${name}"` : `@${name}`;
  const put = typed.kind === "link" ? `[[${name}]]` : `${quoted}${/^\s/.test(after) ? "" : " "}`;
  const rest = typed.kind === "link" ? after.replace(/^\]\]?/, "") : after;
  return { text: text.slice(0, typed.start) + put + rest, caret: typed.start + put.length };
}
