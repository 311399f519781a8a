/** The list of conversations, those used last first, or those of them whose titles have the words of a search. */

import { conversations as calls } from "../api/calls";
import type { Conversation } from "../api/types";
import { notices } from "./notices.svelte";

const PAGE = 50;
/** So many are searched by title, those used last; the search in messages looks at as many. */
const SEARCHED = 200;

/** Whether every word of the query stands in the title. */
export function matches(title: string, query: string): boolean {
  const lower = title.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

class Conversations {
  items = $state.raw<Conversation[]>([]);
  next = $state<string | null>(null);
  query = $state("");
  loading = $state(false);
  loaded = $state(false);
  #asked: AbortController | null = null;

  async load(): Promise<void> {
    this.#asked?.abort();
    const asked = (this.#asked = new AbortController());
    this.loading = true;
    await notices.try(async () => {
      const query = this.query.trim();
      const page = await calls.list(query ? SEARCHED : PAGE, null, asked.signal);
      this.items = query ? page.items.filter((each) => matches(each.title, query)) : page.items;
      this.next = query ? null : page.next;
      this.loaded = true;
    });
    if (this.#asked === asked) this.loading = false;
  }

  async more(): Promise<void> {
    if (!this.next || this.loading) return;
    this.loading = true;
    await notices.try(async () => {
      const page = await calls.list(PAGE, this.next);
      const known = new Set(this.items.map((each) => each.id));
      this.items = [...this.items, ...page.items.filter((each) => !known.has(each.id))];
      this.next = page.next;
    });
    this.loading = false;
  }

  async create(): Promise<string | undefined> {
    const made = await notices.try(() => calls.create());
    // The list may have been read in between, and have it already.
    if (made) this.items = [made, ...this.items.filter((each) => each.id !== made.id)];
    return made?.id;
  }

  async rename(id: string, title: string): Promise<void> {
    const renamed = await notices.try(() => calls.rename(id, title));
    if (renamed) this.called(id, renamed.title);
  }

  /** A conversation has this title now: its own, or its first question. */
  called(id: string, title: string): void {
    this.items = this.items.map((each) => (each.id === id ? { ...each, title } : each));
  }

  async remove(id: string): Promise<boolean> {
    const removed = await notices.try(async () => {
      await calls.remove(id);
      return true;
    });
    if (removed) this.items = this.items.filter((each) => each.id !== id);
    return removed ?? false;
  }

  /** A conversation was just used: it goes to the top. */
  touch(id: string): void {
    const found = this.items.find((each) => each.id === id);
    if (!found || this.query) return;
    this.items = [{ ...found, used_at: Date.now() * 1_000 }, ...this.items.filter((each) => each !== found)];
  }
}

export const conversations = new Conversations();
