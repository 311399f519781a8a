/** Locates a passage in its document, although the whitespace may have changed since. */

export interface MarkedText {
  before: string;
  inside: string;
  after: string;
}

/** Maximum characters of a passage that is searched for with flexible whitespace. */
const MAX_PATTERN_CHARS = 2_000;

export function locatePassage(text: string, passage: string | null | undefined): MarkedText | null {
  const words = passage?.trim();
  if (!words) return null;
  const exact = text.indexOf(words);
  if (exact >= 0) return splitAt(text, exact, exact + words.length);
  const pattern = words.slice(0, MAX_PATTERN_CHARS).split(/\s+/).map(escapeRegExp).join("\\s+");
  const match = new RegExp(pattern).exec(text);
  return match ? splitAt(text, match.index, match.index + match[0].length) : null;
}

/** Removes the YAML front matter of a note. */
export function stripFrontMatter(text: string): string {
  return text.replace(/^---\r?\n[\s\S]*?\r?\n---[ \t]*(?:\r?\n|$)/, "");
}

/** The section under a heading, up to the next heading of the same or a higher level. */
export function locateSection(text: string, heading: string): MarkedText | null {
  const target = heading.trim().toLowerCase();
  let position = 0;
  let start = -1;
  let startLevel = 0;
  for (const line of text.split("\n")) {
    const match = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (match) {
      const level = match[1]?.length ?? 0;
      if (start >= 0 && level <= startLevel) return splitAt(text, start, position);
      if (start < 0 && match[2]?.toLowerCase() === target) [start, startLevel] = [position, level];
    }
    position += line.length + 1;
  }
  return start >= 0 ? splitAt(text, start, text.length) : null;
}

function splitAt(text: string, from: number, to: number): MarkedText {
  return { before: text.slice(0, from), inside: text.slice(from, to), after: text.slice(to) };
}

function escapeRegExp(word: string): string {
  return word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
