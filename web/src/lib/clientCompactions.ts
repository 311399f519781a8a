/** Compactions that an agent made itself: where it replaced earlier messages with its own summary. */

import type { Branch, Compaction, Entry, Forwarding, Message, RequestSummary } from "../api/types";
import { findOwner } from "./branches";
import type { CompactionEntry } from "./compactions";

/** A place in the transcript where an agent replaced messages. */
export interface ClientCompaction {
  /** The entry that it is displayed before. */
  before: number;
  /** The messages that it replaced; they stay in the log. */
  first: number;
  last: number;
  /** Time of the last reply before it and of the first one after it, between which the summary was written. */
  after: number;
  until: number;
}

/**
 * Finds the compactions of a page of entries. `requests` are those of its replies, with the one before them, oldest
 * first. A client repeats its summary in every request; a compaction is where its list starts at another message.
 */
export function findClientCompactions(entries: readonly Entry[], requests: readonly RequestSummary[]): ClientCompaction[] {
  const found: ClientCompaction[] = [];
  const bySeq = new Map(entries.map((entry) => [entry.seq, entry]));
  let previousTime = 0;
  let previousStart = 1;
  for (const request of requests) {
    const start = getListStart(request.forwarding);
    if (start > previousStart && bySeq.has(request.reply)) {
      found.push({
        before: findTurnStart(bySeq, request.reply),
        first: previousStart,
        last: start - 1,
        after: previousTime,
        until: request.created_at,
      });
    }
    previousTime = request.created_at;
    // A request between them that Quire fitted does not say where the client's list starts.
    previousStart = Math.max(previousStart, start);
  }
  return found;
}

/** The entry of the log for a compaction of the client or its provider, if there is one. */
export function findCompactionEntry(entries: readonly CompactionEntry[], found: ClientCompaction): CompactionEntry | undefined {
  return entries.find((each) => isByClient(each.compaction) && each.createdAt > found.after && each.createdAt <= found.until);
}

export function isByClient({ trigger }: Compaction): boolean {
  return trigger === "client" || trigger === "provider";
}

/** The first message of the log that the client sent as it is; 1 without a summary of its own. */
function getListStart(forwarding: Forwarding | null): number {
  return forwarding && forwarding.unrecorded_messages > 0 ? (forwarding.first_message ?? 1) : 1;
}

/** The first entry after the reply before this one; on another page, the first one of this page. */
function findTurnStart(bySeq: ReadonlyMap<number, Entry>, reply: number): number {
  let start = reply;
  for (let entry = bySeq.get(start - 1); entry && !isReply(entry); entry = bySeq.get(start - 1)) start = entry.seq;
  return start;
}

function isReply(entry: Entry): boolean {
  return entry.kind === "message" && entry.body.role === "assistant";
}

/** The branch where the agent had the summary written: one that was created between the two replies. */
export function findSummaryBranch(branches: readonly Branch[], current: number, compaction: ClientCompaction): Branch | null {
  const created = branches.filter(
    (each) => each.number !== current && each.created_at > compaction.after && each.created_at < compaction.until,
  );
  return created.findLast((each) => each.fork_seq < compaction.before && each.head > each.fork_seq) ?? null;
}

/** Starts of the messages with which Codex and Claude Code continue from a summary, up to the summary. */
const CONTINUATIONS = [
  /^Another language model started to solve this problem and produced a summary[^\n]*\n/,
  /^This session is being continued from a previous conversation[^\n]*\n/,
];
/** Starts of the messages with which they ask for a summary. */
const SUMMARY_PROMPTS = [
  /^You are performing a CONTEXT CHECKPOINT COMPACTION/,
  /^CRITICAL: Respond with TEXT ONLY\. Do NOT call any tools\./,
  /^(Generate a new|A previous|Critically evaluate the) <state_snapshot>/,
];

/** What a user's message of an agent does in its compaction: it asks for the summary, or continues from it. */
export type CompactionRole = "prompt" | "continuation";

export function getCompactionRole(message: Message): CompactionRole | null {
  const [part] = message.parts;
  if (message.role !== "user" || part?.type !== "text") return null;
  if (SUMMARY_PROMPTS.some((pattern) => pattern.test(part.text))) return "prompt";
  return CONTINUATIONS.some((pattern) => pattern.test(part.text)) ? "continuation" : null;
}

/** The summary in a reply or in a message that continues from it, without its frame. */
export function extractSummary(message: Message): string {
  return stripFrame(message.parts.map((part) => (part.type === "text" ? part.text : "")).join("\n").trim());
}

export function stripFrame(text: string): string {
  const [, tagged] = text.split("<summary>", 2);
  if (tagged !== undefined) return (tagged.split("</summary>", 1)[0] ?? "").trim();
  const pattern = CONTINUATIONS.find((each) => each.test(text));
  return pattern ? text.replace(pattern, "").trim() : text;
}

/**
 * The branch with the other half of a compaction, and its first entry of its own: for a prompt where the conversation
 * continues, for a continuation where the replaced messages are. Claude Code has the summary written on a branch and
 * continues on the one before; Codex continues on a new branch that forks at the place of an older one or before it.
 */
export function findCounterpart(
  branches: readonly Branch[],
  current: number,
  entry: Pick<Entry, "seq" | "created_at">,
  role: CompactionRole,
): { branch: Branch; at: number } | null {
  const owner = branches.find((each) => each.number === findOwner(branches, current, entry.seq));
  if (!owner) return null;
  const maxFork = owner.parent === null ? entry.seq - 1 : owner.fork_seq;
  const later = branches.filter((each) => each.created_at > entry.created_at && each.fork_seq <= maxFork && each !== owner);
  const [next] = role === "prompt" ? later.sort((a, b) => a.created_at - b.created_at) : [];
  if (next) return { branch: next, at: next.fork_seq + 1 };
  const parent = branches.find((each) => each.number === owner.parent);
  return parent ? { branch: parent, at: owner.fork_seq + 1 } : null;
}
