/** Parses [[notes]] and citations of entries such as [#12] or [#3, #7-9]. */

export type LinkPiece =
  | { kind: "text"; text: string }
  | { kind: "citation"; text: string; seq: number }
  | { kind: "note"; text: string; link: string };

const LINK_PATTERN = /\[\[([^[\]\n]{1,300})\]\]|\[(#\d{1,15}(?:\s*[-–,;]\s*#?\d{1,15})*)\]/g;

/** Splits text at its links; a citation of several entries becomes one piece for each entry. */
export function parseLinks(text: string): LinkPiece[] {
  const pieces: LinkPiece[] = [];
  let position = 0;
  const addText = (end: number) => {
    if (end > position) pieces.push({ kind: "text", text: text.slice(position, end) });
  };
  for (const match of text.matchAll(LINK_PATTERN)) {
    addText(match.index);
    position = match.index + match[0].length;
    if (match[1] !== undefined) pieces.push(parseNote(match[1]));
    else pieces.push(...parseCitations(match[2] ?? ""));
  }
  addText(text.length);
  return pieces;
}

function parseNote(inside: string): LinkPiece {
  const bar = inside.indexOf("|");
  const link = bar < 0 ? inside : inside.slice(0, bar);
  const label = bar < 0 ? inside.replace(/#\^?/g, " › ") : inside.slice(bar + 1);
  return { kind: "note", text: label, link: link.trim() };
}

function parseCitations(inside: string): LinkPiece[] {
  return inside.split(/(\d+)/).flatMap((part): LinkPiece[] => {
    if (/^\d+$/.test(part)) return [{ kind: "citation", text: `#${part}`, seq: Number(part) }];
    const separator = part.replace(/#/g, "");
    return separator ? [{ kind: "text", text: separator }] : [];
  });
}
