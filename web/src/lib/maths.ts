/** Typesets TeX as MathML. Loaded when a message first has a formula. */

import DOMPurify from "dompurify";
import temml from "temml";

const MAX_TEX_CHARS = 10_000;
const MAX_EXPANSIONS = 200;

/** Replaces the TeX source in `code` by MathML; source with an error stays as it is. */
export function typesetFormula(code: Element): void {
  const tex = code.textContent ?? "";
  if (tex.length > MAX_TEX_CHARS) return;
  const displayMode = code.classList.contains("display");
  let markup: string;
  try {
    markup = temml.renderToString(tex, { displayMode, throwOnError: true, maxExpand: MAX_EXPANSIONS, annotate: true });
  } catch {
    return;
  }
  // Style attributes are removed from the text: the page's policy refuses them as soon as it is parsed.
  const formula = DOMPurify.sanitize(markup.replace(/ style="[^"]*"/g, ""), {
    USE_PROFILES: { mathMl: true },
    ADD_TAGS: ["semantics", "annotation"],
    FORBID_ATTR: ["style", "href", "id"],
    RETURN_DOM_FRAGMENT: true,
  });
  if (formula.querySelector("math")) code.replaceWith(formula);
}
