/** The list of conversations by day, for the timeline. */

import type { Conversation } from "../api/types";
import { LOCALE } from "./format";
import { formatClient, formatProject } from "./sessions";

export interface Day {
  /** Local date, such as `2026-11-05`. */
  key: string;
  label: string;
  conversations: Conversation[];
  /** Whether earlier conversations of the day are in the chunk before. */
  isContinued?: boolean;
}

const DAY_MS = 24 * 60 * 60 * 1_000;

/** Groups conversations by the local day of their last change, in the order of the list. Times are in microseconds. */
export function groupByDay(conversations: readonly Conversation[], now: number): Day[] {
  const days = new Map<string, Day>();
  for (const conversation of conversations) {
    const time = new Date(conversation.updated_at / 1_000);
    const key = toKey(time);
    const day = days.get(key) ?? { key, label: formatDay(time, new Date(now)), conversations: [] };
    day.conversations.push(conversation);
    days.set(key, day);
  }
  return [...days.values()];
}

function toKey(time: Date): string {
  return [time.getFullYear(), time.getMonth() + 1, time.getDate()].map((each) => String(each).padStart(2, "0")).join("-");
}

function formatDay(time: Date, now: Date): string {
  if (toKey(time) === toKey(now)) return "Today";
  if (toKey(time) === toKey(new Date(now.getTime() - DAY_MS))) return "Yesterday";
  return time.toLocaleDateString(LOCALE, { weekday: "short", day: "numeric", month: "long", year: "numeric" });
}

/** "18:05, Claude Code, mill": the time of day, and where the conversation comes from. */
export function describeOrigin({ updated_at, origin }: Conversation): string {
  const time = new Date(updated_at / 1_000).toLocaleTimeString(LOCALE, { hour: "2-digit", minute: "2-digit" });
  const client = origin?.client ? formatClient(origin.client) : null;
  const project = origin?.project ? formatProject(origin.project) : null;
  return [time, client, project].filter((each) => each !== null).join(", ");
}
