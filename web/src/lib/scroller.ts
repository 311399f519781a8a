/**
 * Scroll anchoring of the virtual list: the reading position stays stable while pages are loaded, rendered and measured.
 * The anchor is the end of the list, the entry to scroll to, or the first visible entry.
 */

import type { Geometry } from "./geometry";

type Anchor = { seq: number; offset: number } | { page: number; fraction: number };

/** Distance from the end within which the list follows new entries. */
const NEAR_END_PX = 48;
/** Distance of the target entry from the upper edge. */
const TARGET_OFFSET_PX = 72;

export class Scroller {
  readonly box: HTMLElement;
  readonly #geometry: Geometry;
  /** Whether the list follows its end as entries are appended. */
  followsEnd = true;
  #targetSeq: number | null = null;
  #anchor: Anchor | null = null;
  #lastScrollTop = 0;

  constructor(box: HTMLElement, geometry: Geometry) {
    this.box = box;
    this.#geometry = geometry;
  }

  /** First and last page to render: the visible ones, and as much again before and after. */
  visiblePages(): [number, number] {
    const { scrollTop, clientHeight } = this.box;
    const { pageCount, totalHeight } = this.#geometry;
    if (this.#targetSeq !== null) {
      // Folded steps make a page of a few lines: as many pages as fill the box, and at least one before and after.
      const page = this.#geometry.pageOf(this.#targetSeq);
      const [top, bottom] = [this.#geometry.topOf(page), this.#geometry.topOf(page + 1)];
      const [first, last] = this.#geometry.pagesBetween(top - clientHeight, bottom + clientHeight);
      return [Math.max(0, Math.min(first, page - 1)), Math.min(pageCount - 1, Math.max(last, page + 1))];
    }
    if (this.followsEnd) return [this.#geometry.pageAt(Math.max(0, totalHeight - 2 * clientHeight)), pageCount - 1];
    return this.#geometry.pagesBetween(scrollTop - clientHeight, scrollTop + 2 * clientHeight);
  }

  /** Drops the target entry, because the reader has started to scroll. */
  releaseTarget(): void {
    this.#targetSeq = null;
  }

  /** Handles a scroll event. */
  handleScroll(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.box;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (isAtEnd) this.followsEnd = true;
    else if (scrollTop < this.#lastScrollTop - 1) this.followsEnd = false;
    this.#lastScrollTop = scrollTop;
    this.updateAnchor();
  }

  /** Anchors to the first visible entry; called after other pages were rendered. */
  updateAnchor(): void {
    if (this.#targetSeq === null && !this.followsEnd) this.#anchor = this.#findAnchor();
  }

  scrollTo(seq: number): void {
    this.#targetSeq = seq;
    this.followsEnd = false;
    this.box.scrollTop = this.#geometry.topOf(this.#geometry.pageOf(seq));
    this.restorePosition();
  }

  scrollToEnd(): void {
    this.#targetSeq = null;
    this.followsEnd = true;
    this.restorePosition();
  }

  /** Restores the anchor's position after the layout has changed. */
  restorePosition(): void {
    const { box } = this;
    // The reader may have scrolled, with the scroll event still to come.
    if (Math.abs(box.scrollTop - this.#lastScrollTop) > 1) this.handleScroll();
    if (this.#targetSeq !== null) {
      const entry = this.findEntry(this.#targetSeq);
      if (entry) box.scrollTop += this.#offsetOf(entry) - TARGET_OFFSET_PX;
    } else if (this.followsEnd) box.scrollTop = box.scrollHeight;
    else if (this.#anchor) this.#restoreAnchor(this.#anchor);
    this.#lastScrollTop = box.scrollTop;
  }

  /** Returns the target's number once it is rendered, and makes it the anchor. */
  reachTarget(): number | null {
    const target = this.#targetSeq;
    const entry = target === null ? null : this.findEntry(target);
    if (target === null || !entry) return null;
    this.#anchor = { seq: target, offset: this.#offsetOf(entry) };
    return target;
  }

  findEntry(seq: number): HTMLElement | null {
    return this.box.querySelector<HTMLElement>(`[data-seq="${seq}"]`);
  }

  #offsetOf(element: Element): number {
    return element.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
  }

  #restoreAnchor(anchor: Anchor): void {
    if ("seq" in anchor) {
      const entry = this.findEntry(anchor.seq);
      if (entry) this.box.scrollTop += this.#offsetOf(entry) - anchor.offset;
      return;
    }
    const page = this.box.querySelector(`[data-page="${anchor.page}"]`);
    if (page) this.box.scrollTop += this.#offsetOf(page) + anchor.fraction * page.getBoundingClientRect().height;
  }

  #findAnchor(): Anchor | null {
    const { top, bottom } = this.box.getBoundingClientRect();
    for (const page of this.box.querySelectorAll<HTMLElement>("[data-page]")) {
      const pageRect = page.getBoundingClientRect();
      if (pageRect.bottom <= top) continue;
      // After a jump, no rendered page is visible yet, so there is no anchor.
      if (pageRect.top >= bottom) return null;
      for (const entry of page.querySelectorAll<HTMLElement>("[data-seq]")) {
        const rect = entry.getBoundingClientRect();
        if (rect.bottom > top) return { seq: Number(entry.dataset.seq), offset: rect.top - top };
      }
      return { page: Number(page.dataset.page), fraction: Math.max(0, top - pageRect.top) / Math.max(1, pageRect.height) };
    }
    return null;
  }
}
