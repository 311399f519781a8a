/** Graph of documents and the messages that used them: two columns of nodes with edges between them. */

import type { ReferencedDocument } from "../api/types";

export interface Node {
  key: string;
  label: string;
  y: number;
}

export interface Edge {
  key: string;
  from: number;
  to: number;
  direct: boolean;
  document: number;
  seq: number;
}

export interface Graph {
  documents: Node[];
  messages: (Node & { seq: number })[];
  edges: Edge[];
  height: number;
}

export const ROW_HEIGHT_PX = 26;
/** Maximum nodes of a column: more edges would be unreadable, and the list above has them all. */
export const MAX_COLUMN_NODES = 24;

export function layOutGraph(documents: readonly ReferencedDocument[]): Graph {
  const drawn = documents.slice(0, MAX_COLUMN_NODES);
  const used = new Set(drawn.flatMap((each) => each.uses.map((use) => use.seq)));
  const seqs = [...used].sort((a, b) => a - b).slice(-MAX_COLUMN_NODES);
  const rows = Math.max(drawn.length, seqs.length, 1);
  const place = (index: number, count: number) => ((index + 0.5) * rows * ROW_HEIGHT_PX) / Math.max(1, count);
  const messageY = new Map(seqs.map((seq, index) => [seq, place(index, seqs.length)]));
  const edges: Edge[] = [];
  drawn.forEach((document, index) => {
    for (const use of document.uses) {
      const to = messageY.get(use.seq);
      if (to === undefined) continue;
      const key = `${index}-${use.seq}`;
      if (edges.some((edge) => edge.key === key)) continue;
      edges.push({ key, from: place(index, drawn.length), to, direct: use.kind === "direct", document: index, seq: use.seq });
    }
  });
  return {
    documents: drawn.map((each, index) => ({
      key: `${index}`, label: each.path ?? each.link, y: place(index, drawn.length),
    })),
    messages: seqs.map((seq) => ({ key: `m${seq}`, label: `#${seq}`, seq, y: messageY.get(seq) ?? 0 })),
    edges,
    height: rows * ROW_HEIGHT_PX,
  };
}
