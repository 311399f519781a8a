/** What the page asks of the server, a function for each. */

import { answer, ask } from "./client";
import type {
  Agent, Change, CompactionState, Conversation, ConversationWhole, Branch, DocumentShown, Entries, Entry, Item, Manifest, Message,
  Found, Named, Replayed, RequestShown, SettingsShown, Trial, Usage,
} from "./types";

export interface Line {
  conversation: string;
  branch: number;
}

const at = (conversation: string, rest = "") => `/api/conversations/${encodeURIComponent(conversation)}${rest}`;

export const conversations = {
  list: (limit: number, cursor: string | null, signal?: AbortSignal) =>
    ask<{ items: Conversation[]; next: string | null }>("GET", "/api/conversations", { query: { cursor, limit }, signal }),
  create: (title = "") => ask<ConversationWhole>("POST", "/api/conversations", { body: { title } }),
  get: (id: string) => ask<ConversationWhole>("GET", at(id)),
  rename: (id: string, title: string) => ask<ConversationWhole>("PATCH", at(id), { body: { title } }),
  remove: (id: string) => ask<void>("DELETE", at(id)),
  fork: (id: string, from: number, branch: number, name?: string) =>
    ask<Branch>("POST", at(id, "/branches"), { body: { at: from, branch, name } }),
  exported: (id: string) => answer("GET", at(id, "/export")),
};

export const entries = {
  page: ({ conversation, branch }: Line, asked: { first?: number; last?: number; limit?: number; newest?: boolean; kinds?: string[] }, signal?: AbortSignal) =>
    ask<Entries>("GET", at(conversation, "/entries"), { query: { branch, ...asked }, signal }),
  one: ({ conversation, branch }: Line, seq: number) =>
    ask<Entry>("GET", at(conversation, `/entries/${seq}`), { query: { branch } }),
  purge: ({ conversation, branch }: Line, seq: number) =>
    ask<void>("DELETE", at(conversation, `/entries/${seq}`), { query: { branch } }),
};

export const turns = {
  send: ({ conversation, branch }: Line, message: Message | null) =>
    answer("POST", at(conversation, "/send"), { body: { message, branch } }),
  stop: ({ conversation, branch }: Line) => ask<unknown>("POST", at(conversation, "/stop"), { body: { branch } }),
  approve: ({ conversation, branch }: Line, call: string, approve: boolean) =>
    ask<unknown>("POST", at(conversation, `/approvals/${encodeURIComponent(call)}`), { body: { approve, branch } }),
  events: ({ conversation }: Line, signal: AbortSignal) => answer("GET", at(conversation, "/events"), { signal }),
};

export const context = {
  usage: ({ conversation, branch }: Line) => ask<Usage>("GET", at(conversation, "/usage"), { query: { branch } }),
  preview: ({ conversation, branch }: Line, message: string) =>
    ask<Manifest>("GET", at(conversation, "/context"), { query: { branch, message } }),
  items: ({ conversation, branch }: Line) =>
    ask<{ items: Item[] }>("GET", at(conversation, "/items"), { query: { branch } }),
  add: ({ conversation, branch }: Line, item: Pick<Item, "type" | "name" | "server">) =>
    ask<{ items: Item[] }>("POST", at(conversation, "/items"), {
      query: { branch }, body: { type: item.type, name: item.name, server: item.server },
    }),
  remove: ({ conversation, branch }: Line, item: Pick<Item, "type" | "name" | "server">) =>
    ask<{ items: Item[] }>("DELETE", at(conversation, `/items/${item.type}/${encodeURIComponent(item.name)}`), {
      query: { branch, server: item.server },
    }),
  pin: ({ conversation, branch }: Line, number: number) =>
    ask<{ pins: number[] }>("POST", at(conversation, "/pins"), { query: { branch }, body: { number } }),
  unpin: ({ conversation, branch }: Line, number: number) =>
    ask<{ pins: number[] }>("DELETE", at(conversation, `/pins/${number}`), { query: { branch } }),
};

export const requests = {
  list: ({ conversation, branch }: Line, limit = 200) =>
    ask<{ items: RequestShown[] }>("GET", at(conversation, "/requests"), { query: { branch, limit } }),
  get: ({ conversation, branch }: Line, reply: number) =>
    ask<Manifest>("GET", at(conversation, `/requests/${reply}`), { query: { branch } }),
  replay: ({ conversation, branch }: Line, reply: number) =>
    ask<Replayed>("GET", at(conversation, `/requests/${reply}/replay`), { query: { branch } }),
  diff: ({ conversation, branch }: Line, reply: number, other: number) =>
    ask<{ changes: Change[] }>("GET", at(conversation, `/requests/${reply}/diff`), { query: { branch, other } }),
};

export const compaction = {
  get: ({ conversation, branch }: Line) =>
    ask<CompactionState>("GET", at(conversation, "/compaction"), { query: { branch } }),
  make: ({ conversation, branch }: Line, instructions: string | null) =>
    ask<CompactionState>("POST", at(conversation, "/compaction"), { query: { branch }, body: { instructions } }),
  edit: ({ conversation, branch }: Line, summary: string) =>
    ask<CompactionState>("PUT", at(conversation, "/compaction"), { query: { branch }, body: { summary } }),
  undo: ({ conversation, branch }: Line) =>
    ask<CompactionState>("DELETE", at(conversation, "/compaction"), { query: { branch } }),
};

export const documents = {
  of: ({ conversation, branch }: Line) =>
    ask<{ items: DocumentShown[] }>("GET", at(conversation, "/references"), { query: { branch } }),
  find: (query: string, signal?: AbortSignal) =>
    ask<{ items: Named[] }>("GET", "/api/documents", { query: { query, limit: 12 }, signal }),
  read: (path: string) => ask<{ path: string; text: string }>("GET", "/api/documents/content", { query: { path } }),
  blob: (digest: string) => answer("GET", `/api/blobs/${digest}`),
  keep: (file: Blob) => ask<{ blob: string; media_type: string; size: number }>("POST", "/api/blobs", { file }),
};

export const settings = {
  get: () => ask<SettingsShown>("GET", "/api/settings"),
  preview: ({ conversation, branch }: Line, changes: Record<string, unknown>, signal?: AbortSignal) =>
    ask<Trial>("POST", "/api/settings/preview", { body: { conversation, branch, changes }, signal }),
  change: (changes: Record<string, unknown>) => ask<SettingsShown>("PATCH", "/api/settings", { body: { changes } }),
};

export const agents = { list: () => ask<{ items: Agent[] }>("GET", "/api/agents") };

export const search = (query: string, signal?: AbortSignal) =>
  ask<Found>("GET", "/api/search", { query: { query, limit: 12 }, signal });
