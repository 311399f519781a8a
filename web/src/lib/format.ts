/** Formats numbers, sizes and times for display. */

const NUMBER_FORMAT = new Intl.NumberFormat("en-US");

/** 150000 is "150,000". */
export function formatNumber(value: number): string {
  return NUMBER_FORMAT.format(Math.round(value));
}

/** 1234 is "1.2k": for places where the width matters more than the last digit. */
export function formatCompact(value: number): string {
  if (value < 1_000) return String(Math.round(value));
  if (value < 10_000) return `${(value / 1_000).toFixed(1).replace(/\.0$/, "")}k`;
  if (value < 1_000_000) return `${Math.round(value / 1_000)}k`;
  return `${(value / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
}

/** "1 message", "45 messages". */
export function formatCount(value: number, singular: string, plural = `${singular}s`): string {
  return `${formatNumber(value)} ${value === 1 ? singular : plural}`;
}

export function formatPercent(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function formatDollars(value: number): string {
  if (value === 0) return "$0";
  return value < 0.01 ? "under $0.01" : `$${value.toFixed(2)}`;
}

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** Age of a timestamp of the log (microseconds) relative to `now` (milliseconds). */
export function formatAge(timestamp: number, now: number): string {
  const age = now - timestamp / 1_000;
  if (age < MINUTE_MS) return "just now";
  if (age < HOUR_MS) return `${Math.floor(age / MINUTE_MS)} min ago`;
  if (age < DAY_MS) return `${Math.floor(age / HOUR_MS)} h ago`;
  if (age < 7 * DAY_MS) return formatCount(Math.floor(age / DAY_MS), "day") + " ago";
  return new Date(timestamp / 1_000).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

export function formatDateTime(timestamp: number): string {
  return new Date(timestamp / 1_000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function formatBytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  return size < 1_000_000 ? `${Math.round(size / 1_000)} kB` : `${(size / 1_000_000).toFixed(1)} MB`;
}
