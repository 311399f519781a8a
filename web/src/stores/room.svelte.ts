/** The conversation in view: its transcript, the turn under way, the meter, and word from other windows. */

import { context, conversations as calls, documents, turns, type Line } from "../api/calls";
import { isAborted, Problem } from "../api/client";
import type { Branch, ConversationWhole, Entry, FilePart, LiveEvent, Message, Usage } from "../api/types";
import { eventsOf } from "../lib/sse";
import { conversations } from "./conversations.svelte";
import { notices } from "./notices.svelte";
import { route } from "./route.svelte";
import { Transcript } from "./transcript.svelte";
import { Turn } from "./turn.svelte";

const SOONEST = 500;
const LATEST = 10_000;

export class Room {
  readonly line: Line;
  readonly transcript: Transcript;
  readonly turn: Turn;
  whole = $state.raw<ConversationWhole | null>(null);
  usage = $state.raw<Usage | null>(null);
  /** Goes up whenever a request may have been made or the window changed. */
  version = $state(0);
  missing = $state<string | null>(null);
  /** Whether word from other windows comes. */
  connected = $state(true);
  #closing = new AbortController();
  #sending = false;
  #metering: ReturnType<typeof setTimeout> | null = null;

  constructor(line: Line) {
    this.line = line;
    this.transcript = new Transcript(line);
    this.turn = new Turn({
      kept: (entry: Entry) => {
        this.transcript.append(entry);
        if (!this.whole?.title) void this.describe();
      },
      prepared: () => void this.changed(),
      ended: () => void this.changed(),
    });
  }

  branches: Branch[] = $derived(this.whole?.branches ?? []);
  branch: Branch | undefined = $derived(this.branches.find((each) => each.number === this.line.branch));

  async open(): Promise<void> {
    try {
      const whole = calls.get(this.line.conversation);
      await this.transcript.open();
      this.whole = await whole;
      void this.#listen();
      await this.changed();
    } catch (error) {
      if (error instanceof Problem && error.status === 404) this.missing = error.message;
      else notices.fail(error);
    }
  }

  close(): void {
    this.#closing.abort();
    if (this.#metering) clearTimeout(this.#metering);
  }

  async describe(): Promise<void> {
    const whole = await notices.try(() => calls.get(this.line.conversation));
    if (!whole) return;
    this.whole = whole;
    conversations.called(whole.id, whole.title);
  }

  /** Reads the meter again. Several calls in quick succession are one. */
  async changed(): Promise<void> {
    this.version++;
    if (this.#metering) clearTimeout(this.#metering);
    await new Promise<void>((done) => {
      this.#metering = setTimeout(async () => {
        if (!this.#closing.signal.aborted) this.usage = (await notices.try(() => context.usage(this.line))) ?? this.usage;
        done();
      }, 60);
    });
  }

  /** Something was appended by hand: reads it, and the meter. */
  async catchUp(): Promise<void> {
    await this.describe();
    await this.transcript.moved(this.branch?.head ?? 0);
    await this.changed();
  }

  /** Asks something; says whether it is in the log now, whatever became of the answer. */
  async send(text: string, files: File[] = []): Promise<boolean> {
    const message = await notices.try(() => this.#message(text, files));
    return message !== undefined && (await this.#run(message));
  }

  async #message(text: string, files: File[]): Promise<Message> {
    const parts: FilePart[] = [];
    for (const file of files) {
      const kept = await documents.keep(file);
      const type = kept.media_type.startsWith("image/") ? "image" : "file";
      parts.push({ type, blob: kept.blob, media_type: kept.media_type, ...(type === "file" ? { name: file.name } : {}) });
    }
    return { role: "user", parts: [...(text ? [{ type: "text" as const, text }] : []), ...parts] };
  }

  async #run(message: Message): Promise<boolean> {
    this.#sending = true;
    this.turn.begin(message);
    try {
      const response = await turns.send(this.line, message);
      if (response.body) for await (const { data } of eventsOf(response.body)) this.turn.hear(JSON.parse(data));
    } catch (error) {
      notices.fail(error);
    } finally {
      this.#sending = false;
      this.turn.stop();
      conversations.touch(this.line.conversation);
      void this.changed();
    }
    return this.turn.asked === null;
  }

  async stop(): Promise<void> {
    await notices.try(() => turns.stop(this.line));
  }

  async decide(call: string, approve: boolean): Promise<void> {
    await notices.try(() => turns.approve(this.line, call, approve));
  }

  /** Says something else in place of message `seq`, on a branch of its own. */
  async resend(seq: number, text: string): Promise<void> {
    const branch = await notices.try(() => calls.fork(this.line.conversation, seq - 1, this.line.branch));
    if (!branch) return;
    pending = { line: { conversation: this.line.conversation, branch: branch.number }, text };
    route.open(this.line.conversation, branch.number);
  }

  async fork(seq: number): Promise<void> {
    const branch = await notices.try(() => calls.fork(this.line.conversation, seq, this.line.branch));
    if (!branch) return;
    notices.say(`Branch ${branch.number} begins after #${seq}.`);
    route.open(this.line.conversation, branch.number);
  }

  async #listen(): Promise<void> {
    let wait = SOONEST;
    while (!this.#closing.signal.aborted) {
      try {
        const response = await turns.events(this.line, this.#closing.signal);
        this.connected = true;
        wait = SOONEST;
        if (response.body) for await (const { data } of eventsOf(response.body)) await this.#told(JSON.parse(data));
      } catch (error) {
        if (isAborted(error)) return;
        if (error instanceof Problem && error.status === 401) return notices.fail(error);
      }
      if (this.#closing.signal.aborted) return;
      this.connected = false;
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(LATEST, wait * 2);
    }
  }

  /** Word of this branch, and of others. */
  async #told(told: LiveEvent): Promise<void> {
    if (told.branch !== this.line.branch) {
      const known = this.branches.find((each) => each.number === told.branch);
      if (told.event === "changed" && known?.head !== told.head) await this.describe();
    } else if (told.event === "changed") {
      const before = this.transcript.head;
      await this.transcript.moved(told.head);
      if (this.transcript.head === before || this.#sending) return;
      void this.changed();
      if (!this.whole?.title) void this.describe();
    } else if (!this.#sending) this.turn.hear(told);
  }
}

/** What is to be said as soon as a branch is open. */
let pending: { line: Line; text: string } | null = null;

class Rooms {
  current = $state.raw<Room | null>(null);

  /** Opens what the address names. */
  async enter(conversation: string | null, branch: number): Promise<void> {
    const here = this.current?.line;
    if (here && here.conversation === conversation && here.branch === branch) return;
    this.current?.close();
    if (conversation === null) {
      this.current = null;
      return;
    }
    const room = (this.current = new Room({ conversation, branch }));
    await room.open();
    const said = pending;
    if (said && said.line.conversation === conversation && said.line.branch === branch) {
      pending = null;
      await room.send(said.text);
    }
  }
}

export const rooms = new Rooms();
