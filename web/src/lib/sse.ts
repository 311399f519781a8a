/** Server-sent events out of a byte stream. `EventSource` can neither post nor send a key, so they are read by hand. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Takes text in whatever pieces it comes, and gives every event that is complete. Comments are heart-beats. */
export class EventParser {
  #rest = "";
  #event = "";
  #data: string[] = [];

  feed(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      const event = this.#line(line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line: string): ServerEvent | null {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event = value;
    if (field === "data") this.#data.push(value);
    return null;
  }

  #dispatch(): ServerEvent | null {
    const found = this.#data.length ? { event: this.#event || "message", data: this.#data.join("\n") } : null;
    this.#event = "";
    this.#data = [];
    return found;
  }
}

/** The events of a response, as they come. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
