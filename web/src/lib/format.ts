/** Numbers and times in words, as people read them. */

const GROUPED = new Intl.NumberFormat("en-US");

/** 150000 is "150,000". */
export function grouped(value: number): string {
  return GROUPED.format(Math.round(value));
}

/** 1234 is "1.2k": for places where the width matters more than the last digit. */
export function short(value: number): string {
  if (value < 1_000) return String(Math.round(value));
  if (value < 10_000) return `${(value / 1_000).toFixed(1).replace(/\.0$/, "")}k`;
  if (value < 1_000_000) return `${Math.round(value / 1_000)}k`;
  return `${(value / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
}

/** "1 message", "45 messages". */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${grouped(value)} ${value === 1 ? one : many}`;
}

export function percent(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function dollars(value: number): string {
  if (value === 0) return "$0";
  return value < 0.01 ? "under $0.01" : `$${value.toFixed(2)}`;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A time of the log (microseconds) as seen from `now` (milliseconds). */
export function ago(at: number, now: number): string {
  const passed = now - at / 1_000;
  if (passed < MINUTE) return "just now";
  if (passed < HOUR) return `${Math.floor(passed / MINUTE)} min ago`;
  if (passed < DAY) return `${Math.floor(passed / HOUR)} h ago`;
  if (passed < 7 * DAY) return counted(Math.floor(passed / DAY), "day") + " ago";
  return day(at);
}

export function day(at: number): string {
  return new Date(at / 1_000).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

export function moment(at: number): string {
  return new Date(at / 1_000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function bytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  return size < 1_000_000 ? `${Math.round(size / 1_000)} kB` : `${(size / 1_000_000).toFixed(1)} MB`;
}
