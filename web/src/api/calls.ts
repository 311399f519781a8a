/** API calls of the page, grouped by resource. */

import { requestJson, sendRequest } from "./client";
import type {
  AddDropBody, AddItemBody, AddPinBody, AgentList, ApprovalBody, Branch, CacheReport, ChangeSettingsBody, ClientCompactionList, CompactBody, CompactionStatus, ContextItem,
  ContextItemList, ContextUsage, Conversation, ConversationDetail, ConversationPage, DocumentGraph, DocumentNameList, DocumentText, DropList, EditSummaryBody, EntryPage,
  FindingList, ForkBody, ImportJob, ImportSourceList, Manifest, Message, ModelList, ModelStatus, OriginList, PinList, PriorityList, SetPriorityBody, PreviewSettingsBody, Readers, ReferencedDocumentList, Replay, RequestDiff, RequestList, RunningTurnList,
  SearchResults, SendBody, SettingList, SettingsPreview, Stats, StopBody, StoredBlob, TimelinePage,
} from "./types";

/** Identifies one branch of a conversation. */
export interface BranchRef {
  conversation: string;
  branch: number;
}

/** Which conversations are listed: those of one program, of one project, and with one tag. */
export interface ConversationFilter {
  client?: string | null;
  project?: string | null;
  tag?: string | null;
  session?: string | null;
  purpose?: string | null;
}

/** Maximum results of a search and of a completion. */
const SEARCH_LIMIT = 12;

const path = (conversation: string, rest = "") => `/api/conversations/${encodeURIComponent(conversation)}${rest}`;

export const conversations = {
  list: (limit: number, cursor: string | null, filter: ConversationFilter = {}, signal?: AbortSignal) =>
    requestJson<ConversationPage>("GET", "/api/conversations", { query: { cursor, limit, ...filter }, signal }),
  origins: () => requestJson<OriginList>("GET", "/api/origins"),
  create: (title = "") => requestJson<ConversationDetail>("POST", "/api/conversations", { body: { title } }),
  get: (id: string) => requestJson<ConversationDetail>("GET", path(id)),
  rename: (id: string, title: string) => requestJson<ConversationDetail>("PATCH", path(id), { body: { title } }),
  setTags: (id: string, tags: string[]) => requestJson<ConversationDetail>("PATCH", path(id), { body: { tags } }),
  remove: (id: string) => requestJson<void>("DELETE", path(id)),
  fork: (id: string, forkSeq: number, branch: number) => {
    const body: ForkBody = { fork_seq: forkSeq, branch };
    return requestJson<Branch>("POST", path(id, "/branches"), { body });
  },
};

/** Who else may read a conversation of the person who is signed in: addresses, or `*` for all of the tenant. */
export const readers = {
  get: (id: string) => requestJson<Readers>("GET", path(id, "/readers")),
  set: (id: string, names: string[]) => requestJson<Readers>("PUT", path(id, "/readers"), { body: { readers: names } }),
};

/** Exports of a conversation: all of it to import elsewhere, or one branch to read. */
export const exports = {
  log: ({ conversation }: BranchRef) => sendRequest("GET", path(conversation, "/export")),
  transcript: ({ conversation, branch }: BranchRef) =>
    sendRequest("GET", path(conversation, "/transcript"), { query: { branch } }),
};

export const imports = {
  sources: () => requestJson<ImportSourceList>("GET", "/api/import-sources"),
  start: (source: string, name: string, file: File, signal?: AbortSignal) =>
    requestJson<ImportJob>("POST", "/api/imports", { query: { source, file: name }, file, signal }),
  get: (id: string) => requestJson<ImportJob>("GET", `/api/imports/${encodeURIComponent(id)}`),
  /** Imports an export of Quire, under another ID if one is given. */
  restore: (file: File, id: string | null) => requestJson<Conversation>("POST", "/api/import", { query: { as_id: id }, file }),
};

export interface EntryQuery {
  first?: number;
  last?: number;
  limit?: number;
  newest?: boolean;
  kinds?: string[];
}

export const entries = {
  list: ({ conversation, branch }: BranchRef, query: EntryQuery, signal?: AbortSignal) =>
    requestJson<EntryPage>("GET", path(conversation, "/entries"), { query: { branch, ...query }, signal }),
  purge: ({ conversation, branch }: BranchRef, seq: number) =>
    requestJson<void>("DELETE", path(conversation, `/entries/${seq}`), { query: { branch } }),
};

export const turns = {
  /** Sends a question; null answers the newest one of the log, or is the default model. */
  send: ({ conversation, branch }: BranchRef, message: Message | null, model: string | null) => {
    const body: SendBody = { message, branch, model };
    return sendRequest("POST", path(conversation, "/send"), { body });
  },
  /** Turns that run now, in all conversations. */
  running: () => requestJson<RunningTurnList>("GET", "/api/turns"),
  stop: ({ conversation, branch }: BranchRef) => {
    const body: StopBody = { branch };
    return requestJson<unknown>("POST", path(conversation, "/stop"), { body });
  },
  approve: ({ conversation, branch }: BranchRef, call: string, approve: boolean) => {
    const body: ApprovalBody = { approve, branch };
    return requestJson<unknown>("POST", path(conversation, `/approvals/${encodeURIComponent(call)}`), { body });
  },
  events: ({ conversation }: BranchRef, signal: AbortSignal) => sendRequest("GET", path(conversation, "/events"), { signal }),
};

type ItemKey = Pick<ContextItem, "type" | "name" | "server">;

export const context = {
  usage: ({ conversation, branch }: BranchRef, model: string | null) =>
    requestJson<ContextUsage>("GET", path(conversation, "/usage"), { query: { branch, model } }),
  preview: ({ conversation, branch }: BranchRef, message: string, model: string | null) =>
    requestJson<Manifest>("GET", path(conversation, "/context"), { query: { branch, message, model } }),
  items: ({ conversation, branch }: BranchRef) =>
    requestJson<ContextItemList>("GET", path(conversation, "/items"), { query: { branch } }),
  add: ({ conversation, branch }: BranchRef, item: ItemKey) => {
    const body: AddItemBody = { type: item.type, name: item.name, server: item.server };
    return requestJson<ContextItemList>("POST", path(conversation, "/items"), { query: { branch }, body });
  },
  remove: ({ conversation, branch }: BranchRef, item: ItemKey) =>
    requestJson<ContextItemList>("DELETE", path(conversation, `/items/${item.type}/${encodeURIComponent(item.name)}`), {
      query: { branch, server: item.server },
    }),
  pin: ({ conversation, branch }: BranchRef, seq: number) => {
    const body: AddPinBody = { seq };
    return requestJson<PinList>("POST", path(conversation, "/pins"), { query: { branch }, body });
  },
  unpin: ({ conversation, branch }: BranchRef, seq: number) =>
    requestJson<PinList>("DELETE", path(conversation, `/pins/${seq}`), { query: { branch } }),
  /** Later requests have a stub in place of the message, also those of an agent that keeps its own list. */
  drop: ({ conversation, branch }: BranchRef, seq: number, now: boolean) => {
    const body: AddDropBody = { seq, now };
    return requestJson<DropList>("POST", path(conversation, "/drops"), { query: { branch }, body });
  },
  restore: ({ conversation, branch }: BranchRef, seq: number, now: boolean) =>
    requestJson<DropList>("DELETE", path(conversation, `/drops/${seq}`), { query: { branch, now } }),
  setPriority: ({ conversation, branch }: BranchRef, seq: number, priority: number | null) => {
    const body: SetPriorityBody = { priority };
    return requestJson<PriorityList>("PUT", path(conversation, `/priorities/${seq}`), { query: { branch }, body });
  },
};

export const stats = {
  /** Usage since this time, in microseconds since 1970. */
  get: (since: number) => requestJson<Stats>("GET", "/api/stats", { query: { since } }),
  /** What imported sessions cost and wasted. */
  findings: () => requestJson<FindingList>("GET", "/api/stats/findings"),
  /** Documents that the most conversations use together. */
  references: (limit: number) => requestJson<DocumentGraph>("GET", "/api/stats/references", { query: { limit } }),
};

export const requests = {
  timeline: ({ conversation, branch }: BranchRef, since: number) =>
    requestJson<TimelinePage>("GET", path(conversation, "/timeline"), { query: { branch, since } }),
  cacheBreaks: ({ conversation, branch }: BranchRef) =>
    requestJson<CacheReport>("GET", path(conversation, "/cache-breaks"), { query: { branch } }),
  listClientCompactions: (conversation: string) =>
    requestJson<ClientCompactionList>("GET", path(conversation, "/client-compactions")),
  list: ({ conversation, branch }: BranchRef, limit = 200, last: number | null = null) =>
    requestJson<RequestList>("GET", path(conversation, "/requests"), { query: { branch, limit, last } }),
  get: ({ conversation, branch }: BranchRef, reply: number) =>
    requestJson<Manifest>("GET", path(conversation, `/requests/${reply}`), { query: { branch } }),
  replay: ({ conversation, branch }: BranchRef, reply: number) =>
    requestJson<Replay>("GET", path(conversation, `/requests/${reply}/replay`), { query: { branch } }),
  diff: ({ conversation, branch }: BranchRef, reply: number, other: number) =>
    requestJson<RequestDiff>("GET", path(conversation, `/requests/${reply}/diff`), { query: { branch, other } }),
};

export const compactions = {
  get: ({ conversation, branch }: BranchRef) =>
    requestJson<CompactionStatus>("GET", path(conversation, "/compaction"), { query: { branch } }),
  create: ({ conversation, branch }: BranchRef, instructions: string | null) => {
    const body: CompactBody = { instructions };
    return requestJson<CompactionStatus>("POST", path(conversation, "/compaction"), { query: { branch }, body });
  },
  edit: ({ conversation, branch }: BranchRef, summary: string) => {
    const body: EditSummaryBody = { summary };
    return requestJson<CompactionStatus>("PUT", path(conversation, "/compaction"), { query: { branch }, body });
  },
  undo: ({ conversation, branch }: BranchRef) =>
    requestJson<CompactionStatus>("DELETE", path(conversation, "/compaction"), { query: { branch } }),
  redo: ({ conversation, branch }: BranchRef) =>
    requestJson<CompactionStatus>("POST", path(conversation, "/compaction/redo"), { query: { branch } }),
};

export const documents = {
  list: ({ conversation, branch }: BranchRef) =>
    requestJson<ReferencedDocumentList>("GET", path(conversation, "/references"), { query: { branch } }),
  find: (query: string, signal?: AbortSignal) =>
    requestJson<DocumentNameList>("GET", "/api/documents", { query: { query, limit: SEARCH_LIMIT }, signal }),
  read: (file: string) => requestJson<DocumentText>("GET", "/api/documents/content", { query: { path: file } }),
};

export const blobs = {
  get: (digest: string) => sendRequest("GET", `/api/blobs/${digest}`),
  upload: (file: Blob) => requestJson<StoredBlob>("POST", "/api/blobs", { file }),
};

export const settings = {
  get: () => requestJson<SettingList>("GET", "/api/settings"),
  preview: ({ conversation, branch }: BranchRef, changes: Record<string, unknown>, signal?: AbortSignal) => {
    const body: PreviewSettingsBody = { conversation, branch, changes };
    return requestJson<SettingsPreview>("POST", "/api/settings/preview", { body, signal });
  },
  change: (changes: Record<string, unknown>) => {
    const body: ChangeSettingsBody = { changes };
    return requestJson<SettingList>("PATCH", "/api/settings", { body });
  },
};

export const models = {
  list: () => requestJson<ModelList>("GET", "/api/models"),
  status: (model: string | null) => requestJson<ModelStatus>("GET", "/api/models/status", { query: { model } }),
};

export const agents = { list: () => requestJson<AgentList>("GET", "/api/agents") };

export const search = (query: string, signal?: AbortSignal) =>
  requestJson<SearchResults>("GET", "/api/search", { query: { query, limit: SEARCH_LIMIT }, signal });
