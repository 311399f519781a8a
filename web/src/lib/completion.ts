/** Completion of [[notes]] and @files in the composer. */

export interface CompletionQuery {
  kind: "link" | "file";
  /** The typed part of the name. */
  query: string;
  /** Start of the mark, `[[` or `@`, and position of the caret. */
  start: number;
  end: number;
}

const MAX_QUERY_CHARS = 100;

/** The incomplete link or file name before the caret, if there is one. */
export function findCompletion(text: string, caret: number): CompletionQuery | null {
  const before = text.slice(0, caret);
  const link = before.lastIndexOf("[[");
  if (link >= 0) {
    const query = before.slice(link + 2);
    if (!/[\]\n|#]/.test(query) && query.length <= MAX_QUERY_CHARS) return { kind: "link", query, start: link, end: caret };
  }
  const file = /(^|[\s(])@([^\s@]{0,100})$/.exec(before);
  if (file) {
    const query = file[2] ?? "";
    return { kind: "file", query, start: caret - query.length - 1, end: caret };
  }
  return null;
}

/** Replaces the incomplete name by `name`; returns the text and the new caret position. */
export function insertCompletion(text: string, completion: CompletionQuery, name: string): { text: string; caret: number } {
  const after = text.slice(completion.end);
  const quoted = /\s/.test(name) ? `@"${name}"` : `@${name}`;
  const inserted = completion.kind === "link" ? `[[${name}]]` : `${quoted}${/^\s/.test(after) ? "" : " "}`;
  const rest = completion.kind === "link" ? after.replace(/^\]\]?/, "") : after;
  return { text: text.slice(0, completion.start) + inserted + rest, caret: completion.start + inserted.length };
}
