import { expect, test } from "vitest";

import { gist, pretty } from "../src/lib/calls";
import { completed, typedAt } from "../src/lib/complete";
import { ago, counted, grouped, percent, short } from "../src/lib/format";
import { pieces } from "../src/lib/links";
import { located, section, withoutFrontMatter } from "../src/lib/passage";
import { kindOf, valueOf, words } from "../src/lib/settings";
import { matches } from "../src/stores/conversations.svelte";
import { parsed, written } from "../src/stores/route.svelte";

test("numbers and times read as people say them", () => {
  expect([grouped(150_000), short(999), short(1_200), short(45_300), short(2_500_000)]).toEqual(["150,000", "999", "1.2k", "45k", "2.5M"]);
  expect([counted(1, "entry", "entries"), counted(2, "entry", "entries")]).toEqual(["1 entry", "2 entries"]);
  expect([percent(1, 1_000), percent(1, 4), percent(0, 4), percent(1, 0)]).toEqual(["< 1 %", "25 %", "0 %", "0 %"]);
  const now = 1_700_000_000_000;
  const at = (seconds: number) => ago((now - seconds * 1_000) * 1_000, now);
  expect([at(5), at(120), at(7_200), at(90_000)]).toEqual(["just now", "2 min ago", "2 h ago", "1 day ago"]);
});

test("citations and notes are found, and nothing else", () => {
  expect(pieces("See [#12] and [[Timber|wood]], not [12] or [x](y).")).toEqual([
    { kind: "text", text: "See " },
    { kind: "citation", text: "#12", seq: 12 },
    { kind: "text", text: " and " },
    { kind: "note", text: "wood", link: "Timber" },
    { kind: "text", text: ", not [12] or [x](y)." },
  ]);
  expect(pieces("[[Mill#Sea gate]]")).toEqual([{ kind: "note", text: "Mill › Sea gate", link: "Mill#Sea gate" }]);
  expect(pieces("[#3, #7-9]").filter((each) => each.kind === "citation").map((each) => each.text)).toEqual(["#3", "#7", "#9"]);
});

test("what is being typed is completed where it stands", () => {
  const text = "see [[Ti and more";
  const typed = typedAt(text, 8);
  expect(typed).toEqual({ kind: "link", query: "Ti", start: 4, end: 8 });
  expect(completed(text, typed!, "Tide mill").text).toBe("see [[Tide mill]] and more");
  expect(completed("[[Ti]]", typedAt("[[Ti]]", 4)!, "Tides").text).toBe("[[Tides]]");
  expect(completed("read @co", typedAt("read @co", 8)!, "costs.csv").text).toBe("read @costs.csv ");
  expect(completed("@s", typedAt("@s", 2)!, "survey/2025 survey.md").text).toBe('@"survey/2025 survey.md" ');
  expect([typedAt("a@b", 3), typedAt("[[done]] x", 10), typedAt("plain", 5)]).toEqual([null, null, null]);
});

test("arguments are shown whatever the model wrote", () => {
  expect(pretty('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect([pretty("{broken"), gist("{broken"), gist('{"q":"six weeks","n":3}')]).toEqual(["{broken", "{broken", "six weeks, 3"]);
});

test("a passage is found again though its blanks changed", () => {
  expect(located("one  two\nthree four", "two three")).toEqual({ before: "one  ", inside: "two\nthree", after: " four" });
  expect(located("one", "two")).toBeNull();
  expect(located("a (b) c", "(b)")?.inside).toBe("(b)");
  expect(section("# A\nx\n## B\ny\n# C\nz", "b")?.inside).toBe("## B\ny\n");
});

test("front matter is for programs, not for readers", () => {
  expect(withoutFrontMatter("---\naliases: [a]\n---\n# A\n---\nb")).toBe("# A\n---\nb");
  expect(withoutFrontMatter("# A\n---\nb\n---\n")).toBe("# A\n---\nb\n---\n");
});

test("settings take what their limits allow", () => {
  const number = kindOf({ name: "context_threshold", value: 0.85, default: 0.85, description: "", kind: { type: "number", exclusiveMinimum: 0, maximum: 1 } });
  expect([valueOf(number, "0.5"), valueOf(number, "2"), valueOf(number, ""), valueOf(number, "x")]).toEqual([0.5, undefined, undefined, undefined]);
  const limit = kindOf({ name: "context_limit", value: null, default: null, description: "", kind: { anyOf: [{ type: "integer", exclusiveMinimum: 0 }, { type: "null" }] } });
  expect([valueOf(limit, "8,192"), valueOf(limit, ""), valueOf(limit, "1.5")]).toEqual([8_192, null, undefined]);
  expect(words("recent_messages_to_keep")).toBe("Recent messages to keep");
});

test("a title is found by its words in any order", () => {
  expect([matches("The tide mill", "mill TIDE"), matches("The tide mill", "wind mill")]).toEqual([true, false]);
});

test("the address says where the page is, and back", () => {
  const place = { conversation: "a b/ü", branch: 2, at: 12, panel: "context" as const, reply: 14, document: "x y.md" };
  expect(parsed(written(place))).toEqual(place);
  expect(parsed("#/c/%E0%A4%A&at=x").conversation).toBeNull();
  expect(parsed("#/c/one?panel=nonsense&at=-1")).toMatchObject({ conversation: "one", panel: null, at: null });
});
