/** The turn in progress: accumulates the streamed reply, tool calls and approval requests from turn events. */

import type { Entry, LiveEvent, Message, ToolCallPart, ToolResultPart, TurnEnded } from "../api/types";
import { messages } from "../lib/messages";
import { estimateTokens } from "../lib/meter";

export interface LiveToolCall {
  call: ToolCallPart;
  needsApproval: boolean;
  result: ToolResultPart | null;
}

export interface TurnCallbacks {
  /** An entry was recorded. */
  onEntry: (entry: Entry) => void;
  /** A request was prepared. */
  onPrepared: () => void;
  onEnded: () => void;
  /** A call needs an approval. */
  onApproval: (call: ToolCallPart) => void;
}

/** Streamed chunks are rendered in batches at this interval. */
const RENDER_INTERVAL_MS = 33;

export class TurnStore {
  running = $state(false);
  /** The question, until it is recorded. */
  question = $state.raw<Message | null>(null);
  text = $state("");
  thinking = $state("");
  calls = $state.raw<LiveToolCall[]>([]);
  /** What the turn waits for. */
  statusText = $state("");
  /** Whether the connection was lost; the turn continues on the server. */
  interrupted = $state(false);
  error = $state<string | null>(null);
  /** Whether the last turn ended with an answer. */
  answered = $state(false);
  /** Why the last turn ended, unless it was answered. */
  endText = $state<string | null>(null);
  #callbacks: TurnCallbacks;
  /** What has been received of the reply; rendered after a delay. */
  #received = { text: "", thinking: "" };
  /** Whether the events of an interrupted turn come again: the page shows what it had until they catch up. */
  #replaying = false;
  #renderTimer: ReturnType<typeof setTimeout> | null = null;

  constructor(callbacks: TurnCallbacks) {
    this.#callbacks = callbacks;
  }

  isWaiting = $derived(this.calls.some((each) => each.needsApproval));
  streamedTokens = $derived(estimateTokens(this.text) + estimateTokens(this.thinking));

  start(question: Message | null): void {
    this.#replaying = this.interrupted;
    this.running = true;
    this.question = question;
    this.#clear();
    this.interrupted = false;
    this.error = this.endText = null;
    this.answered = false;
    this.statusText = "Preparing the request";
  }

  #clear(): void {
    this.#clearReply();
    this.calls = [];
  }

  #clearReply(): void {
    if (this.#renderTimer) clearTimeout(this.#renderTimer);
    this.#renderTimer = null;
    this.#received = { text: "", thinking: "" };
    if (!this.#replaying) this.text = this.thinking = "";
  }

  #appendChunk(kind: "text" | "thinking", chunk: string): void {
    this.#received[kind] += chunk;
    this.#renderTimer ??= setTimeout(() => {
      this.#renderTimer = null;
      const { text, thinking } = this.#received;
      if (this.#replaying && (text.length < this.text.length || thinking.length < this.thinking.length)) return;
      this.#replaying = false;
      this.text = text;
      this.thinking = thinking;
    }, RENDER_INTERVAL_MS);
  }

  needsApproval(call: string): boolean {
    return this.calls.some((each) => each.call.id === call && each.needsApproval);
  }

  handleEvent(data: LiveEvent): void {
    switch (data.event) {
      case "turn_started":
        return this.start(data.message);
      case "question_recorded":
        this.question = null;
        return this.#callbacks.onEntry(data.entry);
      case "request_prepared":
        this.#clear();
        this.statusText = "Waiting for the model";
        for (const entry of data.compactions) this.#callbacks.onEntry(entry);
        return this.#callbacks.onPrepared();
      case "thinking":
        this.statusText = "Thinking";
        return this.#appendChunk("thinking", data.text);
      case "text":
        this.statusText = "";
        return this.#appendChunk("text", data.text);
      case "retry_scheduled":
        this.statusText = messages.retryingIn(Math.ceil(data.delay_seconds));
        return;
      case "reply_recorded":
        this.#replaying = false;
        this.#clearReply();
        return this.#callbacks.onEntry(data.entry);
      case "tool_called":
        this.statusText = messages.runningTool(data.call.name);
        this.calls = [...this.calls, { call: data.call, needsApproval: false, result: null }];
        return;
      case "approval_requested":
        this.statusText = "Waiting for your approval";
        this.#updateCall(data.call, { needsApproval: true });
        return this.#callbacks.onApproval(data.call);
      case "tool_completed":
        return this.#updateCall(data.call, { needsApproval: false, result: data.result });
      case "turn_ended":
        this.answered = data.reason === "answered";
        return this.#end(describeEnd(data));
      case "turn_failed":
        this.error = data.problem.detail;
        return this.#end(null);
    }
  }

  #updateCall(call: ToolCallPart, changes: Partial<LiveToolCall>): void {
    const isKnown = this.calls.some((each) => each.call.id === call.id);
    const all = isKnown ? this.calls : [...this.calls, { call, needsApproval: false, result: null }];
    this.calls = all.map((each) => (each.call.id === call.id ? { ...each, ...changes } : each));
  }

  #end(endText: string | null): void {
    this.endText = endText;
    this.stop();
    this.#callbacks.onEnded();
  }

  /** Keeps what has arrived: the turn continues on the server, and its events come again from the start. */
  interrupt(): void {
    this.interrupted = true;
    this.statusText = "Connection lost; the reply continues on the server";
  }

  /** Ends the turn on the page; no further event is expected. */
  stop(): void {
    this.running = this.interrupted = this.#replaying = false;
    this.statusText = "";
    this.#clear();
  }
}

const END_TEXTS = {
  truncated: "The reply was cut off at its token limit.",
  empty: "The model returned an empty reply.",
  max_steps: "The turn reached its limit of model calls.",
  max_cost: "The turn reached its limit of cost.",
  stopped: "Stopped.",
} as const;

const SUGGESTION_TEXTS = { add: "suggestAdd", remove: "suggestRemove", refer: "suggestRefer" } as const;

/** Why a turn has no complete answer, or what it suggests for the next one. */
function describeEnd({ reason, suggestion }: TurnEnded): string | null {
  if (reason !== "answered") return END_TEXTS[reason];
  return suggestion ? messages[SUGGESTION_TEXTS[suggestion.action]](suggestion.name) : null;
}
