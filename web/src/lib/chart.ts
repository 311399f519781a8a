/** Chart of tokens per request, as coordinates for a plain SVG. */

import type { RequestSummary } from "../api/types";

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
  triggerY: number;
  ticks: { y: number; tokens: number }[];
}

export function layOutChart(requests: readonly RequestSummary[], width: number, height: number): Chart {
  const maxTokens = Math.max(1, ...requests.map((each) => Math.max(countSentTokens(each), each.trigger_tokens)));
  const top = roundUp(maxTokens);
  const scale = (tokens: number) => height - (tokens / top) * height;
  const step = width / Math.max(1, requests.length);
  const gap = step > 6 ? 2 : step > 3 ? 1 : 0;
  const bars = requests.map((each, index): Bar => {
    const sent = countSentTokens(each);
    const cached = Math.min(sent, each.usage?.cache_read_tokens ?? 0);
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
      compacted: index > 0 && (each.compaction_seq ?? null) !== (requests[index - 1]?.compaction_seq ?? null),
    };
  });
  const triggerY = scale(requests.at(-1)?.trigger_tokens ?? 0);
  return { bars, triggerY, ticks: [0.5, 1].map((part) => ({ y: scale(top * part), tokens: top * part })) };
}

/** The provider's count where it reported one, otherwise the engine's. */
function countSentTokens({ usage, total_tokens }: RequestSummary): number {
  return usage && !usage.estimated && usage.input_tokens ? usage.input_tokens : total_tokens;
}

/** Rounds up to the next round number. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return factor * power;
}
