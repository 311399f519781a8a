/**
 * Entries of one branch, loaded page by page around the visible part. Distant pages are evicted, so a long conversation
 * takes no more memory than a short one.
 */

import { SvelteMap, SvelteSet } from "svelte/reactivity";

import { entries as calls, requests, type BranchRef } from "../api/calls";
import type { Entry, EntryPage, Forwarding, Part, Priority, Span, ToolResultPart } from "../api/types";
import { findClientCompactions, type ClientCompaction } from "../lib/clientCompactions";
import { isArchived, listCompactions, type CompactionEntry } from "../lib/compactions";
import { Geometry } from "../lib/geometry";
import { notices } from "./notices.svelte";

const PAGE_SIZE = 40;
/** Pages further than this from the visible ones are evicted. */
const MAX_PAGE_DISTANCE = 6;
/** Entries per request where a range is read that is not one page. */
const BATCH_SIZE = 100;
/** Kinds of entries that are not messages. */
const EVENT_KINDS = ["compaction", "restore", "pin", "unpin", "priority", "context_change", "drop", "undrop", "epoch"] satisfies Entry["kind"][];

export class TranscriptStore {
  readonly branchRef: BranchRef;
  readonly geometry = new Geometry(PAGE_SIZE);
  readonly pages = new SvelteMap<number, Entry[]>();
  /** Results of tool calls, by the id of the call. */
  readonly results = new SvelteMap<string, ToolResultPart>();
  /** Ids of the tool calls on loaded pages. */
  readonly callIds = new SvelteSet<string>();
  /** How the gateway forwarded the requests of replies on loaded pages, by the number of the reply. */
  readonly forwardings = new SvelteMap<number, Forwarding>();
  /** Compactions on loaded pages that an agent made itself, by the entry that follows. */
  readonly clientCompactions = new SvelteMap<number, ClientCompaction>();
  head = $state(0);
  pins = $state.raw<number[]>([]);
  drops = $state.raw<number[]>([]);
  /** Dropped messages of which an agent's newest list has stubs. */
  #effectiveDrops = $state.raw<number[]>([]);
  priorities = $state.raw<Priority[]>([]);
  compactions = $state.raw<CompactionEntry[]>([]);
  /** The range that the active compaction covers. */
  covers = $state.raw<Span | null>(null);
  /** Number of the covered question that stays in the view, because its turn is compacted only in part. */
  question = $state<number | null>(null);
  /** Numbers of the covered messages that stay in the view because of their priority. */
  preserved = $state.raw<number[]>([]);
  loaded = $state(false);
  #requests = new Map<number, AbortController>();
  /** Whether replies came through the gateway; null until the first requests are loaded. */
  #isForwarded: boolean | null = null;

  constructor(branchRef: BranchRef) {
    this.branchRef = branchRef;
  }

  /** The newest message, if its page is loaded. */
  newestMessage: Entry | null = $derived.by(() => {
    const page = this.pages.get(this.geometry.pageOf(this.head));
    return page?.findLast((entry) => entry.kind === "message") ?? null;
  });
  /** Whether the newest message is an answer, so that no turn can be running. */
  endsTurn: boolean = $derived.by(() => {
    const message = this.newestMessage?.kind === "message" ? this.newestMessage.body : null;
    return message?.role === "assistant" && !message.parts.some((part) => part.type === "tool_call");
  });
  /** Number of the newest question, if nothing answers it yet. */
  unansweredQuestion: number | null = $derived.by(() => {
    const newest = this.newestMessage;
    return newest?.kind === "message" && newest.body.role === "user" ? newest.seq : null;
  });

  /** The last question before an entry, among the loaded pages around it. */
  findQuestion(seq: number): number | null {
    const page = this.geometry.pageOf(seq);
    const loaded = [...(this.pages.get(page - 1) ?? []), ...(this.pages.get(page) ?? [])];
    const question = loaded.findLast((entry) => entry.seq < seq && entry.kind === "message" && entry.body.role === "user");
    return question?.seq ?? null;
  }

  async open(): Promise<void> {
    const newest = await calls.list(this.branchRef, { newest: true, limit: PAGE_SIZE });
    this.#applyState(newest);
    // Not awaited: in a long history, reading the compactions takes longer than reading the newest messages.
    if (newest.state.compaction_count > 0) void notices.run(() => this.#loadCompactions());
    if (newest.head > 0) {
      const page = this.geometry.pageOf(newest.head);
      const [first] = this.geometry.spanOf(page);
      this.#storePage(page, newest.items.filter((entry) => entry.seq >= first));
      void this.#loadForwardings(page);
    }
    this.loaded = true;
  }

  /** Loads these pages, evicts distant ones, and aborts requests for pages no longer visible. */
  async ensure(first: number, last: number): Promise<void> {
    for (const page of [...this.pages.keys()]) {
      if (page < first - MAX_PAGE_DISTANCE || page > last + MAX_PAGE_DISTANCE) this.#evictPage(page);
    }
    for (const [page, request] of this.#requests) {
      if (page < first - 1 || page > last + 1) request.abort();
    }
    const missing = [];
    for (let page = first; page <= last; page++) {
      const exists = page >= 0 && page < this.geometry.pageCount;
      if (exists && !this.#isComplete(page) && !this.#requests.has(page)) missing.push(page);
    }
    await Promise.all(missing.map((page) => this.#loadPage(page)));
  }

  #isComplete(page: number): boolean {
    const [first, last] = this.geometry.spanOf(page);
    return (this.pages.get(page)?.length ?? 0) >= last - first + 1;
  }

  async #loadPage(page: number): Promise<void> {
    const request = new AbortController();
    this.#requests.set(page, request);
    const [first, last] = this.geometry.spanOf(page);
    await notices.run(async () => {
      const loaded = await calls.list(this.branchRef, { first, last, limit: PAGE_SIZE }, request.signal);
      this.#storePage(page, loaded.items);
      this.#applyState(loaded);
      void this.#loadForwardings(page);
    });
    this.#requests.delete(page);
  }

  #storePage(page: number, entries: Entry[]): void {
    for (const part of entries.flatMap(listParts)) {
      if (part.type === "tool_result") this.results.set(part.call_id, part);
      if (part.type === "tool_call") this.callIds.add(part.id);
    }
    this.pages.set(page, entries);
  }

  /** Loads how the requests of a page were forwarded, with the request before them to compare with. */
  async #loadForwardings(page: number): Promise<void> {
    if (this.#isForwarded === false) return;
    const entries = this.pages.get(page) ?? [];
    const last = entries.at(-1)?.seq;
    if (last === undefined) return;
    const loaded = await notices.run(() => requests.list(this.branchRef, PAGE_SIZE + 1, last));
    if (!loaded?.items.length) return;
    this.#isForwarded ??= loaded.items.some((each) => each.forwarding !== null);
    for (const { reply, forwarding } of loaded.items) if (forwarding) this.forwardings.set(reply, forwarding);
    for (const each of findClientCompactions(entries, loaded.items)) this.clientCompactions.set(each.before, each);
  }

  #evictPage(page: number): void {
    for (const { seq } of this.pages.get(page) ?? []) {
      this.forwardings.delete(seq);
      this.clientCompactions.delete(seq);
    }
    for (const part of (this.pages.get(page) ?? []).flatMap(listParts)) {
      if (part.type === "tool_result") this.results.delete(part.call_id);
      if (part.type === "tool_call") this.callIds.delete(part.id);
    }
    this.pages.delete(page);
  }

  /** Whether a message was dropped or restored, and the list that the agent keeps itself is still sent as before. */
  isEditWaiting(seq: number): boolean {
    return this.forwardings.size > 0 && this.drops.includes(seq) !== this.#effectiveDrops.includes(seq);
  }

  #applyState({ state, head }: EntryPage): void {
    this.pins = state.pins;
    this.drops = (state.drops ?? []).map((each) => each.message);
    this.#effectiveDrops = (state.epoch?.drops ?? []).map((each) => each.message);
    this.priorities = state.priorities;
    this.preserved = state.active_compaction?.preserved ?? [];
    this.covers = state.active_compaction?.covers ?? null;
    this.question = state.active_compaction?.question ?? null;
    this.#advanceHead(head);
  }

  #advanceHead(head: number): void {
    if (head <= this.head && this.loaded) return;
    this.geometry.head = head;
    this.head = head;
  }

  /** Appends entries that a turn has recorded. A page with a gap before them is loaded again when it becomes visible. */
  append(...entries: Entry[]): void {
    for (const entry of entries) {
      this.#advanceHead(entry.seq);
      const page = this.geometry.pageOf(entry.seq);
      const [first] = this.geometry.spanOf(page);
      const present = this.pages.get(page) ?? [];
      if (present.length === entry.seq - first) this.#storePage(page, [...present, entry]);
    }
    const changesView = entries.some((entry) => entry.kind === "compaction" || entry.kind === "restore");
    if (changesView) void notices.run(() => this.#loadCompactions());
    const reply = entries.findLast((entry) => entry.kind === "message" && entry.body.role === "assistant");
    if (reply) void this.#loadForwardings(this.geometry.pageOf(reply.seq));
  }

  /** Loads the entries up to a new head of the branch, whichever client appended them. */
  async loadUpTo(head: number): Promise<void> {
    if (head <= this.head) return;
    const first = this.head + 1;
    const added = await notices.run(() => calls.list(this.branchRef, { first, limit: BATCH_SIZE }));
    if (!added) return;
    this.append(...added.items);
    this.#applyState(added);
  }

  /** Loads the present pages again, as after a purge. */
  async reload(): Promise<void> {
    const idle = [...this.pages.keys()].filter((page) => !this.#requests.has(page));
    await Promise.all([...idle.map((page) => this.#loadPage(page)), this.#loadCompactions()]);
  }

  async #loadCompactions(): Promise<void> {
    const entries: Entry[] = [];
    for (let first = 1; ; ) {
      const batch = await calls.list(this.branchRef, { first, limit: BATCH_SIZE, kinds: EVENT_KINDS });
      entries.push(...batch.items);
      const last = batch.items.at(-1);
      if (batch.items.length < BATCH_SIZE || !last) break;
      first = last.seq + 1;
    }
    this.compactions = listCompactions(entries);
    const active = this.compactions.find((each) => each.status === "active")?.compaction;
    this.covers = active?.covers ?? null;
    this.question = active?.question ?? null;
    this.preserved = active?.preserved ?? [];
  }

  isArchived(seq: number): boolean {
    return isArchived(seq, this.covers, [...this.pins, ...this.preserved], this.question);
  }
}

function listParts(entry: Entry): Part[] {
  return entry.kind === "message" ? entry.body.parts : [];
}
