import { expect, test } from "vitest";

import { formatBytes, formatCompact, formatDollars, formatDuration, formatNumber } from "../src/lib/format";
import { messages } from "../src/lib/messages";
import { formatValue, parseFieldType, parseValue } from "../src/lib/settings";

test("numbers, plurals, prices and durations", () => {
  expect([messages.messagesArchived(1), messages.messagesArchived(1_200)]).toEqual(["1 message archived", "1,200 messages archived"]);
  expect([formatNumber(150_000), formatCompact(1_200), formatDollars(1.5), formatBytes(2_500_000)]).toEqual(["150,000", "1.2k", "$1.50", "2.5 MB"]);
  expect([400, 9_960, 42_400, 200_000, 180_000, 7_500_000].map(formatDuration)).toEqual(["0.4 s", "10 s", "42 s", "3 min 20 s", "3 min", "2 h 5 min"]);
});

test("a number in a field is read with commas between thousands, or not at all", () => {
  const spend = parseFieldType({ name: "max_spend", value: null, default: null, description: "", json_schema: { type: "number", minimum: 0 } });
  const texts = ["0.6", "1,000", "1,000.5", "0,6", "0,125", "1.2.3", "1e"];
  expect(texts.map((text) => parseValue(spend, text))).toEqual([0.6, 1_000, 1_000.5, undefined, undefined, undefined, undefined]);
  expect([formatValue(0.85), formatValue(120_000), formatValue(null)]).toEqual(["0.85", "120000", ""]);
});
