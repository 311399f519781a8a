/** A passage found again in its document, though blanks may have changed in between. */

export interface Marked {
  before: string;
  inside: string;
  after: string;
}

export function located(text: string, passage: string | null | undefined): Marked | null {
  const words = passage?.trim();
  if (!words) return null;
  const exact = text.indexOf(words);
  if (exact >= 0) return cut(text, exact, exact + words.length);
  const pattern = words.slice(0, 2_000).split(/\s+/).map(escaped).join("\\s+");
  const loose = new RegExp(pattern).exec(text);
  return loose ? cut(text, loose.index, loose.index + loose[0].length) : null;
}

/** A note's text without the YAML at its beginning, which is for programs. */
export function withoutFrontMatter(text: string): string {
  return text.replace(/^---\r?\n[\s\S]*?\r?\n---[ \t]*(?:\r?\n|$)/, "");
}

/** The section under a heading, up to the next of the same rank or higher. */
export function section(text: string, heading: string): Marked | null {
  const lines = text.split("\n");
  const wanted = heading.trim().toLowerCase();
  let place = 0;
  let start = -1;
  let rank = 0;
  for (const line of lines) {
    const match = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (match) {
      const own = match[1]?.length ?? 0;
      if (start >= 0 && own <= rank) return cut(text, start, place);
      if (start < 0 && match[2]?.toLowerCase() === wanted) [start, rank] = [place, own];
    }
    place += line.length + 1;
  }
  return start >= 0 ? cut(text, start, text.length) : null;
}

function cut(text: string, from: number, to: number): Marked {
  return { before: text.slice(0, from), inside: text.slice(from, to), after: text.slice(to) };
}

function escaped(word: string): string {
  return word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
