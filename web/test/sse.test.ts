import { expect, test } from "vitest";

import { EventParser } from "../src/lib/sse";

test("events come out whole, however the text is cut", () => {
  const text = 'id: 1\nevent: text\ndata: {"a":\ndata: 1}\n\n:\n\nevent: turn_ended\r\ndata: {}\r\n\r\ndata: bare\n\n';
  const wanted = [
    { event: "text", data: '{"a":\n1}' },
    { event: "turn_ended", data: "{}" },
    { event: "message", data: "bare" },
  ];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
    expect(found).toEqual(wanted);
  }
});

test("an event that is not complete is not told", () => {
  expect(new EventParser().feed("event: text\ndata: half")).toEqual([]);
});
