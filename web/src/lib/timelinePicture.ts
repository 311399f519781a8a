/**
 * Draws the timeline of requests on a canvas: slots under window and trigger, messages by fate, cache and cost.
 *
 * The areas are written as pixels, so that a picture of 5,000 requests takes as long as one of 50; lines and texts follow.
 */

import { formatCompact, formatDollars } from "./format";
import { SLOTS } from "./meter";
import { FATE_BITS, FATE_MASK, FATES, readRuns, type Cut, type RequestTimeline, type TimelineRequest, type TimelineScale } from "./requestTimeline";
import { chooseColumns, chooseColumnWidth, type TimelineView } from "./timelineView";

export const PICTURE_COLORS = [
  ...SLOTS.map((slot) => `slot-${slot}` as const),
  "slot-unknown", "fate-w", "fate-x", "fate-c", "fate-s", "fate-r", "fate-d", "fate-k", "fate-b", "fate-o",
  "cache-read", "cache-write", "cache-none", "cost", "ink", "soft", "line", "warn", "leaf", "tint",
] as const;
export type PictureColor = (typeof PICTURE_COLORS)[number];

export interface PictureTexts {
  window: (tokens: number) => string;
  trigger: (tokens: number) => string;
  messages: string;
  cache: string;
  cost: string;
  cut: (cut: Cut) => string;
  turn: (turn: number) => string;
  step: (step: number) => string;
}

/** Places of the parts, in CSS pixels. A part without data has no height. */
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
  cacheHeight: number;
  costTop: number;
  costHeight: number;
}

export interface PictureParts {
  messages: boolean;
  cache: boolean;
  cost: boolean;
}

const CUTS_HEIGHT = 24;
const AXIS_HEIGHT = 18;
const HEADING_HEIGHT = 20;
const LABEL_HEIGHT = 13;
const BAND_GAP = 5;
const MIN_LABEL_DISTANCE = 62;
const MIN_TURN_LABEL_DISTANCE = 76;
/** Columns of at least this width have a gap between them. */
const MIN_GAP_COLUMN_PX = 9;
/** Columns up to this width are written faster pixel by pixel. */
const MAX_NARROW_PX = 8;
/** Compactions and cache breaks that are closer than this, on average, are drawn with fainter and shorter marks. */
const DENSE_PX = 16;

export function layOutPicture(width: number, height: number, parts: PictureParts): PictureLayout {
  const left = width < 520 ? 38 : 52;
  const band = Math.round(Math.min(34, Math.max(11, height * 0.06)));
  const bands = [parts.cache, parts.cost].filter(Boolean).length * (band + BAND_GAP);
  const heading = parts.messages ? HEADING_HEIGHT : 0;
  const room = Math.max(40, height - CUTS_HEIGHT - AXIS_HEIGHT - bands - heading);
  const slotsHeight = Math.round(parts.messages ? room * 0.6 : room);
  const messagesTop = CUTS_HEIGHT + slotsHeight + heading;
  const messagesHeight = parts.messages ? room - slotsHeight : 0;
  const cacheTop = messagesTop + messagesHeight + BAND_GAP;
  const costTop = parts.cache ? cacheTop + band + BAND_GAP : cacheTop;
  return {
    width, left, plotWidth: Math.max(1, Math.floor(width - left - 10)), slotsTop: CUTS_HEIGHT, slotsHeight, messagesTop, messagesHeight,
    cacheTop, cacheHeight: parts.cache ? band : 0, costTop, costHeight: parts.cost ? band : 0,
    height: messagesTop + messagesHeight + bands + AXIS_HEIGHT,
  };
}

/** The request under a horizontal place. */
export function findRequest(layout: PictureLayout, view: TimelineView, count: number, x: number): number | null {
  const index = Math.floor(view.first + ((x - layout.left) / layout.plotWidth) * view.span);
  return x >= layout.left && x < layout.left + layout.plotWidth && index >= 0 && index < count ? index : null;
}

/** The message under a vertical place of the part with the messages. */
export function findMessage(layout: PictureLayout, head: number, y: number): number | null {
  const place = (y - layout.messagesTop) / layout.messagesHeight;
  return layout.messagesHeight && place >= 0 && place < 1 ? 1 + Math.floor(place * head) : null;
}

/** The compaction whose label or line is under a place above the slots. */
export function findCut(layout: PictureLayout, view: TimelineView, cuts: readonly Cut[], x: number, y: number): Cut | null {
  if (y > layout.slotsTop) return null;
  const labelled = chooseLabels(layout, view, cuts);
  return labelled.findLast(({ from, to }) => x >= from - 3 && x <= to)?.cut ?? null;
}

/** Compactions with room for a label, and where it is. */
function chooseLabels(layout: PictureLayout, view: TimelineView, cuts: readonly Cut[]): { cut: Cut; from: number; to: number }[] {
  const labels: { cut: Cut; from: number; to: number }[] = [];
  const end = layout.left + layout.plotWidth;
  for (const cut of cuts) {
    const x = toX(layout, view, cut.index);
    const from = Math.min(x, end - MIN_LABEL_DISTANCE);
    if (x < layout.left || x > end + 1 || from - (labels.at(-1)?.from ?? -Infinity) < MIN_LABEL_DISTANCE) continue;
    labels.push({ cut, from, to: from + MIN_LABEL_DISTANCE - 4 });
  }
  return labels;
}

/** The newest message of the visible requests. */
export function findHead(requests: readonly TimelineRequest[], { first, span }: TimelineView): number {
  const last = requests[Math.min(requests.length, Math.ceil(first + span)) - 1];
  return Math.max(1, Math.floor((last ? (readRuns(last).at(-1) ?? 0) : 0) / (1 << FATE_BITS)));
}

export function toX(layout: PictureLayout, view: TimelineView, index: number): number {
  return layout.left + ((index - view.first) / view.span) * layout.plotWidth;
}

export interface PictureInput {
  layout: PictureLayout;
  view: TimelineView;
  timeline: RequestTimeline;
  scale: TimelineScale;
  cuts: readonly Cut[];
  /** Indexes of the requests that found less in the cache than they could have. */
  breaks: readonly number[];
  colors: Record<PictureColor, string>;
  fontFamily: string;
  texts: PictureTexts;
}

export function drawPicture(context: CanvasRenderingContext2D, input: PictureInput): void {
  const { layout, view, timeline, scale, colors, texts } = input;
  const { requests } = timeline;
  const pixelRatio = globalThis.devicePixelRatio || 1;
  const [width, height] = [Math.round(layout.width * pixelRatio), Math.round(layout.height * pixelRatio)];
  if (context.canvas.width !== width || context.canvas.height !== height) {
    [context.canvas.width, context.canvas.height] = [width, height];
    context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    // Not for every picture: the browser resolves the styles of the whole page to set a font.
    context.font = `11px ${input.fontFamily}`;
  } else context.clearRect(0, 0, layout.width, layout.height);
  if (!requests.length) return;
  const head = findHead(requests, view);
  const raster = new Raster(layout, view, requests, colors, pixelRatio);
  raster.drawSlots(scale.tokens);
  if (layout.messagesHeight) raster.drawMessages(head);
  if (layout.cacheHeight) raster.drawCache(scale.inputTokens);
  if (layout.costHeight) raster.drawCost(scale.cost || 1);
  raster.put(context);
  const pen = new Pen(context, colors);
  drawTokenAxis(pen, layout, scale.tokens);
  drawCuts(pen, input);
  drawLimit(pen, input, "window");
  drawLimit(pen, input, "trigger");
  if (layout.messagesHeight) drawMessageAxis(pen, layout, head, texts.messages);
  drawBandLabels(pen, input);
  drawTurnAxis(pen, input);
}

/** Pixels of the plot, written column by column: one pixel wide where a column is shared, and stretched when it is put. */
class Raster {
  readonly #image: ImageData;
  readonly #pixels: Uint32Array;
  /** Their right edges leave a gap between wide ones. */
  readonly #columns: { index: number; from: number; end: number }[];
  readonly #colors: Record<PictureColor, number>;

  constructor(
    readonly layout: PictureLayout,
    view: TimelineView,
    readonly requests: readonly TimelineRequest[],
    colors: Record<PictureColor, string>,
    readonly pixelRatio: number,
  ) {
    const plotWidth = Math.round(layout.plotWidth * pixelRatio);
    const width = Math.ceil(plotWidth / chooseColumnWidth(requests, view, plotWidth));
    this.#image = takeImage(width, Math.round(layout.height * pixelRatio));
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#columns = chooseColumns(requests, view, width).map(({ index, from, to }) => ({ index, from, end: to - from >= MIN_GAP_COLUMN_PX * pixelRatio ? to - 1 : to }));
    this.#colors = Object.fromEntries(PICTURE_COLORS.map((name) => [name, packColor(colors[name])])) as Record<PictureColor, number>;
  }

  put(context: CanvasRenderingContext2D): void {
    const { left, plotWidth, height } = this.layout;
    if (this.#image.width === Math.round(plotWidth * this.pixelRatio)) {
      context.putImageData(this.#image, Math.round(left * this.pixelRatio), 0);
      return;
    }
    narrowCanvas ??= new OffscreenCanvas(this.#image.width, this.#image.height);
    if (narrowCanvas.width !== this.#image.width) narrowCanvas.width = this.#image.width;
    if (narrowCanvas.height !== this.#image.height) narrowCanvas.height = this.#image.height;
    narrowCanvas.getContext("2d")?.putImageData(this.#image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(narrowCanvas, left, 0, plotWidth, height);
  }

  drawSlots(top: number): void {
    const { slotsTop, slotsHeight } = this.layout;
    this.#eachColumn((request, fill) => {
      const toY = (tokens: number) => slotsTop + slotsHeight * (1 - Math.min(tokens, top) / top);
      const { slots } = request;
      if (!slots) return fill("slot-unknown", toY(request.total), toY(0));
      let below = 0;
      for (const slot of SLOTS) {
        const used = slots[slot];
        if (used) fill(`slot-${slot}`, toY(below + used), toY(below));
        below += used;
      }
    });
  }

  drawMessages(head: number): void {
    const { messagesTop, messagesHeight } = this.layout;
    const rows = Math.round(messagesHeight * this.pixelRatio);
    const top = Math.round(messagesTop * this.pixelRatio);
    const rowsPerMessage = rows / head;
    const { width } = this.#image;
    const colors = FATES.map((fate) => this.#colors[fate === "-" ? "leaf" : (`fate-${fate}` as const)]);
    for (const { index, from, end } of this.#columns) {
      const request = this.requests[index];
      if (!request) continue;
      const runs = readRuns(request);
      let filled = 0;
      let filledFate = 0;
      let begin = 0;
      for (let at = 0; at < runs.length; at++) {
        const run = runs[at] ?? 0;
        const fate = run & FATE_MASK;
        let row = begin;
        begin = Math.floor((run >>> FATE_BITS) * rowsPerMessage);
        const stop = begin > row ? begin : row + 1;
        // Several messages share a pixel; the fate that says more has it.
        if (row < filled && fate < filledFate) row = filled;
        if (fate && stop > row) this.#fill(colors[fate] ?? 0, from, end, (top + row) * width, (top + stop) * width);
        if (stop > filled) filled = stop;
        filledFate = fate;
      }
    }
  }

  drawCache(most: number): void {
    const { cacheTop, cacheHeight } = this.layout;
    this.#eachColumn((request, fill) => {
      const read = request.cacheRead ?? 0;
      const written = read + (request.cacheWrite ?? 0);
      const toY = (tokens: number) => cacheTop + cacheHeight * (1 - Math.min(1, tokens / most));
      fill("cache-none", toY(Math.max(written, request.input ?? 0)), toY(written));
      fill("cache-write", toY(written), toY(read));
      fill("cache-read", toY(read), toY(0));
    });
  }

  drawCost(most: number): void {
    const { costTop, costHeight } = this.layout;
    this.#eachColumn((request, fill) => fill("cost", costTop + costHeight * (1 - (request.cost ?? 0) / most), costTop + costHeight));
  }

  #eachColumn(draw: (request: TimelineRequest, fill: (color: PictureColor, top: number, bottom: number) => void) => void): void {
    const { width } = this.#image;
    for (const { index, from, end } of this.#columns) {
      const request = this.requests[index];
      if (!request) continue;
      draw(request, (color, top, bottom) => {
        const [first, last] = [Math.round(top * this.pixelRatio), Math.round(bottom * this.pixelRatio)];
        this.#fill(this.#colors[color], from, end, first * width, last * width);
      });
    }
  }

  /** Writes the pixels `from` to `end` of the rows that start at `begin` up to `last`. */
  #fill(value: number, from: number, end: number, begin: number, last: number): void {
    const pixels = this.#pixels;
    const { width } = this.#image;
    if (end - from > MAX_NARROW_PX) for (let row = begin; row < last; row += width) pixels.fill(value, row + from, row + end);
    else for (let row = begin; row < last; row += width) for (let at = row + from; at < row + end; at++) pixels[at] = value;
  }
}

let lastImage: ImageData | null = null;
let narrowCanvas: OffscreenCanvas | null = null;

/** The image of the last picture, cleared, if it has the size: a new one of megabytes for every frame would be garbage. */
function takeImage(width: number, height: number): ImageData {
  if (lastImage?.width === width && lastImage.height === height) lastImage.data.fill(0);
  else lastImage = new ImageData(width, height);
  return lastImage;
}

/** "rgb(43, 93, 99)" as a pixel. */
function packColor(color: string): number {
  const [red = 0, green = 0, blue = 0] = (color.match(/[\d.]+/g) ?? []).map(Number);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

class Pen {
  constructor(readonly context: CanvasRenderingContext2D, readonly colors: Record<PictureColor, string>) {}

  line(color: PictureColor, points: readonly [number, number, number, number], dashes: number[] = [], alpha = 1): void {
    const { context } = this;
    context.setLineDash(dashes);
    context.globalAlpha = alpha;
    context.strokeStyle = this.colors[color];
    context.beginPath();
    context.moveTo(points[0], points[1]);
    context.lineTo(points[2], points[3]);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  text(
    text: string, x: number, y: number,
    { align = "left", color = "soft", boxed = false }: { align?: CanvasTextAlign; color?: PictureColor; boxed?: boolean } = {},
  ): void {
    const { context } = this;
    context.textAlign = align;
    if (boxed) {
      const { width } = context.measureText(text);
      context.fillStyle = this.colors.leaf;
      context.globalAlpha = 0.85;
      context.fillRect((align === "right" ? x - width : x) - 2, y - 10, width + 4, 13);
      context.globalAlpha = 1;
    }
    context.fillStyle = this.colors[color];
    context.fillText(text, x, y);
  }
}

function drawTokenAxis(pen: Pen, layout: PictureLayout, top: number): void {
  const step = chooseStep(top, layout.slotsHeight < 90 ? 3 : 5);
  for (let tokens = 0; tokens < top; tokens += step) {
    const y = layout.slotsTop + layout.slotsHeight * (1 - tokens / top);
    if (y < layout.slotsTop + 4) break;
    pen.text(formatCompact(tokens), layout.left - 6, y + (tokens ? 4 : 0), { align: "right" });
    pen.line("line", [layout.left - 3, Math.round(y) - 0.5, layout.left, Math.round(y) - 0.5]);
  }
  const bottom = layout.slotsTop + layout.slotsHeight + 0.5;
  pen.line("line", [layout.left, bottom, layout.left + layout.plotWidth, bottom]);
}

/** The line of a limit, which may change from one request to the next; the last one extends to the right edge. */
function drawLimit(pen: Pen, { layout, view, timeline, scale, texts }: PictureInput, name: "window" | "trigger"): void {
  const { requests } = timeline;
  const top = scale.tokens;
  const toY = (tokens: number) => Math.round(layout.slotsTop + layout.slotsHeight * (1 - tokens / top)) + 0.5;
  const edge = layout.left + layout.plotWidth;
  const [color, dashes] = name === "window" ? (["soft", []] as const) : (["warn", [5, 4]] as const);
  const first = Math.max(0, Math.floor(view.first));
  const end = Math.min(requests.length, Math.ceil(view.first + view.span));
  let start = first;
  for (let index = first; index < end; index++) {
    const value = requests[index]?.[name] ?? null;
    const isLast = index + 1 === end;
    if (!isLast && value === requests[index + 1]?.[name]) continue;
    const x = isLast ? edge : toX(layout, view, index + 1);
    if (value !== null && value <= top) {
      pen.line(color, [Math.max(layout.left, toX(layout, view, start)), toY(value), x, toY(value)], [...dashes]);
      const text = name === "window" ? texts.window(value) : texts.trigger(value);
      // Above its line, unless the line of the window leaves no room there.
      const isRoomy = name === "window" || ((requests[index]?.window ?? Infinity) - value) * (layout.slotsHeight / top) >= LABEL_HEIGHT;
      if (isLast) pen.text(text, layout.left + 5, toY(value) + (isRoomy ? -4 : 13), { color, boxed: true });
    }
    start = index + 1;
  }
}

function drawMessageAxis(pen: Pen, layout: PictureLayout, head: number, heading: string): void {
  pen.text(heading, layout.left, layout.messagesTop - 6, { color: "ink", boxed: true });
  const step = chooseStep(head, layout.messagesHeight < 120 ? 3 : 6);
  for (let seq = step; seq <= head; seq += step) {
    const y = layout.messagesTop + ((seq - 0.5) / head) * layout.messagesHeight;
    if (y > layout.messagesTop + layout.messagesHeight - 6) break;
    pen.text(`#${formatCompact(seq)}`, layout.left - 6, y + 4, { align: "right" });
  }
}

function drawBandLabels(pen: Pen, { layout, view, breaks, scale, texts }: PictureInput): void {
  const edge = layout.left + layout.plotWidth;
  for (const [text, top, height] of [[texts.cache, layout.cacheTop, layout.cacheHeight], [texts.cost, layout.costTop, layout.costHeight]] as const) {
    if (height) pen.text(text, layout.left - 6, top + height / 2 + 4, { align: "right" });
  }
  if (layout.costHeight >= 20) {
    pen.text(formatDollars(scale.cost), edge - 2, layout.costTop + 10, { align: "right", boxed: true });
  }
  if (!layout.cacheHeight) return;
  const places = breaks.map((index) => toX(layout, view, index + 0.5)).filter((x) => x >= layout.left && x <= edge);
  const isDense = places.length * DENSE_PX > layout.plotWidth;
  for (const x of places) {
    if (isDense) {
      pen.line("warn", [x, layout.cacheTop - 4, x, layout.cacheTop]);
      continue;
    }
    const { context } = pen;
    context.fillStyle = pen.colors.warn;
    context.beginPath();
    context.moveTo(x - 4, layout.cacheTop - 5);
    context.lineTo(x + 4, layout.cacheTop - 5);
    context.lineTo(x, layout.cacheTop + 2);
    context.fill();
  }
}

/** Turns below the plot; calls where the visible requests are those of one turn or two. */
function drawTurnAxis(pen: Pen, { layout, view, timeline, texts }: PictureInput): void {
  const { requests } = timeline;
  const first = Math.max(0, Math.floor(view.first));
  const end = Math.min(requests.length, Math.ceil(view.first + view.span));
  const turns = (requests[end - 1]?.turn ?? 0) - (requests[first]?.turn ?? 0) + 1;
  const count = Math.max(1, Math.floor(layout.plotWidth / MIN_TURN_LABEL_DISTANCE));
  const bySteps = turns <= 2 && end - first > 3;
  const step = chooseStep(bySteps ? end - first : turns, count);
  let previous = -Infinity;
  for (let index = first; index < end; index++) {
    const request = requests[index];
    if (!request) continue;
    const value = bySteps ? request.step : request.turn;
    const isNew = bySteps || index === 0 || requests[index - 1]?.turn !== value;
    const x = Math.max(layout.left, toX(layout, view, index));
    if (!isNew || (value !== 1 && value % step) || x - previous < MIN_TURN_LABEL_DISTANCE - 12 || x > layout.left + layout.plotWidth - 40) continue;
    pen.text(bySteps ? texts.step(value) : texts.turn(value), x, layout.height - 4);
    previous = x;
  }
}

function drawCuts(pen: Pen, { layout, view, cuts, texts }: PictureInput): void {
  const bottom = layout.height - AXIS_HEIGHT;
  const end = layout.left + layout.plotWidth;
  const places = cuts.map((cut) => Math.round(toX(layout, view, cut.index)) + 0.5).filter((x) => x >= layout.left && x <= end + 1);
  const isDense = places.length * DENSE_PX > layout.plotWidth;
  for (const x of places) {
    if (isDense) pen.line("ink", [x, layout.slotsTop - 5, x, layout.slotsTop + 3], [], 0.5);
    else pen.line("ink", [x, layout.slotsTop - 5, x, bottom], [2, 3], 0.55);
  }
  const { context } = pen;
  for (const { cut, from, to } of chooseLabels(layout, view, cuts)) {
    context.fillStyle = pen.colors.tint;
    context.beginPath();
    context.roundRect(from - 1, 2, to - from + 1, layout.slotsTop - 7, 4);
    context.fill();
    pen.text(texts.cut(cut), from + 4, layout.slotsTop - 10, { color: "ink" });
  }
}

/** A round distance between ticks, of which there are at most `ticks`. */
function chooseStep(top: number, ticks: number): number {
  for (let power = 1; ; power *= 10) {
    const step = [1, 2, 5].find((each) => top / (each * power) <= ticks);
    if (step) return step * power;
  }
}
