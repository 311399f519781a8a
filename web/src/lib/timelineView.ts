/** The visible part of the timeline, in requests: zoom, pan, and the columns of pixels that share requests. */

import type { TimelineRequest } from "./requestTimeline";

export interface TimelineView {
  /** The request at the left edge; a fraction is a part of it. */
  first: number;
  /** Requests over the width. */
  span: number;
}

/** Few requests do not fill the width: their columns are at most this wide, unless they are zoomed. */
const MAX_COLUMN_PX = 40;
const MIN_SPAN = 1;

export function wholeView(count: number, width: number): TimelineView {
  return { first: 0, span: Math.max(1, count, width / MAX_COLUMN_PX) };
}

export function isWhole(view: TimelineView, count: number, width: number): boolean {
  return view.span >= wholeView(count, width).span;
}

export function clampView({ first, span }: TimelineView, count: number, width: number): TimelineView {
  const whole = wholeView(count, width).span;
  const visible = Math.min(whole, Math.max(MIN_SPAN, span));
  return { first: Math.max(0, Math.min(whole - visible, first)), span: visible };
}

/** Zooms so that the request under `place`, a part of the width, stays there. A factor over 1 enlarges. */
export function zoomView(view: TimelineView, factor: number, place: number, count: number, width: number): TimelineView {
  const whole = wholeView(count, width).span;
  const span = Math.min(whole, Math.max(MIN_SPAN, view.span / factor));
  return clampView({ first: view.first + place * (view.span - span), span }, count, width);
}

/** Moves the view so that this request is in it. */
export function revealRequest(view: TimelineView, index: number, count: number, width: number): TimelineView {
  const first = index < view.first ? index : Math.max(view.first, index + 1 - view.span);
  return clampView({ ...view, first }, count, width);
}

/** The view after requests were added: all of them if all were visible, the newest if the newest was. */
export function extendView(view: TimelineView, before: number, count: number, width: number): TimelineView {
  if (isWhole(view, before, width)) return wholeView(count, width);
  return view.first + view.span >= before ? clampView({ ...view, first: count - view.span }, count, width) : clampView(view, count, width);
}

export interface Column {
  /** Index of the request that is drawn. */
  index: number;
  /** Left and right edge in pixels. */
  from: number;
  to: number;
}

/** Width of columns that several requests share: two pixels more, and a third of the work. */
const SHARED_COLUMN_PX = 3;

/** Pixels of a column where the visible requests are many for the width. */
export function chooseColumnWidth(requests: readonly TimelineRequest[], { first, span }: TimelineView, width: number): number {
  const visible = Math.min(requests.length, Math.ceil(first + span)) - Math.max(0, Math.floor(first));
  return visible > width ? SHARED_COLUMN_PX : 2 * visible > width ? 2 : 1;
}

/** The columns of the visible requests on `width` pixels. Requests that share a column are drawn as the largest of them. */
export function chooseColumns(requests: readonly TimelineRequest[], { first, span }: TimelineView, width: number): Column[] {
  const columns: Column[] = [];
  const end = Math.min(requests.length, Math.ceil(first + span));
  const scale = width / span;
  for (let index = Math.max(0, Math.floor(first)); index < end; index++) {
    const from = Math.max(0, Math.round((index - first) * scale));
    const to = Math.min(width, Math.max(from + 1, Math.round((index + 1 - first) * scale)));
    const last = columns[columns.length - 1];
    if (!last || last.from < from) columns.push({ index, from, to });
    else if ((requests[index]?.total ?? 0) > (requests[last.index]?.total ?? 0)) last.index = index;
  }
  return columns;
}
