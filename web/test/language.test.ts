import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { de } from "../src/i18n/de";
import { en } from "../src/i18n/en";
import { language, matchLanguage, t } from "../src/i18n/language.svelte";
import { formatBytes, formatCompact, formatDollars, formatDuration, formatMessageTime, formatNumber } from "../src/lib/format";
import { formatValue, parseFieldType, parseValue } from "../src/lib/settings";

beforeEach(() => {
  vi.stubGlobal("localStorage", { getItem: () => null, setItem: () => undefined });
  vi.stubGlobal("document", { documentElement: { lang: "" } });
});
afterEach(async () => {
  await language.select("en");
  vi.unstubAllGlobals();
});

test("the page speaks the first of the browser's languages that it knows", () => {
  expect([matchLanguage(["fr-FR", "de-CH", "en"]), matchLanguage(["EN-gb", "de"]), matchLanguage(["fr"]), matchLanguage([])]).toEqual(["de", "en", "en", "en"]);
});

test("messages, plurals, numbers and prices are those of the language", async () => {
  const read = () => [t("messagesArchived", 1), t("messagesArchived", 1_200), formatNumber(150_000), formatCompact(1_200), formatDollars(1.5), formatBytes(2_500_000)];
  expect(read()).toEqual(["1 message archived", "1,200 messages archived", "150,000", "1.2k", "$1.50", "2.5 MB"]);
  await language.select("de");
  expect(document.documentElement.lang).toBe("de");
  expect(read()).toEqual(["1 Nachricht archiviert", "1.200 Nachrichten archiviert", "150.000", "1,2 Tsd.", "1,50\u00a0$", "2,5 MB"]);
});

test("a number in a field means what its language says, or nothing", async () => {
  const spend = parseFieldType({ name: "max_spend", value: null, default: null, description: "", json_schema: { type: "number", minimum: 0 } });
  const parse = (...texts: string[]) => texts.map((text) => parseValue(spend, text));
  expect(parse("0.6", "1,000", "1,000.5", "0,6", "0,125", "1.2.3", "1e")).toEqual([0.6, 1_000, 1_000.5, undefined, undefined, undefined, undefined]);
  expect([formatValue(0.85), formatValue(120_000), formatValue(null)]).toEqual(["0.85", "120000", ""]);
  await language.select("de");
  expect(parse("0,6", "1.000", "1.000,5", "0.125", "1,2,3", "1.00")).toEqual([0.6, 1_000, 1_000.5, 0.125, undefined, 1]);
  expect([formatValue(0.85), parseValue(spend, formatValue(0.85))]).toEqual(["0,85", 0.85]);
});

test("a time has its date unless it is of today, and durations have two units at most", async () => {
  const at = (...parts: [number, number, number, number, number]) => new Date(...parts).getTime();
  const now = at(2026, 10, 18, 15, 0);
  const read = () => [at(2026, 10, 18, 0, 5), at(2026, 8, 3, 14, 5), at(2025, 11, 31, 14, 5)].map((time) => formatMessageTime(time * 1_000, now));
  vi.stubGlobal("navigator", { languages: ["en-US"] });
  await language.select("en");
  expect(read().map((each) => each.replace("\u202f", " "))).toEqual(["12:05 AM", "Sep 3, 2:05 PM", "Dec 31, 2025, 2:05 PM"]);
  vi.stubGlobal("navigator", { languages: ["en-GB", "de-DE"] });
  await language.select("de");
  expect(read()).toEqual(["00:05", "3. Sept., 14:05", "31. Dez. 2025, 14:05"]);
  expect([400, 9_960, 42_400, 200_000, 180_000, 7_500_000].map(formatDuration)).toEqual(["0,4 s", "10 s", "42 s", "3 min 20 s", "3 min", "2 h 5 min"]);
});

/** Calls every message with figures, so that a message that fails for one of its values is found. */
function listTexts(catalogue: object): string[] {
  return Object.values(catalogue).flatMap((message: unknown) => {
    if (typeof message === "function") return [1, 2].map((value) => String((message as (...values: number[]) => string)(value, value, value, value, value)));
    return typeof message === "string" ? [message] : listTexts(message as object);
  });
}

test("no message is empty, and each has the places of its English one", () => {
  const places = (text: string) => [...text.matchAll(/\{\w+\}/g)].map(([place]) => place).sort();
  for (const key of Object.keys(en) as (keyof typeof en)[]) {
    const [english, german] = [en[key], de[key]];
    if (typeof english === "string" && typeof german === "string") expect(places(german), key).toEqual(places(english));
  }
  for (const text of [...listTexts(en), ...listTexts(de)]) expect(text).toMatch(/\S/);
  expect(listTexts(de).filter((text) => text.includes("undefined"))).toEqual([]);
});
