import { expect, test } from "vitest";

import type { Branch, Entry, Message, RequestSummary } from "../src/api/types";
import { extractSummary, findClientCompactions, findCounterpart, findSummaryBranch, getCompactionRole } from "../src/lib/clientCompactions";

const ROLES = ["user", "assistant", "user", "system", "assistant", "user", "assistant"];
const entries = ROLES.map((role, index) => ({ seq: index + 1, kind: "message", created_at: 10 * (index + 1), body: { role, parts: [] } }) as unknown as Entry);
const request = (reply: number, first: number | null = null) =>
  ({
    reply,
    created_at: 10 * reply,
    forwarding: { form: "unchanged", dropped: [], unrecorded_messages: first === null ? 0 : 1, first_message: first ?? 1 },
  }) as unknown as RequestSummary;
const branch = (number: number, fork_seq: number, head: number, created_at: number, parent: number | null = 0): Branch => ({
  number, name: `branch ${number}`, fork_seq, head, created_at, parent,
});
const user = (text: string): Message => ({ role: "user", parts: [{ type: "text", text }] });

test("a compaction is before the first message after the reply that it follows", () => {
  expect(findClientCompactions(entries, [request(2), request(5, 2), request(7, 2)])).toEqual([
    { before: 3, first: 1, last: 1, after: 20, until: 50 },
  ]);
});

test("a second compaction replaces the messages since the first", () => {
  const found = findClientCompactions(entries, [request(2), request(5, 2), request(7, 5)]);
  expect(found.map(({ before, first, last }) => [before, first, last])).toEqual([[3, 1, 1], [6, 2, 4]]);
});

test("a request without the client's list makes no second compaction of the same messages", () => {
  const found = findClientCompactions(entries, [request(2, 2), { ...request(5), forwarding: null }, request(7, 2)]);
  expect(found.map(({ before }) => before)).toEqual([1]);
});

test("the request before a page is only compared with, and requests without a summary have none", () => {
  expect(findClientCompactions(entries.slice(5), [request(5, 2), request(7, 2)])).toEqual([]);
  expect(findClientCompactions(entries, [request(2), { ...request(5), forwarding: null }])).toEqual([]);
  expect(findClientCompactions(entries.slice(4), [request(2), request(5, 2)])[0]!.before).toBe(5);
});

test("the summary was written on the branch of that time", () => {
  const [compaction] = findClientCompactions(entries, [request(2), request(5, 2)]);
  const written = branch(2, 2, 4, 30);
  expect(findSummaryBranch([branch(0, 0, 7, 1, null), branch(1, 1, 4, 15), written, branch(3, 2, 4, 60)], 0, compaction!)).toBe(written);
  expect(findSummaryBranch([branch(0, 0, 7, 1, null), branch(2, 2, 2, 30)], 0, compaction!)).toBeNull();
});

test("the messages of a compaction are recognised, and others are not", () => {
  const checkpoint = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.";
  const continued = "Another language model started to solve this problem and produced a summary of it:\nThe wheel turns.";
  expect([checkpoint, continued, "Which way does it turn?"].map((text) => getCompactionRole(user(text)))).toEqual(["prompt", "continuation", null]);
  expect(getCompactionRole({ ...user(checkpoint), role: "assistant" })).toBeNull();
  expect(extractSummary(user(continued))).toBe("The wheel turns.");
  expect(extractSummary(user("<analysis>Long.</analysis><summary>\nIt turns.\n</summary>"))).toBe("It turns.");
});

test("each half of a compaction leads to the other", () => {
  const main = branch(0, 0, 5, 1, null);
  const codex = [main, branch(1, 2, 5, 60)];
  expect(findCounterpart(codex, 0, { seq: 4, created_at: 40 }, "prompt")).toEqual({ branch: codex[1], at: 3 });
  expect(findCounterpart(codex, 1, { seq: 3, created_at: 60 }, "continuation")).toEqual({ branch: main, at: 3 });
  const claude = [main, branch(1, 3, 5, 30), branch(2, 4, 6, 60)];
  expect(findCounterpart(claude, 1, { seq: 4, created_at: 30 }, "prompt")).toEqual({ branch: main, at: 4 });
  expect(findCounterpart([main], 0, { seq: 4, created_at: 40 }, "prompt")).toBeNull();
});
