import { expect, test } from "vitest";

import { matchBlockFormula, matchInlineFormula } from "../src/lib/formulas";

test.each([
  ["$a^2 + b^2$ holds", "a^2 + b^2"],
  ["$x$, and", "x"],
  ["\\(\\frac{1}{2}\\) of it", "\\frac{1}{2}"],
  ["$$e^x$$ in a line", "e^x"],
  ["$5 and $6", undefined],
  ["$5, or 6$ more", "5, or 6"],
  ["$ x$", undefined],
  ["$x$2", undefined],
  ["$$", undefined],
])("%j within a line", (text, tex) => {
  expect(matchInlineFormula(text)?.tex).toBe(tex);
});

test.each([
  ["$$\n\\sum_{i=1}^n i\n$$\nNext", "\\sum_{i=1}^n i", "\nNext"],
  ["\\[ a = b \\]\nNext", "a = b", "Next"],
  ["$$ a $$ and more", undefined, undefined],
  ["text", undefined, undefined],
])("%j as a block", (text, tex, rest) => {
  const formula = matchBlockFormula(text);
  expect(formula?.tex).toBe(tex);
  if (formula && rest) expect(text.slice(formula.raw.length).trim()).toBe(rest.trim());
});

test("a text full of dollars is matched in linear time", () => {
  const text = "$a ".repeat(3_000);
  const start = performance.now();
  for (let at = 0; at < text.length; at += 3) matchInlineFormula(text.slice(at, at + 10_000));
  expect(performance.now() - start).toBeLessThan(5_000);
});
