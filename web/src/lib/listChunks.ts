/** The list of conversations in chunks of rows, of which only those near the visible part are rendered. */

import type { ListItem } from "./sessions";
import type { Day } from "./timeline";

/** Rows of a chunk: about one screen, so that few chunks are rendered at once. */
const CHUNK_ROWS = 20;

export interface ListChunk<Section> {
  sections: Section[];
  rowCount: number;
}

/** How a section of the list is divided: a project by its sessions, a day by its conversations. */
interface Divider<Section> {
  countRows: (section: Section) => number;
  slice: (section: Section, from: number, to: number) => Section;
}

/** Divides sections into chunks; a section that does not fit continues in the next chunk. */
function divide<Section>(sections: readonly Section[], { countRows, slice }: Divider<Section>): ListChunk<Section>[] {
  const chunks: ListChunk<Section>[] = [];
  let chunk: ListChunk<Section> | undefined;
  for (const section of sections) {
    const total = countRows(section);
    for (let from = 0; from < total; ) {
      if (!chunk || chunk.rowCount >= CHUNK_ROWS) chunks.push((chunk = { sections: [], rowCount: 0 }));
      const to = Math.min(total, from + CHUNK_ROWS - chunk.rowCount);
      chunk.sections.push(from === 0 && to === total ? section : slice(section, from, to));
      chunk.rowCount += to - from;
      from = to;
    }
  }
  return chunks;
}

export function chunkItems(items: readonly ListItem[]): ListChunk<ListItem>[] {
  return divide(items, {
    countRows: ({ group }) => group?.sessions.length ?? 1,
    slice: (item, from, to) =>
      item.group ? { group: { ...item.group, sessions: item.group.sessions.slice(from, to), isContinued: from > 0 } } : item,
  });
}

export function chunkDays(days: readonly Day[]): ListChunk<Day>[] {
  return divide(days, {
    countRows: (day) => day.conversations.length,
    slice: (day, from, to) => ({ ...day, conversations: day.conversations.slice(from, to), isContinued: from > 0 }),
  });
}
