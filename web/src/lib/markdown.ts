/**
 * Markdown as a fragment of the page. It is made into HTML by `marked` and cleaned by DOMPurify; nothing in it can load
 * anything, run anything or style anything. HTML in it is shown as it was written, since a transcript shows what was
 * said. Links to notes and citations become buttons that the page answers.
 */

import DOMPurify from "dompurify";
import { Marked } from "marked";

import { pieces } from "./links";

const marked = new Marked({
  gfm: true,
  async: false,
  renderer: { html: ({ text }) => (/^<br\s*\/?>\s*$/i.test(text) ? "<br>" : escaped(text)) },
});

function escaped(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const TAGS = [
  "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "input", "kbd",
  "li", "ol", "p", "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
];

export interface Marks {
  /** Called for [#12]. */
  cite?: (seq: number) => void;
  /** Called for [[note]]. */
  open?: (link: string) => void;
}

export function rendered(text: string, marks: Marks = {}): DocumentFragment {
  const fragment = DOMPurify.sanitize(marked.parse(text) as string, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "alt", "src", "title", "align", "start", "type", "checked", "disabled"],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  fragment.querySelectorAll("img").forEach(pictureAsLink);
  fragment.querySelectorAll("input").forEach(asCheckbox);
  fragment.querySelectorAll("a").forEach(leadAway);
  fragment.querySelectorAll("pre, table").forEach(letScroll);
  fragment.querySelectorAll("h1, h2, h3, h4, h5, h6").forEach(lower);
  linkMarks(fragment, marks);
  return fragment;
}

/** A picture from elsewhere would tell elsewhere that it was looked at. */
function pictureAsLink(picture: HTMLImageElement): void {
  const source = picture.getAttribute("src");
  const link = document.createElement(source ? "a" : "span");
  if (source) link.setAttribute("href", source);
  link.textContent = `Picture: ${picture.alt || source || "without a source"}`;
  picture.replaceWith(link);
}

function asCheckbox(input: HTMLInputElement): void {
  const box = document.createElement("span");
  box.textContent = input.checked ? "☑ " : "☐ ";
  input.replaceWith(box);
}

function leadAway(link: HTMLAnchorElement): void {
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
}

/** What scrolls must be reachable with the keyboard. */
function letScroll(block: Element): void {
  const frame = document.createElement("div");
  frame.className = "scrolls";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", block.localName === "pre" ? "Code" : "Table");
  block.replaceWith(frame);
  frame.append(block);
}

/** A message's headings stand below the page's own, and have no say in its outline. */
function lower(heading: Element): void {
  const block = document.createElement("p");
  block.className = `heading ${heading.localName}`;
  block.append(...heading.childNodes);
  heading.replaceWith(block);
}

function linkMarks(fragment: DocumentFragment, marks: Marks): void {
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeValue?.includes("[") && !node.parentElement?.closest("a, code, pre")) texts.push(node as Text);
  }
  for (const text of texts) text.replaceWith(...pieces(text.data).map((piece) => marked_(piece, marks)));
}

function marked_(piece: ReturnType<typeof pieces>[number], marks: Marks): Node {
  if (piece.kind === "text") return document.createTextNode(piece.text);
  const button = document.createElement("button");
  button.type = "button";
  button.className = piece.kind;
  button.textContent = piece.text;
  if (piece.kind === "citation") {
    button.title = `Go to message ${piece.text}`;
    button.addEventListener("click", () => marks.cite?.(piece.seq));
  } else {
    button.title = `Open ${piece.link}`;
    button.addEventListener("click", () => marks.open?.(piece.link));
  }
  return button;
}
