import { expect, test } from "vitest";

import type { Entry, ToolResultPart } from "../src/api/types";
import { describeEffort, describeSteps, groupSteps, listOutcomes } from "../src/lib/steps";

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
  expect(describeSteps(items[1]!.group!, [null, null, null])).toBe("3 calls in 3 steps; 34 tool results cleared, 21,000 tokens freed");
});

test("a short run is not folded, and its order stays", () => {
  const items = groupSteps([question(1), call(2), result(3), clearing(4), answer(5)]);
  expect(items.map((each) => each.entry?.seq)).toEqual([1, 2, 3, 4, 5]);
});

test("failed and denied calls are counted", () => {
  const [group] = groupSteps([call(1), result(2), call(3), result(4), call(5), result(6), call(7)]);
  const answer = (id: string, text: string, is_error: boolean) =>
    [id, { type: "tool_result", call_id: id, content: [{ type: "text", text }], is_error }] as [string, ToolResultPart];
  const outcomes = listOutcomes(group!.group!, new Map([answer("c1", "ok", false), answer("c3", "locked", true), answer("c5", "patch rejected by user", false)]));
  expect(outcomes.map(([{ id }, outcome]) => [id, outcome])).toEqual([["c1", "done"], ["c3", "failed"], ["c5", "denied"], ["c7", null]]);
  expect(describeSteps(group!.group!, outcomes.map(([, outcome]) => outcome))).toBe("4 calls in 4 steps, 1 failed, 1 denied");
});

test("the effort of a group is the time since its question, and the cost of its requests", () => {
  const at = (entry: Entry, seconds: number): Entry => ({ ...entry, created_at: seconds * 1_000_000 });
  const steps = [at(call(2), 104), at(result(3), 110), at(call(4), 140), at(result(5), 150), at(call(6), 170), at(result(7), 304)];
  const [, item] = groupSteps([at(question(1), 100), ...steps]);
  expect(describeEffort(item!.group!, () => 0.02)).toBe("3 min 24 s · $0.06");
  expect(describeEffort(item!.group!, (reply) => (reply === 4 ? 0.5 : null))).toBe("3 min 24 s · at least $0.50");
  // The question is on the page before.
  expect(describeEffort(groupSteps(steps)[0]!.group!, () => null)).toBe("3 min 20 s");
});

test("a break starts another run", () => {
  const steps = [call(1), result(2), call(3), result(4), call(5), result(6), call(7), result(8), call(9), result(10), call(11)];
  expect(groupSteps(steps, new Map([[7, true]])).map((each) => each.group?.seq)).toEqual([1, 7]);
});
