import { expect, test } from "vitest";

import type { Conversation } from "../src/api/types";
import { chunkDays, chunkItems } from "../src/lib/listChunks";
import type { ListItem, Session } from "../src/lib/sessions";

const conversation = (id: string): Conversation => ({ id, title: id, created_at: 1, updated_at: 1, origin: null, tags: [], owner: null });
const session = (id: string): Session => ({ id, nodes: [{ conversation: conversation(id), subAgents: [] }], sideCalls: [] });
const number = (count: number) => Array.from({ length: count }, (_, index) => String(index));

test("every conversation is in one chunk, in the order of the list", () => {
  const items: ListItem[] = number(50).map((id) => ({ conversation: conversation(id) }));
  const chunks = chunkItems(items);
  expect(chunks.map((each) => each.rowCount)).toEqual([20, 20, 10]);
  expect(chunks.flatMap((each) => each.sections)).toEqual(items);
});

test("a project that is longer than a chunk continues in the next, marked as continued", () => {
  const group = { key: "k", client: "codex", project: "/mill", sessions: number(30).map(session) };
  const [first, second] = chunkItems([{ conversation: conversation("a") }, { group }, { conversation: conversation("b") }]);
  expect(first!.sections.map((each) => each.group?.sessions.length ?? 1)).toEqual([1, 19]);
  expect(second!.sections.map((each) => each.group?.sessions.length ?? 1)).toEqual([11, 1]);
  expect([first!.sections[1]!.group!.isContinued, second!.sections[0]!.group!.isContinued]).toEqual([false, true]);
});

test("a day is divided in the same way, and an empty list has no chunk", () => {
  const chunks = chunkDays([{ key: "d", label: "Today", conversations: number(21).map(conversation) }]);
  expect(chunks.map((each) => each.sections[0]!.conversations.length)).toEqual([20, 1]);
  expect(chunks[1]!.sections[0]!.isContinued).toBe(true);
  expect(chunkItems([])).toEqual([]);
});
