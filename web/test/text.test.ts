import { expect, test } from "vitest";

import { formatArguments, summarizeArguments } from "../src/lib/arguments";
import { findCompletion, insertCompletion } from "../src/lib/completion";
import { formatAge, formatCompact, formatNumber, formatPercent } from "../src/lib/format";
import { parseLinks } from "../src/lib/links";
import { locatePassage, locateSection, stripFrontMatter } from "../src/lib/passage";
import { formatLabel, parseFieldType, parseValue } from "../src/lib/settings";
import { matchesTitle } from "../src/stores/conversations.svelte";
import { formatHash, parseHash } from "../src/stores/route.svelte";

test("numbers and times are formatted for reading", () => {
  expect([formatNumber(150_000), formatCompact(999), formatCompact(1_200), formatCompact(45_300), formatCompact(2_500_000)]).toEqual(["150,000", "999", "1.2k", "45k", "2.5M"]);
  expect([formatPercent(1, 1_000), formatPercent(1, 4), formatPercent(0, 4), formatPercent(1, 0)]).toEqual(["< 1 %", "25 %", "0 %", "0 %"]);
  const now = 1_700_000_000_000;
  const ageOf = (seconds: number) => formatAge((now - seconds * 1_000) * 1_000, now);
  expect([ageOf(5), ageOf(120), ageOf(7_200), ageOf(90_000)]).toEqual(["just now", "2 min ago", "2 h ago", "1 day ago"]);
});

test("citations and notes are found, and nothing else", () => {
  expect(parseLinks("See [#12] and [[Timber|wood]], not [12] or [x](y).")).toEqual([
    { kind: "text", text: "See " },
    { kind: "citation", text: "#12", seq: 12 },
    { kind: "text", text: " and " },
    { kind: "note", text: "wood", link: "Timber" },
    { kind: "text", text: ", not [12] or [x](y)." },
  ]);
  expect(parseLinks("[[Mill#Sea gate]]")).toEqual([{ kind: "note", text: "Mill › Sea gate", link: "Mill#Sea gate" }]);
  expect(parseLinks("[#3, #7-9]").filter((each) => each.kind === "citation").map((each) => each.text)).toEqual(["#3", "#7", "#9"]);
});

test("an incomplete name is completed in place", () => {
  const text = "see [[Ti and more";
  const query = findCompletion(text, 8);
  expect(query).toEqual({ kind: "link", query: "Ti", start: 4, end: 8 });
  expect(insertCompletion(text, query!, "Tide mill").text).toBe("see [[Tide mill]] and more");
  expect(insertCompletion("[[Ti]]", findCompletion("[[Ti]]", 4)!, "Tides").text).toBe("[[Tides]]");
  expect(insertCompletion("read @co", findCompletion("read @co", 8)!, "costs.csv").text).toBe("read @costs.csv ");
  expect(insertCompletion("@s", findCompletion("@s", 2)!, "survey/2025 survey.md").text).toBe('@"survey/2025 survey.md" ');
  expect([findCompletion("a@b", 3), findCompletion("[[done]] x", 10), findCompletion("plain", 5)]).toEqual([null, null, null]);
});

test("arguments are formatted even if they are not JSON", () => {
  expect(formatArguments('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect([formatArguments("{broken"), summarizeArguments("{broken"), summarizeArguments('{"q":"six weeks","n":3}')]).toEqual(["{broken", "{broken", "six weeks, 3"]);
});

test("a passage is located although its whitespace changed", () => {
  expect(locatePassage("one  two\nthree four", "two three")).toEqual({ before: "one  ", inside: "two\nthree", after: " four" });
  expect(locatePassage("one", "two")).toBeNull();
  expect(locatePassage("a (b) c", "(b)")?.inside).toBe("(b)");
  expect(locateSection("# A\nx\n## B\ny\n# C\nz", "b")?.inside).toBe("## B\ny\n");
});

test("front matter is stripped", () => {
  expect(stripFrontMatter("---\naliases: [a]\n---\n# A\n---\nb")).toBe("# A\n---\nb");
  expect(stripFrontMatter("# A\n---\nb\n---\n")).toBe("# A\n---\nb\n---\n");
});

test("settings accept values within their limits", () => {
  const number = parseFieldType({ name: "context_threshold", value: 0.85, default: 0.85, description: "", json_schema: { type: "number", exclusiveMinimum: 0, maximum: 1 } });
  expect([parseValue(number, "0.5"), parseValue(number, "2"), parseValue(number, ""), parseValue(number, "x")]).toEqual([0.5, undefined, undefined, undefined]);
  const limit = parseFieldType({ name: "context_limit", value: null, default: null, description: "", json_schema: { anyOf: [{ type: "integer", exclusiveMinimum: 0 }, { type: "null" }] } });
  expect([parseValue(limit, "8,192"), parseValue(limit, ""), parseValue(limit, "1.5")]).toEqual([8_192, null, undefined]);
  expect([formatLabel("recent_messages_to_keep"), formatLabel("context_threshold")]).toEqual(["Recent messages to keep", "Compact at"]);
});

test("a title is found by its words in any order", () => {
  expect([matchesTitle("The tide mill", "mill TIDE"), matchesTitle("The tide mill", "wind mill")]).toEqual([true, false]);
});

test("a location survives formatting and parsing", () => {
  const location = { conversation: "a b/ü", branch: 2, at: 12, panel: "context" as const, reply: 14, compare: 12, document: "x y.md", find: "old oak" };
  expect(parseHash(formatHash(location))).toEqual(location);
  expect(parseHash(formatHash({ ...location, branch: 0 })).branch).toBe(0);
  expect(parseHash("#/c/one").branch).toBeNull();
  expect(parseHash("#/c/%E0%A4%A&at=x").conversation).toBeNull();
  expect(parseHash("#/c/one?panel=nonsense&at=-1")).toMatchObject({ conversation: "one", panel: null, at: null });
});
