/** Documents and the messages that used them, as two columns with lines between. */

import type { DocumentShown } from "../api/types";

export interface Node {
  key: string;
  label: string;
  y: number;
}

export interface Line {
  key: string;
  from: number;
  to: number;
  direct: boolean;
  document: number;
  seq: number;
}

export interface Graph {
  documents: Node[];
  turns: (Node & { seq: number })[];
  lines: Line[];
  height: number;
}

export const ROW = 26;
/** More would be a blot; the list beside has them all. */
export const MOST = 24;

export function graph(documents: readonly DocumentShown[]): Graph {
  const shown = documents.slice(0, MOST);
  const numbers = new Set(shown.flatMap((each) => each.uses.map((use) => use.seq)));
  const seqs = [...numbers].sort((a, b) => a - b).slice(-MOST);
  const rows = Math.max(shown.length, seqs.length, 1);
  const place = (index: number, count: number) => ((index + 0.5) * rows * ROW) / Math.max(1, count);
  const at = new Map(seqs.map((seq, index) => [seq, place(index, seqs.length)]));
  const lines: Line[] = [];
  shown.forEach((document, index) => {
    for (const use of document.uses) {
      const to = at.get(use.seq);
      if (to === undefined) continue;
      const key = `${index}-${use.seq}`;
      if (lines.some((line) => line.key === key)) continue;
      lines.push({ key, from: place(index, shown.length), to, direct: use.kind === "direct", document: index, seq: use.seq });
    }
  });
  return {
    documents: shown.map((each, index) => ({
      key: `${index}`, label: each.path ?? each.link, y: place(index, shown.length),
    })),
    turns: seqs.map((seq) => ({ key: `t${seq}`, label: `#${seq}`, seq, y: at.get(seq) ?? 0 })),
    lines,
    height: rows * ROW,
  };
}
