/** Chart of tokens per request, as coordinates for a plain SVG. */

import type { Cut, TimelineRequest } from "./requestTimeline";

export interface Bar {
  reply: number;
  x: number;
  width: number;
  /** Tokens sent, and how many of them the provider read from its cache. */
  sent: number;
  cached: number;
  y: number;
  height: number;
  cachedY: number;
  cachedHeight: number;
  /** Whether a compaction happened since the request before. */
  compacted: boolean;
}

export interface Chart {
  bars: Bar[];
  /** Null for imported requests, whose trigger is not known. */
  triggerY: number | null;
  ticks: { y: number; tokens: number }[];
}

/** Bars of these requests; the indexes of the cuts are theirs. */
export function layOutChart(requests: readonly TimelineRequest[], cuts: readonly Cut[], width: number, height: number): Chart {
  const maxTokens = Math.max(1, ...requests.map((each) => Math.max(each.total, each.trigger ?? 0)));
  const top = roundUp(maxTokens);
  const scale = (tokens: number) => height - (tokens / top) * height;
  const step = width / Math.max(1, requests.length);
  const gap = step > 6 ? 2 : step > 3 ? 1 : 0;
  const bars = requests.map((each, index): Bar => {
    const sent = each.total;
    const cached = Math.min(sent, each.cacheRead ?? 0);
    return {
      reply: each.reply,
      x: index * step,
      width: Math.max(0.5, step - gap),
      sent,
      cached,
      y: scale(sent),
      height: height - scale(sent),
      cachedY: scale(cached),
      cachedHeight: height - scale(cached),
      compacted: cuts.some((cut) => cut.index === index),
    };
  });
  const trigger = requests.at(-1)?.trigger ?? null;
  const triggerY = trigger === null ? null : scale(trigger);
  return { bars, triggerY, ticks: [0.5, 1].map((part) => ({ y: scale(top * part), tokens: top * part })) };
}

/** Rounds up to the next round number. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return factor * power;
}
