import { expect, test } from "vitest";

import { EventParser, type ServerEvent } from "../src/lib/sse";

test("events are complete, wherever the chunks are cut", () => {
  const text = 'id: 1\nevent: text\ndata: {"a":\ndata: 1}\n\n:\n\nevent: turn_ended\r\ndata: {}\r\n\r\ndata: bare\n\n';
  const expected = [
    { event: "text", data: '{"a":\n1}' },
    { event: "turn_ended", data: "{}" },
    { event: "message", data: "bare" },
  ];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const events: ServerEvent[] = [];
    for (let start = 0; start < text.length; start += size) events.push(...parser.feed(text.slice(start, start + size)));
    expect(events).toEqual(expected);
  }
});

test("an incomplete event is not returned", () => {
  expect(new EventParser().feed("event: text\ndata: half")).toEqual([]);
});
