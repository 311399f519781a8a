/** A turn under way: what has come of the reply, which tools run, who is asked for leave. */

import type { Entry, LiveEvent, Message, ToolCallPart, ToolResultPart } from "../api/types";
import { tokensOf } from "../lib/meter";

export interface Call {
  call: ToolCallPart;
  asked: boolean;
  result: ToolResultPart | null;
}

const FRAME = 33;

export interface Heard {
  kept: (entry: Entry) => void;
  prepared: () => void;
  ended: () => void;
}

export class Turn {
  running = $state(false);
  /** What was asked, as long as it is not in the log. */
  asked = $state.raw<Message | null>(null);
  text = $state("");
  thinking = $state("");
  calls = $state.raw<Call[]>([]);
  /** What it waits for, in words. */
  waiting = $state("");
  error = $state<string | null>(null);
  /** How the last turn ended, where that is worth a word. */
  ending = $state<string | null>(null);
  #heard: Heard;
  /** What came since the page was last drawn: a frame's words at once, however many events they are. */
  #words = { text: "", thinking: "" };
  #drawing: ReturnType<typeof setTimeout> | null = null;

  constructor(heard: Heard) {
    this.#heard = heard;
  }

  streamed = $derived(tokensOf(this.text) + tokensOf(this.thinking));

  begin(asked: Message | null): void {
    this.running = true;
    this.asked = asked;
    this.#clear();
    this.error = this.ending = null;
    this.waiting = "Getting the request ready";
  }

  #clear(): void {
    this.#hush();
    this.calls = [];
  }

  #hush(): void {
    if (this.#drawing) clearTimeout(this.#drawing);
    this.#drawing = null;
    this.#words = { text: "", thinking: "" };
    this.text = this.thinking = "";
  }

  #say(kind: "text" | "thinking", words: string): void {
    this.#words[kind] += words;
    this.#drawing ??= setTimeout(() => {
      this.#drawing = null;
      this.text += this.#words.text;
      this.thinking += this.#words.thinking;
      this.#words = { text: "", thinking: "" };
    }, FRAME);
  }

  hear(data: LiveEvent): void {
    switch (data.event) {
      case "turn_started":
        return this.begin(data.message);
      case "question_kept":
        this.asked = null;
        return this.#heard.kept(data.entry);
      case "request_prepared":
        this.#clear();
        this.waiting = "Waiting for the model";
        for (const entry of data.compacted ?? []) this.#heard.kept(entry);
        return this.#heard.prepared();
      case "thinking":
        this.waiting = "Thinking";
        return this.#say("thinking", data.text);
      case "text":
        this.waiting = "";
        return this.#say("text", data.text);
      case "retrying":
        this.waiting = `The model did not answer; asking again in ${Math.ceil(data.seconds)} s`;
        return;
      case "reply_kept":
        this.#hush();
        return this.#heard.kept(data.entry);
      case "tool_called":
        this.waiting = `Running ${data.call.name}`;
        this.calls = [...this.calls, { call: data.call, asked: false, result: null }];
        return;
      case "approval_asked":
        this.waiting = "Waiting for your leave";
        return this.#change(data.call, { asked: true });
      case "tool_answered":
        return this.#change(data.call, { asked: false, result: data.result });
      case "turn_ended":
        return this.#end(ENDINGS[data.reason] ?? null);
      case "turn_failed":
        this.error = data.problem?.detail ?? "The turn failed.";
        return this.#end(null);
    }
  }

  #change(call: ToolCallPart, changes: Partial<Call>): void {
    const there = this.calls.some((each) => each.call.id === call.id);
    const all = there ? this.calls : [...this.calls, { call, asked: false, result: null }];
    this.calls = all.map((each) => (each.call.id === call.id ? { ...each, ...changes } : each));
  }

  #end(ending: string | null): void {
    this.ending = ending;
    this.stop();
    this.#heard.ended();
  }

  /** Nothing more comes. */
  stop(): void {
    this.running = false;
    this.waiting = "";
    this.#clear();
  }
}

const ENDINGS: Record<string, string> = {
  truncated: "The reply was cut at the limit of its tokens.",
  empty: "The model said nothing.",
  steps: "The turn had as many replies as it may have.",
  stopped: "Stopped.",
};
