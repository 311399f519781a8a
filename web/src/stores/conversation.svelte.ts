/** The open conversation: transcript, turn in progress, context usage, and live events of other windows. */

import { blobs, compactions, context, conversations as calls, turns, type BranchRef } from "../api/calls";
import { ApiError } from "../api/client";
import type { Branch, ContextUsage, Conversation, ConversationDetail, Entry, FilePart, LiveEvent, Message, ToolCallPart } from "../api/types";
import { messages } from "../lib/messages";
import { formatClient } from "../lib/sessions";
import { readEvents } from "../lib/sse";
import { conversations } from "./conversations.svelte";
import { models } from "./models.svelte";
import { notices } from "./notices.svelte";
import { RequestTimelineStore } from "./requestTimeline.svelte";
import { route } from "./route.svelte";
import { TranscriptStore } from "./transcript.svelte";
import { TurnStore } from "./turn.svelte";

/** Exponential backoff of reconnections to the event stream. */
const MIN_RECONNECT_MS = 500;
const MAX_RECONNECT_MS = 10_000;
/** How long after a reconnection the events of a running turn may take to arrive. */
const REPLAY_WAIT_MS = 3_000;
/** Debounce of usage requests. */
const USAGE_DEBOUNCE_MS = 60;

/** How many sub-agents of a session calls are linked to. */
const MAX_SUB_AGENTS = 200;

/** What the message field writes to: an open conversation, or one that the first message creates. */
export interface MessageTarget {
  readonly branchRef: BranchRef;
  readonly turn: { readonly running: boolean };
  /** Name of the model that answers. */
  readonly model: string;
  /** A message that could not be sent; the field takes it back. */
  unsent: UnsentMessage | null;
  /** Messages that are sent one after the other, each when the turn before it was answered. */
  readonly queued: readonly UnsentMessage[];
  queue(message: UnsentMessage): void;
  removeQueued(index: number): void;
  chooseModel(name: string): void;
  /** Returns whether the message was recorded. */
  send(text: string, files: File[]): Promise<boolean>;
  stop(): Promise<void>;
}

export interface UnsentMessage {
  text: string;
  files: File[];
}

export class ConversationStore implements MessageTarget {
  readonly branchRef: BranchRef;
  readonly transcript: TranscriptStore;
  readonly turn: TurnStore;
  readonly requestTimeline: RequestTimelineStore;
  detail = $state.raw<ConversationDetail | null>(null);
  usage = $state.raw<ContextUsage | null>(null);
  /** Whether the user chose to continue an agent's conversation here. */
  continued = $state(false);
  /** Incremented whenever requests or usage may have changed; panels reload on it. */
  version = $state(0);
  notFound = $state<string | null>(null);
  /** Sub-agents of the same session; loaded when a call names one of them. */
  subAgents = $state.raw<Conversation[]>([]);
  #searchedAgents = new Set<string>();
  unsent = $state.raw<UnsentMessage | null>(null);
  queued = $state.raw<UnsentMessage[]>([]);
  /** Names of the tools whose calls this window approves without a question. */
  #alwaysAllowed = new Set<string>();
  /** The model that was chosen for this conversation; null for the default one. */
  modelChoice = $state<string | null>(null);
  /** Whether the stream of live events is connected. */
  connected = $state(true);
  #closing = new AbortController();
  /** Ends the current connection to the event stream; the next one replays a running turn from its start. */
  #connection = new AbortController();
  #sending = false;
  #usageTimer: ReturnType<typeof setTimeout> | null = null;

  constructor(branchRef: BranchRef) {
    this.branchRef = branchRef;
    this.modelChoice = models.getChoice(branchRef.conversation);
    this.transcript = new TranscriptStore(branchRef);
    this.requestTimeline = new RequestTimelineStore(branchRef);
    this.turn = new TurnStore({
      onEntry: (entry: Entry) => {
        this.transcript.append(entry);
        if (!this.detail?.title) void this.loadDetail();
      },
      onPrepared: () => void this.refreshUsage(),
      onEnded: () => {
        void this.refreshUsage();
        if (!this.#sending) void this.#sendQueued();
      },
      onApproval: (call) => {
        // Another window may have decided already, so a refusal is no news.
        if (this.#alwaysAllowed.has(call.name)) void turns.approve(this.branchRef, call.id, true).catch(() => undefined);
      },
    });
  }

  /** Name of the agent whose conversation it is; null for one of this page. */
  client: string | null = $derived(this.detail?.origin ? formatClient(this.detail.origin.client) : null);
  /** Name of the agent that holds its context; null for one of Quire's own, and once it is continued here. */
  owner: string | null = $derived(this.detail?.owner && !this.continued ? formatClient(this.detail.owner) : null);
  branches: Branch[] = $derived(this.detail?.branches ?? []);
  branch: Branch | undefined = $derived(this.branches.find((each) => each.number === this.branchRef.branch));

  model: string = $derived(this.modelChoice ?? models.default);

  /** Answers with this model from the next request on. */
  chooseModel(name: string): void {
    this.modelChoice = name === models.default ? null : name;
    models.setChoice(this.branchRef.conversation, this.modelChoice);
    void models.check(name);
    void this.refreshUsage();
  }

  async open(): Promise<void> {
    try {
      void this.requestTimeline.update();
      [this.detail] = await Promise.all([calls.get(this.branchRef.conversation), this.transcript.open()]);
      void this.#listen();
      await this.refreshUsage();
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.notFound = "There is no such conversation. It may have been deleted.";
      else notices.showError(error);
    }
  }

  close(): void {
    this.#closing.abort();
    if (this.#usageTimer) clearTimeout(this.#usageTimer);
  }

  async loadDetail(): Promise<void> {
    const detail = await notices.run(() => calls.get(this.branchRef.conversation));
    if (!detail) return;
    this.detail = detail;
    conversations.updateTitle(detail.id, detail.title);
  }

  /** Looks for the conversation of a sub-agent, once for each that is not known yet. */
  async searchSubAgent(agent: string): Promise<void> {
    const session = this.detail?.origin?.session;
    if (!session || this.#searchedAgents.has(agent) || this.subAgents.some((each) => each.origin?.agent === agent)) return;
    this.#searchedAgents.add(agent);
    const page = await notices.run(() => calls.list(MAX_SUB_AGENTS, null, { session, purpose: "subagent" }));
    if (page) this.subAgents = page.items;
  }

  /** Loads the context usage again, debounced. */
  async refreshUsage(): Promise<void> {
    this.version++;
    if (this.#usageTimer) clearTimeout(this.#usageTimer);
    await new Promise<void>((resolve) => {
      this.#usageTimer = setTimeout(async () => {
        // What an agent owns is not measured against a window of Quire's.
        if (!this.#closing.signal.aborted && !this.owner) {
          this.usage = (await notices.run(() => context.usage(this.branchRef, this.modelChoice))) ?? this.usage;
        }
        resolve();
      }, USAGE_DEBOUNCE_MS);
    });
  }

  /** Offers the message field and the meter for an agent's conversation. It is Quire's own from the next turn on. */
  async continueHere(): Promise<void> {
    this.continued = true;
    await this.refreshUsage();
  }

  /** Loads entries that were appended outside a turn, and the usage. */
  async refresh(): Promise<void> {
    await this.loadDetail();
    await this.transcript.loadUpTo(this.branch?.head ?? 0);
    await this.refreshUsage();
  }

  /** Sends a message; returns whether it was recorded, even if its turn failed. */
  async send(text: string, files: File[] = []): Promise<boolean> {
    const message = await notices.run(() => this.#buildMessage(text, files));
    return message !== undefined && (await this.#runTurn(message));
  }

  /** Answers the newest question of the log, whose turn failed or was stopped. */
  async retry(): Promise<void> {
    await this.#runTurn(null);
  }

  /** Answers question `seq` again, on a new branch; the earlier answer stays on this one. */
  async regenerate(seq: number, model: string = this.model): Promise<void> {
    if (model !== this.model) this.chooseModel(model);
    await this.#openFork(seq, null);
  }

  async #buildMessage(text: string, files: File[]): Promise<Message> {
    const parts: FilePart[] = [];
    for (const file of files) {
      const { blob, media_type } = await blobs.upload(file);
      const type = media_type.startsWith("image/") ? "image" : "file";
      parts.push({ type, blob, media_type, ...(type === "file" ? { name: file.name } : {}) });
    }
    return { role: "user", parts: [...(text ? [{ type: "text" as const, text }] : []), ...parts] };
  }

  async #runTurn(message: Message | null): Promise<boolean> {
    this.#sending = true;
    this.turn.start(message);
    let connected = false;
    try {
      const response = await turns.send(this.branchRef, message, this.modelChoice);
      connected = true;
      if (response.body) for await (const { data } of readEvents(response.body)) this.turn.handleEvent(JSON.parse(data));
    } catch (error) {
      if (!connected) notices.showError(error);
    } finally {
      this.#sending = false;
      if (connected && this.turn.running) this.#followInterruptedTurn();
      else this.turn.stop();
      conversations.moveToTop(this.branchRef.conversation);
      void this.refreshUsage();
      if (!this.turn.running) void this.#sendQueued();
    }
    return this.turn.question === null;
  }

  queue(message: UnsentMessage): void {
    this.queued = [...this.queued, message];
  }

  removeQueued(index: number): void {
    this.queued = this.queued.filter((_, other) => other !== index);
  }

  /** Sends the first message of the queue after an answer. After anything else they go back to the field. */
  async #sendQueued(): Promise<void> {
    const [first, ...rest] = this.queued;
    if (!first || this.turn.running) return;
    this.queued = this.turn.answered ? rest : [];
    if (!this.turn.answered) this.unsent = joinMessages([first, ...rest]);
    else if (!(await this.send(first.text, first.files))) {
      this.unsent = joinMessages([first, ...this.queued]);
      this.queued = [];
    }
  }

  /** The turn continues on the server: what has arrived stays, and the event stream delivers the rest. */
  #followInterruptedTurn(): void {
    this.turn.interrupt();
    this.#connection.abort();
  }

  /** After a reconnection: a turn that still runs is replayed at once, so one that is not has ended meanwhile. */
  #endInterruptedTurn(): void {
    if (this.transcript.endsTurn) this.turn.stop();
    else setTimeout(() => this.turn.interrupted && this.connected && this.turn.stop(), REPLAY_WAIT_MS);
  }

  async stop(): Promise<void> {
    await notices.run(() => turns.stop(this.branchRef));
  }

  async answerApproval(call: string, approve: boolean): Promise<void> {
    await notices.run(() => turns.approve(this.branchRef, call, approve));
  }

  /** Approves the call and, until the window is closed, every later call of its tool in this conversation. */
  async allowAlways(call: ToolCallPart): Promise<void> {
    this.#alwaysAllowed.add(call.name);
    await this.answerApproval(call.id, true);
  }

  /** Sends another version of message `seq` on a new branch. */
  async resend(seq: number, text: string): Promise<void> {
    await this.#openFork(seq - 1, text);
  }

  /** Opens a new branch after entry `seq`, and sends this text there, or answers its newest question. */
  async #openFork(seq: number, text: string | null): Promise<void> {
    const branch = await notices.run(() => calls.fork(this.branchRef.conversation, seq, this.branchRef.branch));
    if (!branch) return;
    queuedMessage = { branchRef: { conversation: this.branchRef.conversation, branch: branch.number }, text, files: [] };
    route.openConversation(this.branchRef.conversation, branch.number);
  }

  async fork(seq: number): Promise<void> {
    const branch = await notices.run(() => calls.fork(this.branchRef.conversation, seq, this.branchRef.branch));
    if (!branch) return;
    notices.show(messages.branchStarted(branch.number, seq));
    route.openConversation(this.branchRef.conversation, branch.number);
  }

  /** Says that the branch was compacted, with the way back. */
  announceCompaction(text: string): void {
    notices.show(text, { undo: () => void this.undoCompaction() });
  }

  async undoCompaction(): Promise<void> {
    const status = await notices.run(() => compactions.undo(this.branchRef));
    if (!status) return;
    const { waiting } = status;
    const text = waiting ? messages.undoWaitsNotice(waiting.added_tokens) : "Compaction undone.";
    notices.show(text, { undo: () => void this.redoCompaction() });
    await this.refresh();
  }

  async redoCompaction(): Promise<void> {
    if (!(await notices.run(() => compactions.redo(this.branchRef)))) return;
    this.announceCompaction("Compaction made active again.");
    await this.refresh();
  }

  async #listen(): Promise<void> {
    let delay = MIN_RECONNECT_MS;
    while (!this.#closing.signal.aborted) {
      try {
        this.#connection = new AbortController();
        const response = await turns.events(this.branchRef, AbortSignal.any([this.#closing.signal, this.#connection.signal]));
        this.connected = true;
        delay = MIN_RECONNECT_MS;
        if (response.body) for await (const { data } of readEvents(response.body)) await this.#handleEvent(JSON.parse(data));
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return notices.showError(error);
      }
      if (this.#closing.signal.aborted) return;
      this.connected = false;
      if (this.turn.running && !this.#sending) this.turn.interrupt();
      await new Promise((resolve) => setTimeout(resolve, delay));
      delay = Math.min(MAX_RECONNECT_MS, delay * 2);
    }
  }

  /** Handles a live event of this branch or of another one. */
  async #handleEvent(event: LiveEvent): Promise<void> {
    if (event.branch !== this.branchRef.branch) {
      const known = this.branches.find((each) => each.number === event.branch);
      if (event.event === "branch_changed" && known?.head !== event.head) await this.loadDetail();
    } else if (event.event === "branch_changed") {
      const previousHead = this.transcript.head;
      await this.transcript.loadUpTo(event.head);
      if (this.turn.interrupted) this.#endInterruptedTurn();
      if (this.transcript.head === previousHead || this.#sending) return;
      void this.refreshUsage();
      if (!this.detail?.title) void this.loadDetail();
    } else if (!this.#sending) this.turn.handleEvent(event);
  }
}

/** Several messages as one: their texts as paragraphs, and all their files. */
function joinMessages(messages: readonly UnsentMessage[]): UnsentMessage {
  return { text: messages.map((each) => each.text).join("\n\n"), files: messages.flatMap((each) => each.files) };
}

/** Message to send as soon as its new branch is open. */
let queuedMessage: { branchRef: BranchRef; text: string | null; files: File[] } | null = null;

/** A conversation that its first message creates, so that none stays empty. */
class NewConversation implements MessageTarget {
  readonly branchRef: BranchRef = { conversation: "", branch: 0 };
  readonly turn = { running: false };
  unsent = $state.raw<UnsentMessage | null>(null);
  readonly queued: readonly UnsentMessage[] = [];
  #choice = $state<string | null>(null);
  model: string = $derived(this.#choice ?? models.default);

  chooseModel(name: string): void {
    this.#choice = name === models.default ? null : name;
    void models.check(name);
  }

  async send(text: string, files: File[]): Promise<boolean> {
    const id = await conversations.create();
    if (!id) return false;
    models.setChoice(id, this.#choice);
    this.#choice = null;
    queuedMessage = { branchRef: { conversation: id, branch: 0 }, text, files };
    route.openConversation(id);
    return true;
  }

  async stop(): Promise<void> {}

  /** No turn runs before the first message, so nothing is queued. */
  queue(): void {}
  removeQueued(): void {}

  /** Takes a message back that was not recorded, with the model that was chosen for it. */
  takeBack(message: UnsentMessage, model: string | null): void {
    this.unsent = message;
    this.#choice = model;
  }
}

export const newConversation = new NewConversation();

/** Gives a message that was not recorded back to its field; the conversation that it was to begin does not stay empty. */
async function returnUnsent(store: ConversationStore, message: UnsentMessage): Promise<void> {
  const { conversation } = store.branchRef;
  if (!(await conversations.removeEmpty(store.branchRef))) {
    store.unsent = message;
    return;
  }
  newConversation.takeBack(message, store.modelChoice);
  models.setChoice(conversation, null);
  if (route.location.conversation === conversation) route.openConversation(null);
}

class CurrentConversation {
  store = $state.raw<ConversationStore | null>(null);

  #opened = 0;

  /** Opens the conversation and branch of the URL. Without a branch it is the one used last: an agent may go on there. */
  async open(conversation: string | null, requested: number | null): Promise<void> {
    const current = this.store?.branchRef;
    if (current && current.conversation === conversation && (requested ?? current.branch) === current.branch) return;
    this.store?.close();
    const opened = ++this.#opened;
    if (conversation === null) {
      this.store = null;
      return;
    }
    let branch = requested;
    if (branch === null) {
      // A conversation that cannot be read is opened all the same, and says why.
      const detail = await calls.get(conversation).catch(() => null);
      branch = detail?.branch_used_last ?? 0;
      if (opened !== this.#opened) return;
    }
    const store = (this.store = new ConversationStore({ conversation, branch }));
    await store.open();
    const queued = queuedMessage;
    if (queued && queued.branchRef.conversation === conversation && queued.branchRef.branch === branch) {
      queuedMessage = null;
      if (queued.text === null) await store.retry();
      else if (!(await store.send(queued.text, queued.files))) await returnUnsent(store, { text: queued.text, files: queued.files });
    }
  }
}

export const currentConversation = new CurrentConversation();
