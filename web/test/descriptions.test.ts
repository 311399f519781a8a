import { expect, test } from "vitest";

import type { Decision, Message } from "../src/api/types";
import { describeMessage, listMessageRanges } from "../src/lib/descriptions";

const decide = (first: number): Decision =>
  ({ kind: "message", span: { first, last: first }, included: true, reason: "recent", slot: "messages", tokens: 1 }) as Decision;

test("messages that lie close together are loaded in one range, the newest first", () => {
  const decisions = [3, 4, 9, 500, 510].map(decide);
  expect(listMessageRanges(decisions)).toEqual([[500, 510], [3, 9]]);
});

test("the number of ranges is bounded", () => {
  const decisions = Array.from({ length: 50 }, (_, index) => decide(index * 1_000 + 1));
  expect(listMessageRanges(decisions)).toHaveLength(8);
});

test.each([
  [{ role: "user", parts: [{ type: "text", text: "Which\n gate?" }] }, "User: Which gate?"],
  [{ role: "assistant", parts: [{ type: "tool_call", id: "1", name: "look", arguments: '{"at": "elm"}' }] }, "Assistant: look(elm)"],
  [{ role: "tool", parts: [{ type: "tool_result", call_id: "1", content: [] }] }, "Tool: without text"],
  [{ role: "user", parts: [{ type: "text", text: "## The **sea** `gate_1`" }] }, "User: The sea gate_1"],
  [{ role: "user", parts: [{ type: "text", text: "x".repeat(500) }] }, `User: ${"x".repeat(90)}…`],
])("a message is described by its author and its first words", (message, line) => {
  expect(describeMessage(message as Message)).toBe(line);
});
