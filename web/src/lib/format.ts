/** Formats numbers, sizes and times in the language of the page. */

import { language, t } from "../i18n/language.svelte";

/** 150000 is "150,000". */
export function formatNumber(value: number): string {
  return formatDecimal(Math.round(value), 0);
}

/** A number with at most this many decimals, and at least `minimum` of them. */
export function formatDecimal(value: number, decimals: number, minimum = 0): string {
  const options = { maximumFractionDigits: decimals, minimumFractionDigits: minimum };
  return new Intl.NumberFormat(language.current, options).format(value);
}

/** 1234 is "1.2k": for places where the width matters more than the last digit. */
export function formatCompact(value: number): string {
  if (value < 1_000) return String(Math.round(value));
  if (value < 10_000) return `${formatDecimal(value / 1_000, 1)}k`;
  if (value < 1_000_000) return `${Math.round(value / 1_000)}k`;
  return `${formatDecimal(value / 1_000_000, 1)}M`;
}

export function formatPercent(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function formatDollars(value: number): string {
  if (value > 0 && value < 0.01) return t("underOneCent");
  const decimals = value === 0 ? 0 : 2;
  const options = { style: "currency", currency: "USD", maximumFractionDigits: decimals, minimumFractionDigits: decimals } as const;
  return new Intl.NumberFormat(language.current, options).format(value);
}

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** Age of a timestamp of the log (microseconds) relative to `now` (milliseconds). */
export function formatAge(timestamp: number, now: number): string {
  const age = now - timestamp / 1_000;
  if (age < MINUTE_MS) return t("justNow");
  if (age < HOUR_MS) return t("minutesAgo", Math.floor(age / MINUTE_MS));
  if (age < DAY_MS) return t("hoursAgo", Math.floor(age / HOUR_MS));
  if (age < 7 * DAY_MS) return t("daysAgo", Math.floor(age / DAY_MS));
  return new Date(timestamp / 1_000).toLocaleDateString(language.locale, { year: "numeric", month: "short", day: "numeric" });
}

export function formatDateTime(timestamp: number): string {
  return new Date(timestamp / 1_000).toLocaleString(language.locale, { dateStyle: "medium", timeStyle: "short" });
}

export function formatBytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  return size < 1_000_000 ? `${Math.round(size / 1_000)} kB` : `${formatDecimal(size / 1_000_000, 1, 1)} MB`;
}
