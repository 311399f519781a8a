/**
 * Renders Markdown to a DOM fragment: `marked` makes HTML, DOMPurify sanitizes it, so that it can neither load, run nor
 * style anything. HTML in the source is displayed as text, because a transcript quotes messages verbatim. Links to notes
 * and citations become buttons with the page's handlers.
 */

import DOMPurify from "dompurify";
import { Marked, type TokenizerAndRendererExtension } from "marked";

import { messages } from "./messages";
import { matchBlockFormula, matchInlineFormula } from "./formulas";
import { parseLinks, type LinkPiece } from "./links";

/** How far the start of the next formula is searched at each token, so that a long text takes linear time. */
const MAX_LOOKAHEAD_CHARS = 5_000;

/** TeX source becomes code of the class `math`, which `decorate` typesets. */
const formulas: TokenizerAndRendererExtension[] = [
  {
    name: "blockFormula",
    level: "block",
    start: (text) => text.slice(0, MAX_LOOKAHEAD_CHARS).match(/^(?:\$\$|\\\[)/m)?.index,
    tokenizer: (text) => createFormulaToken("blockFormula", matchBlockFormula(text)),
    renderer: ({ text }) => `<p><code class="math display">${escapeHtml(text as string)}</code></p>`,
  },
  {
    name: "inlineFormula",
    level: "inline",
    start: (text) => text.slice(0, MAX_LOOKAHEAD_CHARS).match(/\$|\\\(/)?.index,
    tokenizer: (text) => createFormulaToken("inlineFormula", matchInlineFormula(text)),
    renderer: ({ text }) => `<code class="math">${escapeHtml(text as string)}</code>`,
  },
];

function createFormulaToken(type: string, match: { raw: string; tex: string } | null) {
  return match ? { type, raw: match.raw, text: match.tex } : undefined;
}

const marked = new Marked({
  gfm: true,
  async: false,
  extensions: formulas,
  renderer: { html: ({ text }) => (/^<br\s*\/?>\s*$/i.test(text) ? "<br>" : escapeHtml(text)) },
});

function escapeHtml(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const ALLOWED_TAGS = [
  "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "input", "kbd",
  "li", "ol", "p", "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
];

/** How long a button says that its code was copied. */
const COPIED_MS = 1_500;

export interface LinkHandlers {
  /** Called for [#12]. */
  openEntry?: (seq: number) => void;
  /** Called for [[note]]. */
  openNote?: (link: string) => void;
}

export function renderMarkdown(text: string, handlers: LinkHandlers = {}): DocumentFragment {
  const fragment = DOMPurify.sanitize(marked.parse(text) as string, {
    ALLOWED_TAGS,
    ALLOWED_ATTR: ["href", "alt", "class", "src", "title", "align", "start", "type", "checked", "disabled"],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
    // Without this, DOMPurify compares these values with addresses, too, and drops them.
    ADD_URI_SAFE_ATTR: ["align", "start", "type"],
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  fragment.querySelectorAll("[class]").forEach(cleanClass);
  fragment.querySelectorAll("img").forEach(replaceImage);
  fragment.querySelectorAll("input").forEach(replaceCheckbox);
  fragment.querySelectorAll("a").forEach(openInNewTab);
  fragment.querySelectorAll("pre, table").forEach(wrapScrollable);
  fragment.querySelectorAll("h1, h2, h3, h4, h5, h6").forEach(replaceHeading);
  replaceLinks(fragment, handlers);
  return fragment;
}

/** Classes of code: its language, or that it is a formula. A message sets no other class. */
const CODE_CLASS = /^(?:language-[\w+#.-]{1,30}|math(?: display)?)$/;

function cleanClass(element: Element): void {
  if (element.localName !== "code" || !CODE_CLASS.test(element.className)) element.removeAttribute("class");
  else if (element.className === "language-math") element.className = "math display";
}

/** Typesets formulas and colours code; the libraries for it are loaded when they are first needed. */
export async function decorate(root: Element): Promise<void> {
  const formulaNodes = root.querySelectorAll("code.math");
  const codeBlocks = root.querySelectorAll("pre code[class^='language-']");
  if (formulaNodes.length) {
    const { typesetFormula } = await import("./maths");
    formulaNodes.forEach(typesetFormula);
  }
  if (codeBlocks.length) {
    const { highlightBlock } = await import("./highlighting");
    codeBlocks.forEach(highlightBlock);
    const { addPreview } = await import("./preview");
    codeBlocks.forEach(addPreview);
  }
}

/** Renders text as it is written; only links to notes and citations become buttons. */
export function renderLinks(text: string, handlers: LinkHandlers = {}): DocumentFragment {
  const fragment = document.createDocumentFragment();
  fragment.append(...parseLinks(text).map((piece) => createNode(piece, handlers)));
  return fragment;
}

/** Replaces an image by a link: loading it would reveal to its server that the message was read. */
function replaceImage(image: HTMLImageElement): void {
  const source = image.getAttribute("src");
  const link = document.createElement(source ? "a" : "span");
  if (source) link.setAttribute("href", source);
  link.textContent = messages.pictureLink(image.alt || source || "without a source");
  image.replaceWith(link);
}

function replaceCheckbox(input: HTMLInputElement): void {
  const box = document.createElement("span");
  box.textContent = input.checked ? "☑ " : "☐ ";
  input.replaceWith(box);
}

function openInNewTab(link: HTMLAnchorElement): void {
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
}

/** Wraps a block in a scrollable frame that takes the keyboard focus. */
function wrapScrollable(block: Element): void {
  const frame = document.createElement("div");
  frame.className = "scrolls";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", block.localName === "pre" ? "Code" : "Table");
  block.replaceWith(frame);
  frame.append(block);
  if (block.localName === "pre") frame.before(createCopyButton(block));
}

/** A button before a code block that copies its text. */
function createCopyButton(block: Element): HTMLElement {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the code");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent ?? "");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  });
  return button;
}

/** Replaces a heading by a styled paragraph, so that messages do not change the page's outline. */
function replaceHeading(heading: Element): void {
  const block = document.createElement("p");
  block.className = `heading ${heading.localName}`;
  block.append(...heading.childNodes);
  heading.replaceWith(block);
}

function replaceLinks(fragment: DocumentFragment, handlers: LinkHandlers): void {
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeValue?.includes("[") && !node.parentElement?.closest("a, code, pre")) texts.push(node as Text);
  }
  for (const text of texts) text.replaceWith(...parseLinks(text.data).map((piece) => createNode(piece, handlers)));
}

function createNode(piece: LinkPiece, handlers: LinkHandlers): Node {
  if (piece.kind === "text") return document.createTextNode(piece.text);
  const button = document.createElement("button");
  button.type = "button";
  button.className = piece.kind;
  button.textContent = piece.text;
  if (piece.kind === "citation") {
    button.title = messages.goToMessage(piece.text);
    button.addEventListener("click", () => handlers.openEntry?.(piece.seq));
  } else {
    button.title = messages.openNote(piece.link);
    button.addEventListener("click", () => handlers.openNote?.(piece.link));
  }
  return button;
}
