/** List of conversations, most recently used first, with cursor pagination and filters by title, program and project. */

import { conversations as calls, entries, type BranchRef, type ConversationFilter } from "../api/calls";
import type { Conversation, ConversationPage, OriginCount } from "../api/types";
import { notices } from "./notices.svelte";

const PAGE_SIZE = 50;
/** Size of the pages after the first, which are loaded while the list scrolls. */
const NEXT_PAGE_SIZE = 200;
/** Size of the pages whose titles are searched; the server searches in messages. */
const SEARCH_PAGE_SIZE = 500;

/** Whether the title contains every word of the query. */
export function matchesTitle(title: string, query: string): boolean {
  const lower = title.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

class ConversationListStore {
  items = $state.raw<Conversation[]>([]);
  nextCursor = $state<string | null>(null);
  query = $state("");
  filter = $state.raw<ConversationFilter>({});
  /** Programs and projects that conversations come from. */
  origins = $state.raw<OriginCount[]>([]);
  loading = $state(false);
  loaded = $state(false);
  #request: AbortController | null = null;

  async load(): Promise<void> {
    this.#request?.abort();
    const request = (this.#request = new AbortController());
    this.loading = true;
    await notices.run(async () => {
      const page = await this.#loadPage(null, PAGE_SIZE, request.signal);
      this.items = page.items;
      this.nextCursor = page.next_cursor;
      this.loaded = true;
    });
    if (this.#request === request) this.loading = false;
  }

  /** Loads the next conversations; of a search those whose titles match, however far down the list they are. */
  async #loadPage(cursor: string | null, size: number, signal: AbortSignal): Promise<ConversationPage> {
    const query = this.query.trim();
    if (!query) return await calls.list(size, cursor, this.filter, signal);
    const found: ConversationPage = { items: [], next_cursor: cursor };
    do {
      const page = await calls.list(SEARCH_PAGE_SIZE, found.next_cursor, this.filter, signal);
      found.items.push(...page.items.filter((each) => matchesTitle(each.title, query)));
      found.next_cursor = page.next_cursor;
    } while (found.next_cursor && found.items.length < size);
    return found;
  }

  async setFilter(filter: ConversationFilter): Promise<void> {
    this.filter = filter;
    await this.load();
  }

  async loadOrigins(): Promise<void> {
    const list = await notices.run(() => calls.origins());
    if (list) this.origins = list.items;
  }

  async loadMore(): Promise<void> {
    if (!this.nextCursor || this.loading) return;
    const request = (this.#request = new AbortController());
    this.loading = true;
    await notices.run(async () => {
      const page = await this.#loadPage(this.nextCursor, NEXT_PAGE_SIZE, request.signal);
      const known = new Set(this.items.map((each) => each.id));
      this.items = [...this.items, ...page.items.filter((each) => !known.has(each.id))];
      this.nextCursor = page.next_cursor;
    });
    if (this.#request === request) this.loading = false;
  }

  async create(): Promise<string | undefined> {
    const created = await notices.run(() => calls.create());
    // A load in the meantime may have added it already.
    if (created) this.items = [created, ...this.items.filter((each) => each.id !== created.id)];
    return created?.id;
  }

  async rename(id: string, title: string): Promise<void> {
    const renamed = await notices.run(() => calls.rename(id, title));
    if (renamed) this.updateTitle(id, renamed.title);
  }

  /** Updates a title in the list: the conversation's own, or its first question. */
  updateTitle(id: string, title: string): void {
    this.items = this.items.map((each) => (each.id === id ? { ...each, title } : each));
  }

  async remove(id: string): Promise<boolean> {
    const removed = await notices.run(async () => {
      await calls.remove(id);
      return true;
    });
    if (removed) this.items = this.items.filter((each) => each.id !== id);
    return removed ?? false;
  }

  /** Removes a conversation that has no message; returns whether it did. */
  async removeEmpty(branchRef: BranchRef): Promise<boolean> {
    const page = await notices.run(() => entries.list(branchRef, { kinds: ["message"], limit: 1 }));
    return page?.items.length === 0 && (await this.remove(branchRef.conversation));
  }

  /** Moves a conversation to the top, because it was just used. */
  moveToTop(id: string): void {
    const item = this.items.find((each) => each.id === id);
    if (!item || this.query) return;
    this.items = [{ ...item, updated_at: Date.now() * 1_000 }, ...this.items.filter((each) => each !== item)];
  }
}

export const conversations = new ConversationListStore();
