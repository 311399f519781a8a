/**
 * Previews of HTML and SVG that a message contains, in a frame with an origin of its own. The frame removes what runs or
 * leads elsewhere, and its policy allows neither scripts of the text nor the network (`/preview` in `quire.server.page`).
 */

/** Adds a button to a code block of HTML or SVG that opens and closes its preview. */
export function addPreview(code: Element): void {
  const text = code.textContent ?? "";
  const isDrawing = /^\s*(?:<\?xml[^>]*>\s*)?<svg[\s>]/.test(text);
  const block = code.closest(".scrolls");
  if (!block || !(isDrawing || code.classList.contains("language-html"))) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.textContent = "Preview";
  button.setAttribute("aria-expanded", "false");
  let frame: HTMLIFrameElement | null = null;
  button.addEventListener("click", () => {
    if (frame) frame.remove();
    frame = frame ? null : createFrame(text);
    if (frame) block.after(frame);
    button.setAttribute("aria-expanded", String(frame !== null));
  });
  block.before(button);
}

function createFrame(text: string): HTMLIFrameElement {
  const frame = document.createElement("iframe");
  frame.className = "preview";
  frame.title = "Preview of the code above";
  // Not `allow-same-origin`: the frame reads nothing of the page, and has no cookies.
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = "preview";
  frame.addEventListener("load", () => frame.contentWindow?.postMessage(text, "*"), { once: true });
  return frame;
}
