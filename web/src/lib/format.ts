/** Formats numbers, counts, sizes and times. */

/** Locale of dates: the browser's own region, if it is an English one. */
export const LOCALE = globalThis.navigator?.languages?.find((tag) => tag.toLowerCase().startsWith("en")) ?? "en";

/** 150000 is "150,000". */
export function formatNumber(value: number): string {
  return formatDecimal(Math.round(value), 0);
}

/** A number with at most this many decimals, and at least `minimum` of them. */
export function formatDecimal(value: number, decimals: number, minimum = 0): string {
  return getFormatter(decimals, minimum, "decimal").format(value);
}

/** "1 message", "45 messages". */
export function count(value: number, { one, other }: { one: string; other: string }): string {
  return `${formatNumber(value)} ${value === 1 ? one : other}`;
}

const formatters = new Map<string, Intl.NumberFormat>();

/** A formatter takes longer to create than a hundred numbers to format. */
function getFormatter(decimals: number, minimum: number, style: "decimal" | "currency"): Intl.NumberFormat {
  const key = `${decimals} ${minimum} ${style}`;
  let formatter = formatters.get(key);
  if (!formatter) {
    const options = { style, currency: "USD", maximumFractionDigits: decimals, minimumFractionDigits: minimum } as const;
    formatters.set(key, (formatter = new Intl.NumberFormat("en", options)));
  }
  return formatter;
}

/** 1234 is "1.2k": for places where the width matters more than the last digit. */
export function formatCompact(value: number): string {
  if (value < 1_000) return String(Math.round(value));
  if (value < 10_000) return `${formatDecimal(value / 1_000, 1)}k`;
  if (value < 1_000_000) return `${formatDecimal(value / 1_000, 0)}k`;
  return `${formatDecimal(value / 1_000_000, 1)}M`;
}

export function formatPercent(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function formatDollars(value: number): string {
  if (value > 0 && value < 0.01) return "under $0.01";
  const decimals = value === 0 ? 0 : 2;
  return getFormatter(decimals, decimals, "currency").format(value);
}

/** "18 Nov 2026" for a day of the server, such as "2026-11-18". */
export function formatDay(day: string): string {
  const date = new Date(`${day}T00:00:00Z`);
  return Number.isNaN(date.getTime()) ? day : date.toLocaleDateString(LOCALE, { dateStyle: "medium", timeZone: "UTC" });
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
  if (age < 7 * DAY_MS) return `${count(Math.floor(age / DAY_MS), { one: "day", other: "days" })} ago`;
  return new Date(timestamp / 1_000).toLocaleDateString(LOCALE, { year: "numeric", month: "short", day: "numeric" });
}

export function formatDateTime(timestamp: number, timeStyle: "short" | "medium" = "short"): string {
  return new Date(timestamp / 1_000).toLocaleString(LOCALE, { dateStyle: "medium", timeStyle });
}

/** "14:05" today, "3 Sept, 14:05" on another day, and with the year in another year. */
export function formatMessageTime(timestamp: number, now: number): string {
  const [time, today] = [new Date(timestamp / 1_000), new Date(now)];
  const day = { day: "numeric", month: "short", year: time.getFullYear() === today.getFullYear() ? undefined : "numeric" } as const;
  const clock = time.toLocaleTimeString(LOCALE, { timeStyle: "short" });
  return time.toDateString() === today.toDateString() ? clock : `${time.toLocaleDateString(LOCALE, day)}, ${clock}`;
}

/** "0.4 s", "42 s", "3 min 20 s", "2 h 5 min". */
export function formatDuration(ms: number): string {
  const seconds = Math.round(ms / 1_000);
  if (ms < 10_000) return `${formatDecimal(ms / 1_000, 1)} s`;
  if (seconds < 60) return `${seconds} s`;
  const [unit, large, small] = seconds < 3_600 ? [60, "min", "s"] : [3_600, "h", "min"];
  const rest = Math.floor((seconds % unit) / (unit / 60));
  return `${Math.floor(seconds / unit)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

export function formatBytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  return size < 1_000_000 ? `${Math.round(size / 1_000)} kB` : `${formatDecimal(size / 1_000_000, 1, 1)} MB`;
}
