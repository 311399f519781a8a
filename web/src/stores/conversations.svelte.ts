/** List of conversations, most recently used first, with cursor pagination and filters by program, project and tag. */

import { conversations as calls, entries, type BranchRef, type ConversationFilter } from "../api/calls";
import type { Conversation, ConversationPage, OriginCount } from "../api/types";
import { marks } from "./marks.svelte";
import { notices } from "./notices.svelte";

const PAGE_SIZE = 50;
/** Size of the pages after the first, which are loaded while the list scrolls. */
const NEXT_PAGE_SIZE = 200;
/** Size of the pages whose titles are searched; the server searches in messages. */
const SEARCH_PAGE_SIZE = 500;

/** The title and the tags, as `#mill`, for a search by words. */
function describe({ title, tags }: Conversation): string {
  return [title, ...tags.map((tag) => `#${tag}`)].join(" ");
}

/** Whether the title contains every word of the query. */
export function matchesTitle(title: string, query: string): boolean {
  const lower = title.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

class ConversationListStore {
  items = $state.raw<Conversation[]>([]);
  nextCursor = $state<string | null>(null);
  filter = $state.raw<ConversationFilter>({});
  /** Programs and projects that conversations come from. */
  origins = $state.raw<OriginCount[]>([]);
  /** Tags of all conversations. */
  tags = $state.raw<string[]>([]);
  loading = $state(false);
  loaded = $state(false);
  #request: AbortController | null = null;

  get isFiltered(): boolean {
    return Boolean(this.filter.client || this.filter.project || this.filter.tag);
  }

  async load(): Promise<void> {
    this.#request?.abort();
    const request = (this.#request = new AbortController());
    this.loading = true;
    await notices.run(async () => {
      const page = await calls.list(PAGE_SIZE, null, this.filter, request.signal);
      this.items = page.items;
      this.nextCursor = page.next_cursor;
      this.loaded = true;
    });
    if (this.#request === request) this.loading = false;
    if (!this.isFiltered) await this.#loadPinned();
  }

  /** Pinned conversations are at the top, however long ago they were used. */
  async #loadPinned(): Promise<void> {
    const missing = marks.pinned.filter((id) => !this.items.some((each) => each.id === id));
    const found = await Promise.all(missing.map((id) => calls.get(id).catch(() => null)));
    const known = new Set(this.items.map((each) => each.id));
    this.items = [...this.items, ...found.filter((each) => each !== null && !known.has(each.id)) as Conversation[]];
  }

  /** A user's conversations whose titles or tags match, however far down the list they are; the first `limit` of them. */
  async searchTitles(query: string, limit: number, signal: AbortSignal): Promise<Conversation[]> {
    const found: Conversation[] = [];
    let cursor: string | null = null;
    do {
      const page: ConversationPage = await calls.list(SEARCH_PAGE_SIZE, cursor, { purpose: "main" }, signal);
      found.push(...page.items.filter((each) => matchesTitle(describe(each), query)));
      cursor = page.next_cursor;
    } while (cursor && found.length < limit);
    return found.slice(0, limit);
  }

  async setFilter(filter: ConversationFilter): Promise<void> {
    this.filter = filter;
    await this.load();
  }

  async loadOrigins(): Promise<void> {
    const list = await notices.run(() => calls.origins());
    if (list) [this.origins, this.tags] = [list.items, list.tags];
  }

  async loadMore(): Promise<void> {
    if (!this.nextCursor || this.loading) return;
    const request = (this.#request = new AbortController());
    this.loading = true;
    await notices.run(async () => {
      const page = await calls.list(NEXT_PAGE_SIZE, this.nextCursor, this.filter, request.signal);
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

  async setTags(id: string, tags: string[]): Promise<void> {
    const tagged = await notices.run(() => calls.setTags(id, tags));
    if (!tagged) return;
    this.items = this.items.map((each) => (each.id === id ? { ...each, tags: tagged.tags } : each));
    await this.loadOrigins();
    const { tag } = this.filter;
    if (tag) await this.setFilter({ ...this.filter, tag: this.tags.includes(tag) ? tag : null });
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
    if (!item) return;
    this.items = [{ ...item, updated_at: Date.now() * 1_000 }, ...this.items.filter((each) => each !== item)];
  }
}

export const conversations = new ConversationListStore();
