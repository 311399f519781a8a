import { expect, test } from "vitest";
import { splitExcerpt, type ExcerptPiece } from "../src/lib/highlights";

const mark = (pieces: ExcerptPiece[]): string => pieces.map((each) => (each.marked ? `[${each.text}]` : each.text)).join("");

test("highlights are marked", () => {
  expect(mark(splitExcerpt("The gannets nest here.", [[4, 11], [12, 16]], 100))).toBe("The [gannets] [nest] here.");
  expect(mark(splitExcerpt("No match.", [], 100))).toBe("No match.");
  expect(splitExcerpt("", [], 100)).toEqual([]);
});

test("spans count code points, not UTF-16 code units", () => {
  expect(mark(splitExcerpt("🦜🦜 parrot 🦜", [[3, 9]], 100))).toBe("🦜🦜 [parrot] 🦜");
});

test("a long excerpt is cut around its first highlight", () => {
  const text = `${"a ".repeat(100)}gannet${" b".repeat(100)}`;
  const shown = mark(splitExcerpt(text, [[200, 206]], 60));
  expect(shown).toBe(`…${"a ".repeat(15)}[gannet]${" b".repeat(12)}…`);
  expect(mark(splitExcerpt(text, [[200, 206]], 32))).toMatch(/\[ga\]…$/);
});

test("a cut does not divide a word", () => {
  const text = "The surveyor of the harbour board found less silt than the charts of the former century had promised.";
  expect(mark(splitExcerpt(text, [[45, 49]], 60))).toBe("…the harbour board found less [silt] than the charts of the…");
});

test("without a highlight the beginning is shown", () => {
  expect(mark(splitExcerpt("a".repeat(50), [], 20))).toBe(`${"a".repeat(20)}…`);
});
