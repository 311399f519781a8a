/** Tokens over the turns, as coordinates for a plain SVG. */

import type { RequestShown } from "../api/types";

export interface Bar {
  reply: number;
  x: number;
  width: number;
  /** What was sent, and of it what the provider had in its cache. */
  sent: number;
  cached: number;
  y: number;
  height: number;
  cachedY: number;
  cachedHeight: number;
  /** A compaction was made since the request before. */
  compacted: boolean;
}

export interface Chart {
  bars: Bar[];
  trigger: number;
  ticks: { y: number; tokens: number }[];
  top: number;
}

export function chart(requests: readonly RequestShown[], width: number, height: number): Chart {
  const limit = Math.max(1, ...requests.map((each) => Math.max(sent(each), each.trigger)));
  const top = niceTop(limit);
  const scale = (tokens: number) => height - (tokens / top) * height;
  const step = width / Math.max(1, requests.length);
  const gap = step > 6 ? 2 : step > 3 ? 1 : 0;
  const bars = requests.map((each, index): Bar => {
    const total = sent(each);
    const cached = Math.min(total, each.usage?.cache_read_tokens ?? 0);
    return {
      reply: each.reply,
      x: index * step,
      width: Math.max(0.5, step - gap),
      sent: total,
      cached,
      y: scale(total),
      height: height - scale(total),
      cachedY: scale(cached),
      cachedHeight: height - scale(cached),
      compacted: index > 0 && (each.summary ?? null) !== (requests[index - 1]?.summary ?? null),
    };
  });
  const trigger = scale(requests.at(-1)?.trigger ?? 0);
  return { bars, trigger, ticks: [0.5, 1].map((part) => ({ y: scale(top * part), tokens: top * part })), top };
}

function sent(request: RequestShown): number {
  return request.usage && !request.usage.estimated && request.usage.input_tokens ? request.usage.input_tokens : request.total;
}

/** The next round number. */
export function niceTop(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return factor * power;
}
