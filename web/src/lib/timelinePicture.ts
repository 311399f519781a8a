/** Draws the timeline of requests on a canvas: slots under window and trigger, messages by fate, cache and cost. */

import type { SlotName } from "../api/types";
import { formatCompact } from "./format";
import { SLOTS } from "./meter";
import { chooseColumns, decodeFates, findTopTokens, type Cut, type Fate, type RequestTimeline, type TimelineRequest } from "./requestTimeline";

export const PICTURE_COLORS = [
  ...SLOTS.map((slot) => `slot-${slot}` as const),
  "slot-unknown", "fate-x", "fate-c", "fate-s", "fate-r", "fate-d", "fate-k", "fate-b", "fate-o",
  "cache-read", "cache-write", "cache-none", "cost", "ink", "soft", "line", "warn", "leaf",
] as const;
export type PictureColor = (typeof PICTURE_COLORS)[number];

export interface PictureTexts {
  window: (tokens: number) => string;
  trigger: (tokens: number) => string;
  messages: string;
  cache: string;
  cost: string;
  cut: (cut: Cut) => string;
}

/** Vertical places of the parts, in CSS pixels. */
export interface PictureLayout {
  width: number;
  height: number;
  left: number;
  plotWidth: number;
  slotsTop: number;
  slotsHeight: number;
  messagesTop: number;
  messagesHeight: number;
  cacheTop: number;
  costTop: number;
  bandHeight: number;
}

const LABELS_HEIGHT = 18;
const HEADING_HEIGHT = 18;
const MIN_LABEL_DISTANCE = 64;

export function layOutPicture(width: number, tall: boolean): PictureLayout {
  const left = width < 520 ? 34 : 46;
  const slotsHeight = tall ? 200 : 96;
  const messagesHeight = tall ? 220 : 0;
  const bandHeight = tall ? 26 : 14;
  const heading = tall ? HEADING_HEIGHT : 4;
  const slotsTop = LABELS_HEIGHT;
  const messagesTop = slotsTop + slotsHeight + (tall ? heading : 0);
  const cacheTop = messagesTop + messagesHeight + heading;
  const costTop = cacheTop + bandHeight + heading;
  return {
    width, left, plotWidth: Math.max(1, width - left - 8), slotsTop, slotsHeight, messagesTop, messagesHeight,
    cacheTop, costTop, bandHeight, height: costTop + bandHeight + 4,
  };
}

/** The request under a horizontal place. */
export function findRequest(layout: PictureLayout, count: number, x: number): number | null {
  const place = (x - layout.left) / layout.plotWidth;
  return count && place >= 0 && place < 1 ? Math.min(count - 1, Math.floor(place * count)) : null;
}

/** The message under a vertical place of the part with the messages. */
export function findMessage(layout: PictureLayout, head: number, y: number): number | null {
  const place = (y - layout.messagesTop) / layout.messagesHeight;
  return layout.messagesHeight && place >= 0 && place < 1 ? 1 + Math.floor(place * head) : null;
}

/** The newest message that any request has a fate for. */
export function findHead(requests: readonly TimelineRequest[]): number {
  return Math.max(1, decodeFates(requests.at(-1)?.fates ?? "").at(-1)?.last ?? 1);
}

export function drawPicture(
  context: CanvasRenderingContext2D,
  layout: PictureLayout,
  timeline: RequestTimeline,
  cuts: readonly Cut[],
  colors: Record<PictureColor, string>,
  texts: PictureTexts,
): void {
  const { requests } = timeline;
  const picture = new Picture(context, layout, requests, colors);
  context.clearRect(0, 0, layout.width, layout.height);
  if (!requests.length) return;
  picture.drawSlots(texts);
  if (layout.messagesHeight) picture.drawMessages(texts.messages);
  picture.drawCache(layout.messagesHeight ? texts.cache : null);
  picture.drawCost(layout.messagesHeight ? texts.cost : null);
  picture.drawCuts(cuts, texts.cut);
}

class Picture {
  /** Indexes of the requests that are drawn; one for each pixel where there are more of them. */
  readonly #columns: number[];

  constructor(
    readonly context: CanvasRenderingContext2D,
    readonly layout: PictureLayout,
    readonly requests: readonly TimelineRequest[],
    readonly colors: Record<PictureColor, string>,
  ) {
    this.#columns = chooseColumns(requests, layout.plotWidth);
    context.font = `11px ${getComputedStyle(context.canvas).fontFamily}`;
    context.textBaseline = "alphabetic";
  }

  drawSlots({ window, trigger }: PictureTexts): void {
    const { layout, context, colors } = this;
    const top = findTopTokens(this.requests);
    const toY = (tokens: number) => layout.slotsTop + layout.slotsHeight * (1 - Math.min(tokens, top) / top);
    const step = chooseStep(top);
    context.strokeStyle = colors.line;
    for (let tokens = 0; tokens < top; tokens += step) {
      this.#drawLine(toY(tokens), layout.left, layout.left + layout.plotWidth);
      this.#drawText(formatCompact(tokens), layout.left - 5, toY(tokens) + 4, { align: "right" });
    }
    this.#eachColumn((request, x, width) => {
      if (!request.slots) {
        this.#fill("slot-unknown", x, toY(request.total), width, toY(0) - toY(request.total));
        return;
      }
      let below = 0;
      for (const slot of SLOTS) {
        const used = request.slots[slot as SlotName];
        if (used) this.#fill(`slot-${slot as SlotName}`, x, toY(below + used), width, toY(below) - toY(below + used));
        below += used;
      }
    });
    this.#drawLimit("window", "soft", [], toY, top, window);
    this.#drawLimit("trigger", "warn", [5, 4], toY, top, trigger);
  }

  /** The line of a limit, which may change from one request to the next. */
  #drawLimit(
    name: "window" | "trigger", color: PictureColor, dashes: number[], toY: (tokens: number) => number, top: number, describe: (tokens: number) => string,
  ): void {
    const { context, layout, requests } = this;
    context.setLineDash(dashes);
    context.strokeStyle = this.colors[color];
    let start = 0;
    requests.forEach((request, index) => {
      const value = request[name];
      if (value === requests[index + 1]?.[name] && index + 1 < requests.length) return;
      if (value !== null && value <= top) this.#drawLine(toY(value), this.#toX(start), this.#toX(index + 1));
      start = index + 1;
    });
    context.setLineDash([]);
    const last = requests.at(-1)?.[name];
    if (last && last <= top) {
      this.#drawText(describe(last), layout.left + 4, toY(last) + (name === "window" ? -4 : 12), { color, outlined: true });
    }
  }

  drawMessages(heading: string): void {
    const { layout } = this;
    const head = findHead(this.requests);
    this.#drawText(heading, layout.left, layout.messagesTop - 6, { color: "ink", bold: true });
    this.#fill("leaf", layout.left, layout.messagesTop, layout.plotWidth, layout.messagesHeight);
    const scale = layout.messagesHeight / head;
    this.#eachColumn((request, x, width) => {
      for (const { first, last, fate } of decodeFates(request.fates)) {
        if (fate === "-") continue;
        const y = Math.round(layout.messagesTop + (first - 1) * scale);
        const end = Math.max(y + 1, Math.round(layout.messagesTop + last * scale));
        this.#fill(fateColor(fate), x, y, width, end - y);
      }
    });
    const step = chooseStep(head, 5);
    for (let seq = step; seq < head; seq += step) {
      this.#drawText(`#${seq}`, layout.left - 5, layout.messagesTop + seq * scale + 4, { align: "right" });
    }
  }

  drawCache(heading: string | null): void {
    const { layout, requests } = this;
    const most = requests.reduce((largest, each) => Math.max(largest, each.input ?? 0), 0);
    if (heading) this.#drawText(heading, layout.left, layout.cacheTop - 6, { color: "ink", bold: true });
    if (!most) return;
    this.#eachColumn((request, x, width) => {
      const read = request.cacheRead ?? 0;
      const written = read + (request.cacheWrite ?? 0);
      const levels = [["cache-none", Math.max(written, request.input ?? 0)], ["cache-write", written], ["cache-read", read]] as const;
      for (const [color, tokens] of levels) {
        const height = (layout.bandHeight * tokens) / most;
        this.#fill(color, x, layout.cacheTop + layout.bandHeight - height, width, height);
      }
    });
  }

  drawCost(heading: string | null): void {
    const { layout, requests } = this;
    const most = requests.reduce((largest, each) => Math.max(largest, each.cost ?? 0), 0);
    if (heading) this.#drawText(heading, layout.left, layout.costTop - 6, { color: "ink", bold: true });
    if (!most) return;
    this.#eachColumn((request, x, width) => {
      const height = (layout.bandHeight * (request.cost ?? 0)) / most;
      this.#fill("cost", x, layout.costTop + layout.bandHeight - height, width, height);
    });
  }

  drawCuts(cuts: readonly Cut[], describe: (cut: Cut) => string): void {
    const { context, layout, colors } = this;
    let labelled = -Infinity;
    const last = layout.left + layout.plotWidth;
    for (const cut of cuts) {
      const x = Math.round(this.#toX(cut.index)) + 0.5;
      context.strokeStyle = colors.ink;
      context.globalAlpha = 0.5;
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(x, layout.slotsTop - 4);
      context.lineTo(x, layout.height);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      if (x - labelled < MIN_LABEL_DISTANCE) continue;
      const isLast = x > last - MIN_LABEL_DISTANCE;
      this.#drawText(describe(cut), isLast ? last : x + 3, layout.slotsTop - 6, { color: "ink", bold: true, align: isLast ? "right" : "left" });
      labelled = x;
    }
  }

  #toX(index: number): number {
    return this.layout.left + (index / this.requests.length) * this.layout.plotWidth;
  }

  /** Edges are rounded to pixels, so that neighbours neither overlap nor leave a seam. */
  #eachColumn(draw: (request: TimelineRequest, x: number, width: number) => void): void {
    const { left, plotWidth } = this.layout;
    const count = this.#columns.length;
    const scale = globalThis.devicePixelRatio || 1;
    const edge = (column: number) => Math.round((left + (column / count) * plotWidth) * scale) / scale;
    this.#columns.forEach((index, column) => {
      const request = this.requests[index];
      if (request) draw(request, edge(column), edge(column + 1) - edge(column));
    });
  }

  #fill(color: PictureColor, x: number, y: number, width: number, height: number): void {
    this.context.fillStyle = this.colors[color];
    this.context.fillRect(x, y, width, height);
  }

  #drawLine(y: number, from: number, to: number): void {
    const { context } = this;
    context.beginPath();
    context.moveTo(from, Math.round(y) + 0.5);
    context.lineTo(to, Math.round(y) + 0.5);
    context.stroke();
  }

  #drawText(
    text: string, x: number, y: number,
    { align = "left", color = "soft", bold = false, outlined = false }: { align?: CanvasTextAlign; color?: PictureColor; bold?: boolean; outlined?: boolean } = {},
  ): void {
    const { context } = this;
    const font = context.font;
    if (bold) context.font = `600 ${font}`;
    context.textAlign = align;
    if (outlined) {
      context.strokeStyle = this.colors.leaf;
      context.lineWidth = 4;
      context.lineJoin = "round";
      context.strokeText(text, x, y);
      context.lineWidth = 1;
    }
    context.fillStyle = this.colors[color];
    context.fillText(text, x, y);
    context.font = font;
  }
}

function fateColor(fate: Exclude<Fate, "-">): PictureColor {
  return fate === "w" ? "slot-messages" : `fate-${fate}`;
}

/** A round distance between ticks, of which there are at most `ticks`. */
function chooseStep(top: number, ticks = 4): number {
  for (let power = 1; ; power *= 10) {
    const step = [1, 2, 5].find((each) => top / (each * power) <= ticks);
    if (step) return step * power;
  }
}
