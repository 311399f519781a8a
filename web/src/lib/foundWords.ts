/** Marks the words of a search in an opened message, without a change of its content (CSS custom highlights). */

const HIGHLIGHT = "found-words";
/** Shorter words are in every sentence. */
const MIN_WORD_CHARS = 3;

/** Ranges of the words in the texts of an element, whatever their case. */
export function markWords(element: Element, query: string): void {
  const words = query.toLowerCase().match(/[\p{L}\p{N}_]+/gu)?.filter((word) => word.length >= MIN_WORD_CHARS) ?? [];
  const ranges: Range[] = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent?.toLowerCase() ?? "";
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(texts.currentNode, at);
        range.setEnd(texts.currentNode, at + word.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights?.set(HIGHLIGHT, new Highlight(...ranges));
}

export function clearMarks(): void {
  CSS.highlights?.delete(HIGHLIGHT);
}
