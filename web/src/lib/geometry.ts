/**
 * Where things stand in a list too long to be drawn whole. Entries are numbered from 1 and come in pages of one size; a
 * page that was drawn has its true height, every other an estimate.
 */

/** Browsers give up on taller elements; pages not seen yet are taken to be lower where a list would be. */
export const TALLEST = 8_000_000;

export class Geometry {
  readonly size: number;
  #heights = new Map<number, number>();
  #head = 0;
  #measured = 0;
  #entries = 0;

  constructor(size: number) {
    this.size = size;
  }

  get head(): number {
    return this.#head;
  }

  set head(value: number) {
    // The last page holds more than it did, so its height is no longer known.
    if (value !== this.#head && this.pages > 0) this.#forget(this.pages - 1);
    this.#head = value;
  }

  get pages(): number {
    return Math.ceil(this.#head / this.size);
  }

  /** The page of an entry. */
  page(seq: number): number {
    return Math.floor((Math.min(Math.max(seq, 1), Math.max(this.#head, 1)) - 1) / this.size);
  }

  /** First and last entry of a page. */
  span(page: number): [number, number] {
    return [page * this.size + 1, Math.min((page + 1) * this.size, this.#head)];
  }

  /** Notes a page's true height; says by how much it differs from what was thought. */
  measure(page: number, height: number): number {
    const before = this.height(page);
    this.#forget(page);
    const [first, last] = this.span(page);
    this.#heights.set(page, height);
    this.#measured += height;
    this.#entries += last - first + 1;
    return height - before;
  }

  #forget(page: number): void {
    const known = this.#heights.get(page);
    if (known === undefined) return;
    const [first, last] = this.span(page);
    this.#heights.delete(page);
    this.#measured -= known;
    this.#entries -= last - first + 1;
  }

  height(page: number): number {
    const known = this.#heights.get(page);
    if (known !== undefined) return known;
    const [first, last] = this.span(page);
    return (last - first + 1) * this.#guess();
  }

  /** What an entry that was never drawn is taken for: the mean of those that were, once there are some. */
  #guess(): number {
    const mean = this.#entries >= this.size / 2 ? this.#measured / this.#entries : 120;
    return Math.max(8, Math.min(mean, TALLEST / Math.max(1, this.#head)));
  }

  /** The distance from the beginning to a page's upper edge. */
  top(page: number): number {
    let known = 0;
    let seen = 0;
    for (const [at, height] of this.#heights) {
      if (at >= page) continue;
      known += height;
      const [first, last] = this.span(at);
      seen += last - first + 1;
    }
    const before = Math.min(page * this.size, this.#head);
    return known + (before - seen) * this.#guess();
  }

  get total(): number {
    return this.top(this.pages);
  }

  /** The page that stands at this distance from the beginning. */
  at(distance: number): number {
    let low = 0;
    let high = Math.max(0, this.pages - 1);
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.top(middle) <= distance) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The pages to draw so that what is between the two distances is covered. */
  between(from: number, to: number): [number, number] {
    if (this.pages === 0) return [0, -1];
    return [this.at(Math.max(0, from)), this.at(Math.max(0, to))];
  }
}
