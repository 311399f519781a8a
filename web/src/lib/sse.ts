/** Server-sent events (SSE) from a `fetch` stream, because `EventSource` can send neither a body nor an API key. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Incremental SSE parser: accepts chunks cut anywhere and returns complete events. Comments are heartbeats. */
export class EventParser {
  #buffer = "";
  #event = "";
  #data: string[] = [];

  feed(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    const lines = (this.#buffer + text).split(/\r\n|\n|\r(?!$)/);
    this.#buffer = lines.pop() ?? "";
    for (const line of lines) {
      const event = this.#parseLine(line);
      if (event) events.push(event);
    }
    return events;
  }

  #parseLine(line: string): ServerEvent | null {
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
    const event = this.#data.length ? { event: this.#event || "message", data: this.#data.join("\n") } : null;
    this.#event = "";
    this.#data = [];
    return event;
  }
}

/** Yields the events of a response body as they arrive. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
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
