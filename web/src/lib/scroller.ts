/**
 * Keeps a long list still while its parts are loaded, drawn and measured. What the reader looks at stays where it is:
 * the newest entry at the bottom, an entry that was asked for, or else the first that is in sight.
 */

import type { Geometry } from "./geometry";

type Anchor = { seq: number; offset: number } | { page: number; part: number };

const NEAR_END = 48;
/** Where an entry that was asked for comes to stand, from the upper edge. */
const LANDING = 72;

export class Scroller {
  readonly box: HTMLElement;
  readonly #geometry: Geometry;
  stuck = true;
  #goal: number | null = null;
  #anchor: Anchor | null = null;
  #last = 0;

  constructor(box: HTMLElement, geometry: Geometry) {
    this.box = box;
    this.#geometry = geometry;
  }

  /** The pages to draw: what is in sight, and as much again before and after. */
  range(): [number, number] {
    const { scrollTop, clientHeight } = this.box;
    if (this.#goal !== null) {
      const page = this.#geometry.page(this.#goal);
      return [Math.max(0, page - 1), Math.min(this.#geometry.pages - 1, page + 1)];
    }
    const pages = this.#geometry.pages;
    if (this.stuck) return [this.#geometry.at(Math.max(0, this.#geometry.total - 2 * clientHeight)), pages - 1];
    return this.#geometry.between(scrollTop - clientHeight, scrollTop + 2 * clientHeight);
  }

  /** The reader takes over: what was asked for no longer counts. */
  released(): void {
    this.#goal = null;
  }

  /** To be called on every scroll event. */
  scrolled(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.box;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
    if (atEnd) this.stuck = true;
    else if (scrollTop < this.#last - 1) this.stuck = false;
    this.#last = scrollTop;
    this.drawn();
  }

  /** Other pages are drawn: what is in sight now is what is to be kept in place. */
  drawn(): void {
    if (this.#goal === null && !this.stuck) this.#anchor = this.#seen();
  }

  goTo(seq: number): void {
    this.#goal = seq;
    this.stuck = false;
    this.box.scrollTop = this.#geometry.top(this.#geometry.page(seq));
    this.settle();
  }

  toEnd(): void {
    this.#goal = null;
    this.stuck = true;
    this.settle();
  }

  /** Puts things back in their place after something changed its size. */
  settle(): void {
    const { box } = this;
    // The reader may have moved, and the event that says so not have come yet.
    if (Math.abs(box.scrollTop - this.#last) > 1) this.scrolled();
    if (this.#goal !== null) {
      const entry = this.entry(this.#goal);
      if (entry) box.scrollTop += this.#offset(entry) - LANDING;
    } else if (this.stuck) box.scrollTop = box.scrollHeight;
    else if (this.#anchor) this.#hold(this.#anchor);
    this.#last = box.scrollTop;
  }

  /** Whether the entry that was asked for is there; from then on it is like any other. */
  arrived(): number | null {
    const goal = this.#goal;
    const entry = goal === null ? null : this.entry(goal);
    if (goal === null || !entry) return null;
    this.#anchor = { seq: goal, offset: this.#offset(entry) };
    return goal;
  }

  entry(seq: number): HTMLElement | null {
    return this.box.querySelector<HTMLElement>(`[data-seq="${seq}"]`);
  }

  #offset(element: Element): number {
    return element.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
  }

  #hold(anchor: Anchor): void {
    if ("seq" in anchor) {
      const entry = this.entry(anchor.seq);
      if (entry) this.box.scrollTop += this.#offset(entry) - anchor.offset;
      return;
    }
    const page = this.box.querySelector(`[data-page="${anchor.page}"]`);
    if (page) this.box.scrollTop += this.#offset(page) + anchor.part * page.getBoundingClientRect().height;
  }

  #seen(): Anchor | null {
    const { top, bottom } = this.box.getBoundingClientRect();
    for (const page of this.box.querySelectorAll<HTMLElement>("[data-page]")) {
      const own = page.getBoundingClientRect();
      if (own.bottom <= top) continue;
      // After a leap nothing in sight is drawn yet; there is nothing to hold on to.
      if (own.top >= bottom) return null;
      for (const entry of page.querySelectorAll<HTMLElement>("[data-seq]")) {
        const place = entry.getBoundingClientRect();
        if (place.bottom > top) return { seq: Number(entry.dataset.seq), offset: place.top - top };
      }
      return { page: Number(page.dataset.page), part: Math.max(0, top - own.top) / Math.max(1, own.height) };
    }
    return null;
  }
}
