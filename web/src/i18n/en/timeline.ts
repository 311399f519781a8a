/** The picture of a conversation's requests. */

import { createCounter, createNumberFormat } from "../plurals";

const count = createCounter("en");
const number = createNumberFormat("en");

export const timeline = {
  timelineTitle: "Requests over time",
  timelineMessages: "Messages",
  timelineRequests: (requests: number, turns: number) =>
    `${count(requests, { one: "request", other: "requests" })} in ${count(turns, { one: "turn", other: "turns" })}`,
  timelineCached: (percent: string) => `${percent} of the input from the cache`,
  timelineCost: (dollars: string) => `${dollars} in all`,
  timelineWindow: (tokens: number) => `window ${number(tokens)}`,
  timelineTrigger: (tokens: number) => `compacts at ${number(tokens)}`,
  timelineMessagesHeading: "Every message, and what became of it in each request",
  timelineCacheHeading: "Input: from the cache, written to it, neither",
  timelineCostHeading: "Cost of each request",
  timelineSlider: "Request",
  timelineHint: "Arrow keys select a request, Enter opens it. A click on a message goes to it.",
  timelineUnknownSlot: "Sent, parts unknown",
  timelineRequest: (turn: number, step: number, reply: number) => `Turn ${turn}, call ${step}, answered by #${reply}`,
  timelineTokens: (tokens: string, window: number | null) => (window ? `${tokens} of ${number(window)} tokens` : `${tokens} tokens`),
  timelineFromCache: (tokens: number) => `${number(tokens)} from the cache`,
  timelineAfterCut: (author: string, freed: number) => `after a compaction by ${author}, which freed ${number(freed)}`,
  timelineMessageFate: (seq: number, fate: string) => `message #${seq}: ${fate}`,
  timelineTable: "The same as a table",
  timelineMore: (rows: number) => `Show ${number(rows)} earlier requests`,
  timelineColumns: { turn: "Turn", step: "Call", reply: "Reply", tokens: "Tokens", cached: "Cached", cost: "Cost", before: "Before it" },
  timelineLegendMessages: "A message is",
  timelineAuthors: { quire: "Quire", client: "the agent", provider: "the provider", user: "you", model: "the model" },
  timelineFates: {
    w: "whole",
    x: "shortened",
    c: "cleared, a stub names it",
    s: "only in the summary",
    r: "recalled",
    d: "dropped by you",
    k: "pinned, of priority, or the question",
    b: "restored by you",
    o: "left out",
    "-": "no part of the request",
  },
  timelineBands: { read: "read from the cache", cost: "cost" },
};
