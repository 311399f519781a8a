/** Every text of the page is in the catalogues of messages: components contain no words of their own. */

import { parse } from "svelte/compiler";
import { expect, test } from "vitest";

const SOURCES = import.meta.glob<string>(["../src/**/*.{svelte,ts}", "!../src/i18n/**", "!../src/api/schema.d.ts"], {
  query: "?raw",
  import: "default",
  eager: true,
});
/** Attributes and properties of components that are displayed or read out. */
const TEXT_ATTRIBUTES = new Set(["alt", "aria-description", "aria-label", "aria-roledescription", "headline", "label", "placeholder", "title"]);
/** Names that are the same in every language, and a sample of a key. */
const NAMES = new Set(["Quire", "Alt", "Esc", "K", "quire_…"]);

type Node = { type: string; [field: string]: unknown };

const isNode = (value: unknown): value is Node => typeof value === "object" && value !== null && typeof (value as Node).type === "string";
const hasWords = (text: string) => /\p{L}/u.test(text) && !NAMES.has(text.trim());

/** Texts in an expression that are displayed as they are; arguments of calls and operands of comparisons are not. */
function listStrings(node: unknown): string[] {
  if (Array.isArray(node)) return node.flatMap(listStrings);
  if (!isNode(node) || ["BinaryExpression", "CallExpression", "MemberExpression"].includes(node.type)) return [];
  if (node.type === "Literal") return typeof node.value === "string" ? [node.value] : [];
  if (node.type === "TemplateElement") return [(node.value as { cooked: string }).cooked];
  if (node.type === "ConditionalExpression") return [...listStrings(node.consequent), ...listStrings(node.alternate)];
  return Object.values(node).flatMap(listStrings);
}

/** Words in the markup of a component: text nodes, displayed expressions, and attributes that are read out. */
function listLiterals(node: unknown): string[] {
  if (Array.isArray(node)) return node.flatMap(listLiterals);
  if (!isNode(node)) return [];
  if (node.type === "StyleDirective") return [];
  if (node.type === "Attribute") return TEXT_ATTRIBUTES.has(node.name as string) ? listAttributeTexts(node.value) : [];
  if (node.type === "Text") return [node.data as string];
  if (node.type === "ExpressionTag") return listStrings(node.expression);
  return Object.values(node).flatMap(listLiterals);
}

function listAttributeTexts(value: unknown): string[] {
  return (Array.isArray(value) ? value : [value]).flatMap((each) => {
    if (!isNode(each)) return [];
    return each.type === "Text" ? [each.data as string] : listStrings(each.expression);
  });
}

const sources = Object.entries(SOURCES);

test("the sources are found", () => expect(sources.length).toBeGreaterThan(100));

test.each(sources.filter(([path]) => path.endsWith(".svelte")))("%s has no words outside the catalogue", (_, source) => {
  expect(listLiterals(parse(source, { modern: true }).fragment).filter(hasWords)).toEqual([]);
});

/** A string that reads like a sentence or a label: a capital letter, and more than one word. */
const SENTENCE = /(["'`])[A-Z][a-z]+ [a-z][^"'`\n]*\1/g;
const COMMENT = /\/\*[\s\S]*?\*\/|\/\/.*|<!--[\s\S]*?-->/g;

test.each(sources)("%s has no sentences in its script", (_, source) => {
  expect(source.replace(COMMENT, "").match(SENTENCE) ?? []).toEqual([]);
});
