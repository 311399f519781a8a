/** Short names for the server's schemas. Their shapes come from its OpenAPI document; see `npm run types`. */

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Conversation = Schemas["ConversationSchema"];
export type ConversationPage = Schemas["Page_ConversationSchema_"];
export type ConversationDetail = Schemas["ConversationDetailSchema"];
export type Branch = Schemas["BranchSchema"];
export type Compaction = Schemas["Compaction"];
export type CompactionStatus = Schemas["CompactionStatusSchema"];
export type Manifest = Schemas["Manifest"];
export type Decision = Schemas["Decision"];
export type DecisionReason = Decision["reason"];
export type SlotName = Schemas["SlotUsage"]["slot"];
export type ContextUsage = Schemas["ContextUsageSchema"];
export type RequestSummary = Schemas["RequestSummarySchema"];
export type RequestList = Schemas["RequestListSchema"];
export type Forwarding = Schemas["ForwardingSchema"];
export type ForwardedForm = Forwarding["form"];
export type Origin = Schemas["ConversationOrigin"];
export type RequestDiff = Schemas["RequestDiffSchema"];
export type DecisionChange = Schemas["DecisionChangeSchema"];
export type Replay = Schemas["ReplaySchema"];
export type ContextItem = Schemas["ContextItemSchema"];
export type ContextItemList = Schemas["ContextItemListSchema"];
export type PinList = Schemas["PinListSchema"];
export type Priority = Schemas["Priority"];
export type PriorityList = Schemas["PriorityListSchema"];
export type ReferencedDocument = Schemas["ReferencedDocumentSchema"];
export type ReferencedDocumentList = Schemas["ReferencedDocumentListSchema"];
export type DocumentName = Schemas["DocumentNameSchema"];
export type DocumentNameList = Schemas["DocumentNameListSchema"];
export type DocumentText = Schemas["DocumentTextSchema"];
export type StoredBlob = Schemas["StoredBlobSchema"];
export type Setting = Schemas["SettingSchema"];
export type SettingList = Schemas["SettingsSchema"];
export type SettingsPreview = Schemas["SettingsPreviewSchema"];
export type OriginCount = Schemas["OriginCountSchema"];
export type OriginList = Schemas["OriginListSchema"];
export type ImportSourceList = Schemas["ImportSourceListSchema"];
export type ImportJob = Schemas["ImportJobSchema"];
export type Model = Schemas["ModelSchema"];
export type ModelList = Schemas["ModelListSchema"];
export type ModelStatus = Schemas["ModelStatusSchema"];
export type Agent = Schemas["AgentSchema"];
export type AgentList = Schemas["AgentListSchema"];
export type Reference = Schemas["DocumentReference"];
export type SearchResults = Schemas["SearchResultsSchema"];
export type MessageHit = Schemas["MessageHitSchema"];

export type Message = Schemas["Message"];
export type Part = Message["parts"][number];
export type ToolCallPart = Schemas["ToolCallPart"];
export type ToolResultPart = Schemas["ToolResultPart"];
export type FilePart = Schemas["FilePart"] | Schemas["ImagePart"];

export type Span = Schemas["Span"];
export type Entry = Schemas["EntrySchema"];
export type MessageEntry = Schemas["MessageEntry"];
export type EntryPage = Schemas["EntryPage"];
export type LiveEvent = Schemas["LiveEventSchema"];
export type TurnEndReason = Schemas["TurnEndedSchema"]["reason"];

export type ForkBody = Schemas["ForkBody"];
export type AddPinBody = Schemas["AddPinBody"];
export type SetPriorityBody = Schemas["SetPriorityBody"];
export type AddItemBody = Schemas["AddItemBody"];
export type SendBody = Schemas["SendBody"];
export type StopBody = Schemas["StopBody"];
export type ApprovalBody = Schemas["ApprovalBody"];
export type PreviewSettingsBody = Schemas["PreviewSettingsBody"];
export type ChangeSettingsBody = Schemas["ChangeSettingsBody"];
export type CompactBody = Schemas["CompactBody"];
export type EditSummaryBody = Schemas["EditSummaryBody"];
