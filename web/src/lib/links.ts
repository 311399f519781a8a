/** What stands in square brackets: [[notes]] and citations of entries such as [#12] or [#3, #7-9]. */

export type Piece =
  | { kind: "text"; text: string }
  | { kind: "citation"; text: string; seq: number }
  | { kind: "note"; text: string; link: string };

const MARK = /\[\[([^[\]\n]{1,300})\]\]|\[(#\d{1,15}(?:\s*[-–,;]\s*#?\d{1,15})*)\]/g;

/** The text in pieces; a citation of several entries is one piece for each. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let place = 0;
  const plain = (until: number) => {
    if (until > place) found.push({ kind: "text", text: text.slice(place, until) });
  };
  for (const match of text.matchAll(MARK)) {
    plain(match.index);
    place = match.index + match[0].length;
    if (match[1] !== undefined) found.push(note(match[1]));
    else found.push(...citations(match[2] ?? ""));
  }
  plain(text.length);
  return found;
}

function note(inside: string): Piece {
  const bar = inside.indexOf("|");
  const link = bar < 0 ? inside : inside.slice(0, bar);
  const shown = bar < 0 ? inside.replace(/#\^?/g, " › ") : inside.slice(bar + 1);
  return { kind: "note", text: shown, link: link.trim() };
}

function citations(inside: string): Piece[] {
  return inside.split(/(\d+)/).flatMap((part): Piece[] => {
    if (/^\d+$/.test(part)) return [{ kind: "citation", text: `#${part}`, seq: Number(part) }];
    const between = part.replace(/#/g, "");
    return between ? [{ kind: "text", text: between }] : [];
  });
}
