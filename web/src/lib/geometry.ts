/**
 * Geometry of the virtual list: heights and offsets of its pages. Entries are numbered from 1 and divided into pages of
 * equal size. A rendered page has its measured height, every other page an estimate.
 */

/** Browsers fail on taller elements; the estimate for pages never rendered shrinks where a list would exceed this. */
export const MAX_LIST_HEIGHT_PX = 8_000_000;

/** Estimated height of an entry before enough entries have been measured. */
const DEFAULT_ENTRY_HEIGHT_PX = 120;
const MIN_ENTRY_HEIGHT_PX = 8;

export class Geometry {
  readonly pageSize: number;
  #heights = new Map<number, number>();
  #head = 0;
  #measuredHeight = 0;
  #measuredEntries = 0;

  constructor(pageSize: number) {
    this.pageSize = pageSize;
  }

  get head(): number {
    return this.#head;
  }

  set head(value: number) {
    // The last page gets more entries, so its measured height is out of date.
    if (value !== this.#head && this.pageCount > 0) this.#forget(this.pageCount - 1);
    this.#head = value;
  }

  get pageCount(): number {
    return Math.ceil(this.#head / this.pageSize);
  }

  /** The page that contains an entry. */
  pageOf(seq: number): number {
    return Math.floor((Math.min(Math.max(seq, 1), Math.max(this.#head, 1)) - 1) / this.pageSize);
  }

  /** First and last entry of a page. */
  spanOf(page: number): [number, number] {
    return [page * this.pageSize + 1, Math.min((page + 1) * this.pageSize, this.#head)];
  }

  /** Stores a page's measured height; returns the difference from the previous height. */
  measure(page: number, height: number): number {
    const previous = this.heightOf(page);
    this.#forget(page);
    const [first, last] = this.spanOf(page);
    this.#heights.set(page, height);
    this.#measuredHeight += height;
    this.#measuredEntries += last - first + 1;
    return height - previous;
  }

  #forget(page: number): void {
    const height = this.#heights.get(page);
    if (height === undefined) return;
    const [first, last] = this.spanOf(page);
    this.#heights.delete(page);
    this.#measuredHeight -= height;
    this.#measuredEntries -= last - first + 1;
  }

  heightOf(page: number): number {
    const height = this.#heights.get(page);
    if (height !== undefined) return height;
    const [first, last] = this.spanOf(page);
    return (last - first + 1) * this.#estimateEntryHeight();
  }

  /** Mean height of the measured entries once half a page was measured, before that a default. */
  #estimateEntryHeight(): number {
    const hasEnough = this.#measuredEntries >= this.pageSize / 2;
    const mean = hasEnough ? this.#measuredHeight / this.#measuredEntries : DEFAULT_ENTRY_HEIGHT_PX;
    return Math.max(MIN_ENTRY_HEIGHT_PX, Math.min(mean, MAX_LIST_HEIGHT_PX / Math.max(1, this.#head)));
  }

  /** Offset of a page's upper edge from the top of the list. */
  topOf(page: number): number {
    let measured = 0;
    let entries = 0;
    for (const [other, height] of this.#heights) {
      if (other >= page) continue;
      measured += height;
      const [first, last] = this.spanOf(other);
      entries += last - first + 1;
    }
    const before = Math.min(page * this.pageSize, this.#head);
    return measured + (before - entries) * this.#estimateEntryHeight();
  }

  get totalHeight(): number {
    return this.topOf(this.pageCount);
  }

  /** The page at an offset from the top of the list. */
  pageAt(offset: number): number {
    let low = 0;
    let high = Math.max(0, this.pageCount - 1);
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.topOf(middle) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** First and last page needed to cover the range between two offsets. */
  pagesBetween(from: number, to: number): [number, number] {
    if (this.pageCount === 0) return [0, -1];
    return [this.pageAt(Math.max(0, from)), this.pageAt(Math.max(0, to))];
  }
}
