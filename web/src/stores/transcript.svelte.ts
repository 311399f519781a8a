/**
 * The entries of one branch, a page at a time: those near what is looked at, and the newest. Pages that nobody looks at
 * are dropped, so a long conversation takes no more memory than a short one.
 */

import { SvelteMap, SvelteSet } from "svelte/reactivity";

import { entries as calls, type Line } from "../api/calls";
import type { Entries, Entry, Part, Span, ToolResultPart } from "../api/types";
import { Geometry } from "../lib/geometry";
import { chapters, isArchived, type Chapter } from "../lib/story";
import { notices } from "./notices.svelte";

export const PAGE = 40;
/** So many pages are kept on either side of what is looked at. */
const KEPT = 6;

export class Transcript {
  readonly line: Line;
  readonly geometry = new Geometry(PAGE);
  readonly pages = new SvelteMap<number, Entry[]>();
  /** Results of tool calls, by the id of the call. */
  readonly results = new SvelteMap<string, ToolResultPart>();
  /** The ids of the calls that are at hand. */
  readonly calls = new SvelteSet<string>();
  head = $state(0);
  pins = $state.raw<number[]>([]);
  story = $state.raw<Chapter[]>([]);
  /** What the active compaction stands for. */
  covers = $state.raw<Span | null>(null);
  opened = $state(false);
  #loading = new Map<number, AbortController>();

  constructor(line: Line) {
    this.line = line;
  }

  async open(): Promise<void> {
    const found = await calls.page(this.line, { newest: true, limit: PAGE });
    this.#take(found);
    // The compactions of a long history take longer to find than its newest messages, which nobody should wait for.
    if (found.state.compactions > 0) void notices.try(() => this.#tell());
    if (found.head > 0) {
      const page = this.geometry.page(found.head);
      const [first] = this.geometry.span(page);
      this.#keep(page, found.items.filter((entry) => entry.seq >= first));
    }
    this.opened = true;
  }

  /** Sees to it that these pages are there; those far away are let go. */
  async ensure(first: number, last: number): Promise<void> {
    for (const page of [...this.pages.keys()]) {
      if (page < first - KEPT || page > last + KEPT) this.#drop(page);
    }
    for (const [page, asked] of this.#loading) {
      if (page < first - 1 || page > last + 1) asked.abort();
    }
    const wanted = [];
    for (let page = first; page <= last; page++) {
      if (page >= 0 && page < this.geometry.pages && !this.#whole(page) && !this.#loading.has(page)) wanted.push(page);
    }
    await Promise.all(wanted.map((page) => this.#load(page)));
  }

  #whole(page: number): boolean {
    const [first, last] = this.geometry.span(page);
    return (this.pages.get(page)?.length ?? 0) >= last - first + 1;
  }

  async #load(page: number): Promise<void> {
    const asked = new AbortController();
    this.#loading.set(page, asked);
    const [first, last] = this.geometry.span(page);
    await notices.try(async () => {
      const found = await calls.page(this.line, { first, last, limit: PAGE }, asked.signal);
      this.#keep(page, found.items);
      this.#take(found);
    });
    this.#loading.delete(page);
  }

  #keep(page: number, items: Entry[]): void {
    for (const entry of items) this.#note(entry);
    this.pages.set(page, items);
  }

  #note(entry: Entry): void {
    for (const part of partsOf(entry)) {
      if (part.type === "tool_result") this.results.set(part.call_id, part);
      if (part.type === "tool_call") this.calls.add(part.id);
    }
  }

  #drop(page: number): void {
    for (const part of (this.pages.get(page) ?? []).flatMap(partsOf)) {
      if (part.type === "tool_result") this.results.delete(part.call_id);
      if (part.type === "tool_call") this.calls.delete(part.id);
    }
    this.pages.delete(page);
  }

  #take(found: Entries): void {
    this.pins = found.state.pins;
    this.covers = found.state.active?.covers ?? null;
    this.#grow(found.head);
  }

  #grow(head: number): void {
    if (head <= this.head && this.opened) return;
    this.geometry.head = head;
    this.head = head;
  }

  /** Entries that a turn has just kept. A page that lacks some between is read again when it is looked at. */
  append(...fresh: Entry[]): void {
    for (const entry of fresh) {
      this.#grow(entry.seq);
      const page = this.geometry.page(entry.seq);
      const [first] = this.geometry.span(page);
      const there = this.pages.get(page) ?? [];
      if (there.length === entry.seq - first) this.#keep(page, [...there, entry]);
    }
    if (fresh.some((entry) => entry.kind === "compaction" || entry.kind === "restore")) void notices.try(() => this.#tell());
  }

  /** The branch has moved, here or elsewhere. */
  async moved(head: number): Promise<void> {
    if (head <= this.head) return;
    const first = this.head + 1;
    const found = await notices.try(() => calls.page(this.line, { first, limit: 100 }));
    if (!found) return;
    this.append(...found.items);
    this.#take(found);
  }

  /** Reads again what stands, as after a purge. */
  async reload(): Promise<void> {
    const there = [...this.pages.keys()].filter((page) => !this.#loading.has(page));
    await Promise.all([...there.map((page) => this.#load(page)), this.#tell()]);
  }

  async #tell(): Promise<void> {
    const found: Entry[] = [];
    for (let first = 1; ; ) {
      const page = await calls.page(this.line, { first, limit: 100, kinds: ["compaction", "restore"] });
      found.push(...page.items);
      const last = page.items.at(-1);
      if (page.items.length < 100 || !last) break;
      first = last.seq + 1;
    }
    this.story = chapters(found);
    this.covers = this.story.find((chapter) => chapter.fate === "active")?.compaction.covers ?? null;
  }

  archived(seq: number): boolean {
    return isArchived(seq, this.covers, this.pins);
  }
}

function partsOf(entry: Entry): Part[] {
  return entry.kind === "message" ? entry.body.parts : [];
}
