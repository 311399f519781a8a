/** The server's values by short names. Their shapes come from its OpenAPI document; see `npm run types`. */

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Conversation = Schemas["ConversationShown"];
export type ConversationWhole = Schemas["ConversationWhole"];
export type Branch = Schemas["BranchShown"];
export type Compaction = Schemas["Compaction"];
export type CompactionState = Schemas["CompactionState"];
export type Plan = Schemas["PlanShown"];
export type Manifest = Schemas["Manifest"];
export type Decision = Schemas["Decision"];
export type Reason = Decision["reason"];
export type SlotName = Schemas["SlotUse"]["slot"];
export type Usage = Schemas["UsageShown"];
export type ProviderUsage = Schemas["Usage"];
export type RequestShown = Schemas["RequestShown"];
export type Replayed = Schemas["Replayed"];
export type Change = Schemas["ChangeShown"];
export type Item = Schemas["ItemShown"];
export type DocumentShown = Schemas["DocumentShown"];
export type Named = Schemas["Named"];
export type Setting = Schemas["SettingShown"];
export type SettingsShown = Schemas["SettingsShown"];
export type Trial = Schemas["Trial"];
export type Agent = Schemas["AgentShown"];
export type Reference = Schemas["DocumentReference"];
export type Found = Schemas["Found"];

export type Message = Schemas["Message"];
export type Part = Message["parts"][number];
export type ToolCallPart = Schemas["ToolCallPart"];
export type ToolResultPart = Schemas["ToolResultPart"];
export type FilePart = Schemas["FilePart"] | Schemas["ImagePart"];

export type Span = Schemas["Span"];
export type Entry = Schemas["EntryShown"];
export type MessageEntry = Schemas["MessageEntry"];
export type Entries = Schemas["Entries"];
export type LiveEvent = Schemas["LiveEventShown"];
