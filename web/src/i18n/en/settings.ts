/** Settings, the context meter, usage, and compaction by hand. */

import { createCounter, createNumberFormat } from "../plurals";

const count = createCounter("en");
const number = createNumberFormat("en");

export const settings = {
  // Settings
  modelIs: "The model is {model}.",
  agentAnswersWith: "{agent} answers with {model}.",
  settingsAtStartup: "This server reads its settings at start-up. Here you can preview the effect of other values.",
  whatThisWouldDo: "What this would do",
  calculating: "Calculating…",
  oneValueInvalid: "One value is not valid; nothing can be saved.",
  discard: "Discard",
  save: "Save",
  settingsSaved: "Settings saved. They apply from the next request.",
  notSet: "not set",
  enterValue: (range: string) => `Enter ${range}.`,
  anyValue: "a value",
  anyNumber: "a number",
  wholeNumber: "a whole number",
  rangeBetween: (kind: string, minimum: string, maximum: string) => `${kind} from ${minimum} to ${maximum}`,
  rangeAtLeast: (kind: string, minimum: string) => `${kind} of at least ${minimum}`,
  rangeAtMost: (kind: string, maximum: string) => `${kind} of at most ${maximum}`,
  /** Labels that say more than the setting's name. */
  settingLabels: { context_threshold: "Compact at" } as Record<string, string>,
  /** Descriptions in the page's language; the server describes its settings in English. */
  settingDescriptions: {} as Record<string, string>,
  fitsText: "The next request fits.",
  fitsNearText: "The next request fits, and compaction is near.",
  compactsFirstText: "The next request would be compacted first.",
  wouldFree: (tokens: number) => `A compaction would free about ${number(tokens)} tokens.`,
  wouldFreeUpTo: (tokens: number, seq: number) =>
    `A compaction would free about ${number(tokens)} tokens by archiving up to #${seq}.`,
  windowNowText: (tokens: number, window: number) => `Now: ${number(tokens)} of ${number(window)}`,
  windowThenText: (tokens: number, window: number, trigger: number) =>
    `Then: ${number(tokens)} of ${number(window)}, compaction at ${number(trigger)}`,
  windowNow: "Window now",
  windowThen: "Window then",

  // Context meter
  contextWindow: "Context window",
  slotSystem: "Instructions",
  slotTools: "Tools",
  slotMemory: "Memory",
  slotReferences: "References",
  slotSummary: "Summary",
  slotMessages: "Messages",
  slotRecall: "Recalled",
  slotNewest: "This turn",
  slotReply: "Reply",
  slotFree: "Free",
  slotReserved: "Reserved",
  slotSystemText: "the agent's instructions and rules",
  slotToolsText: "definitions of the offered tools",
  slotMemoryText: "project memory files and the agent's memories",
  slotReferencesText: "documents of the session",
  slotSummaryText: "the summary of archived messages",
  slotMessagesText: "the conversation since the summary",
  slotRecallText: "chosen for this request only",
  slotNewestText: "the current question and its tool results",
  slotReplyText: "being written now",
  slotFreeText: "not used by the next request",
  slotReservedText: "reserved for the reply",
  meterText: (tokens: string, window: number, percent: string) => `${tokens} of ${number(window)} tokens, ${percent}`,
  meterUnknown: (tokens: string) => `${tokens} tokens; the model's window is not known, so nothing is compacted`,
  meterDocuments: (tokens: number) => `${number(tokens)} in documents`,
  meterOver: (tokens: string, window: number, effect: string) =>
    `The history has ${tokens} tokens, the window ${number(window)}; ${effect}`,
  omitsOldest: "the next request omits the oldest messages",
  compactsFirst: "the next request compacts it first",
  meterDetails: (reserved: number, trigger: number) =>
    `${number(reserved)} reserved for the reply; compaction at ${number(trigger)}`,
  meterSegment: (name: string, tokens: number, percent: string, description: string) =>
    `${name}: ${number(tokens)} tokens (${percent}), ${description}`,
  compactionAtTokens: (tokens: number) => `Compaction at ${number(tokens)} tokens`,

  // Usage
  usageIntro: (exactness: string) => `Contents of the next request without its question, ${exactness}.`,
  exact: "exact",
  estimated: "estimated",
  tokensBySlot: "Tokens by slot",
  slot: "Slot",
  tokens: "Tokens",
  share: "Share",
  inDocuments: "In documents of messages",
  inDocumentsText: "added to messages that reference them; the rest of the messages is as written",
  window: "Window",
  compactionAt: "Compaction at",
  requests: "Requests",
  importedRequests: (requests: number) =>
    `${count(requests, { one: "request was", other: "requests were" })} imported: their tokens are what the transcript says.`,
  loading: "Loading…",
  noRequests: "No requests yet.",
  noKnownCost: "No cost of this conversation is known.",
  costOfConversation: (cost: string) => `Cost of this conversation: ${cost}.`,
  costWithSubAgents: (cost: string, count: number) => `With ${count === 1 ? "its sub-agent" : `its ${count} sub-agents`}: ${cost}.`,
  compactByHand: "Compact by hand",
  planArchives: (seq: number, tokens: number) =>
    `It would archive everything up to #${seq} and free about ${number(tokens)} tokens.`,
  planSummarizes: (seq: number, tokens: number) =>
    `It would archive everything up to #${seq}, with a summary in its place, and free about ${number(tokens)} tokens.`,
  planShortens: (texts: number, tokens: number) =>
    `It would shorten ${count(texts, { one: "long text", other: "long texts" })} and free about ${number(tokens)} tokens.`,
  summaryMustKeep: "What the summary must keep",
  summaryMustKeepOptional: "What the summary must keep (optional)",
  compactNow: "Compact now",
  nothingToCompact: "There is nothing to compact.",
  chartLabel: (requests: number, compactions: number) =>
    `Tokens of the last ${requests} requests, with ${compactions} compactions; arrow keys select one, Enter opens it`,
  chartBar: (seq: number, sent: number, cached: number) => `#${seq}: ${number(sent)} tokens sent, ${number(cached)} from cache`,
  chartAfterCompaction: "after a compaction",
  chartSelection: (seq: number, sent: number, cached: number) => `#${seq}: ${number(sent)} sent, ${number(cached)} cached`,
  chartSent: "sent",
  chartCached: "from cache",
  chartCompaction: "compaction",
  chartThreshold: "threshold",
};
