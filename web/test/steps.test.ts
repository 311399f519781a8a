import { expect, test } from "vitest";

import type { Entry, ToolResultPart } from "../src/api/types";
import { describeSteps, groupSteps, listFailedCalls } from "../src/lib/steps";

const message = (seq: number, role: string, parts: object[]) =>
  ({ seq, kind: "message", created_at: seq, body: { role, parts } }) as unknown as Entry;
const question = (seq: number) => message(seq, "user", [{ type: "text", text: "?" }]);
const answer = (seq: number) => message(seq, "assistant", [{ type: "text", text: "!" }]);
const call = (seq: number) => message(seq, "assistant", [{ type: "tool_call", id: `c${seq}`, name: "read", arguments: "{}" }]);
const result = (seq: number) => message(seq, "tool", [{ type: "tool_result", call_id: `c${seq - 1}`, content: [] }]);
const clearing = (seq: number) =>
  ({ seq, kind: "compaction", body: { number: 1, cleared_results: 34, tokens_before: 25_000, tokens_after: 4_000 } }) as unknown as Entry;

test("the steps of a turn become one group between question and answer", () => {
  const items = groupSteps([question(1), call(2), result(3), call(4), result(5), clearing(6), call(7), result(8), answer(9)]);
  expect(items.map((each) => each.entry?.seq ?? each.group?.entries.map((entry) => entry.seq))).toEqual([1, [2, 3, 4, 5, 6, 7, 8], 9]);
  expect(describeSteps(items[1]!.group!, 0)).toBe("3 calls in 3 steps; 34 tool results cleared, 21,000 tokens freed");
});

test("a short run is not folded, and its order stays", () => {
  const items = groupSteps([question(1), call(2), result(3), clearing(4), answer(5)]);
  expect(items.map((each) => each.entry?.seq)).toEqual([1, 2, 3, 4, 5]);
});

test("failed calls are counted", () => {
  const [group] = groupSteps([call(1), result(2), call(3), result(4), call(5), result(6)]);
  const results = new Map([["c3", { type: "tool_result", call_id: "c3", content: [], is_error: true } as unknown as ToolResultPart]]);
  const failed = listFailedCalls(group!.group!, results);
  expect(failed.map((each) => each.id)).toEqual(["c3"]);
  expect(describeSteps(group!.group!, failed.length)).toBe("3 calls in 3 steps, 1 failed");
});

test("a break starts another run", () => {
  const steps = [call(1), result(2), call(3), result(4), call(5), result(6), call(7), result(8), call(9), result(10), call(11)];
  expect(groupSteps(steps, new Map([[7, true]])).map((each) => each.group?.seq)).toEqual([1, 7]);
});
