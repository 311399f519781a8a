/** Dialogs: API key, models, import, shortcuts; and notices. */

import { createCounter } from "../plurals";

const count = createCounter("en");
const forms = {
  messages: { one: "message", other: "messages" },
  conversations: { one: "conversation", other: "conversations" },
};

export const dialogs = {
  share: "Share",
  shareTitle: "Share this conversation",
  shareText: "Readers open the link and sign in. They see the conversation as text with secrets masked, and cannot change it.",
  shareWith: "Who may read it",
  sharePrivate: "Only me",
  shareEveryone: "Everyone who signs in here",
  sharePeople: "These people",
  shareAddresses: "Email addresses, separated by commas",
  shareCopyLink: "Share and copy link",
  shareStop: "Stop sharing",
  shareStopped: "The conversation is not shared any more.",
  shareLinkCopied: "Shared. The link is copied.",
  close: "Close",
  cancel: "Cancel",
  undo: "Undo",
  redo: "Redo",
  dismiss: "Dismiss",

  // API key
  keyTitle: "This server requires an API key",
  keyText:
    "Create one with “quire key create”. It is stored for this window only, until you close it. On your own machine, open the address that “quire serve” printed instead.",
  keyField: "API key",
  keyOpen: "Open",

  // Models
  model: "Model",
  modelLabel: "Model:",
  chooseModel: "Choose a model",
  cannotAnswerBadge: "cannot answer",
  modelIsChecked: "is being checked…",
  modelCannotAnswer: "cannot answer now.",
  modelIsForChat: "You need a model to chat here, but not to look at what agents recorded.",
  modelAnswers: "answers.",
  hostReachable: (host: string) => `${host} is reachable.`,
  checkAgain: "Check again",
  modelFilter: "Filter, or type a name",
  modelsOfSettings: "Settings",
  modelsOfUpstream: "Listed by the server",
  modelsOfPriceList: "Price list of the provider",
  windowUnknown: "window unknown",
  useModel: (name: string) => `Use “${name}”`,
  modelUnlisted: "No table lists it: its context window and its price are unknown.",
  modelFacts: "Context window, and US dollars per million tokens of input and output.",

  // Import
  importText:
    "An export of Quire, ChatGPT, Claude.ai, LibreChat or Open WebUI, or a transcript of an agent. Importing a file again adds only what is new; an export of Quire that exists already is imported as a copy.",
  filesToImport: "Files to import",
  writtenBy: "Written by",
  chooseProgram: "Choose the program",
  importOf: (name: string) => `Import of ${name}`,
  uploading: "Uploading",
  importing: (found: string) => `Importing: ${found}`,
  imported: "Imported",
  notImported: "Not imported",
  newMessages: (value: number) => count(value, { one: "new message", other: "new messages" }),
  newMessagesIn: (messages: number, conversations: number) =>
    `${count(messages, { one: "new message", other: "new messages" })} in ${count(conversations, forms.conversations)}`,
  importedBefore: (value: number) => `${count(value, forms.messages)} imported before`,
  recordedByGateway: (value: number) => `${count(value, forms.conversations)} recorded by the gateway`,
  unreadableItems: (value: number) => `${count(value, { one: "item", other: "items" })} could not be read`,
  chooseFiles: "Choose files",
  startImport: "Import",

  // Shortcuts
  shortcuts: "Keyboard shortcuts",
  shortcutsTitle: "Keyboard shortcuts (?)",
  shortcutKeys: {
    search: "Ctrl+K",
    list: "↓, ↑",
    field: "Tab, Enter",
    messages: "Alt+↑, Alt+↓",
    compactions: "Alt+Shift+↑, Alt+Shift+↓",
    reply: "Enter on a reply",
    summary: "Enter on a compaction",
    undo: "Ctrl+Z on a compaction",
    ends: "Home, End in the transcript",
    panels: "Alt+1 to Alt+4",
    compare: "Alt+5",
    escape: "Esc",
    help: "?",
  },
  shortcutActions: {
    search: "Search titles and messages, and run commands",
    list: "Move between search results, or conversations of the list",
    field: "Go to the message field of a conversation that was just opened",
    messages: "Previous or next message",
    compactions: "Previous or next compaction",
    reply: "What the model saw",
    summary: "Open its summary",
    undo: "Undo the compaction",
    ends: "First or newest message",
    panels: "Context, References, Usage, Settings",
    compare: "Compare with another request, in the context of a reply",
    escape: "Stop the reply, or close a panel",
    help: "This list",
  },
  shortcutsOnMac: "On a Mac, ⌘ or Control for Ctrl, and Option for Alt.",
};
