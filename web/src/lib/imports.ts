/** Files to import: the program that wrote one, and the name that the server accepts. */

/** Bytes of a file that its program is recognised by. */
export const HEAD_BYTES = 4_096;
const MAX_NAME_CHARS = 200;

/** Source of Quire's own exports, which are imported whole and verified. */
export const OWN_SOURCE = "quire";

/** What the beginning of a file contains, by source; the first match counts. */
const MARKS: [string, RegExp][] = [
  [OWN_SOURCE, /^\s*\{"line":\s*"conversation"/],
  ["chatgpt", /"(mapping|current_node|conversation_template_id)"/],
  ["claude", /"chat_messages"/],
  ["librechat", /"conversationId"/],
  ["claude-code", /"(parentUuid|sessionId|leafUuid)"/],
  ["codex", /"(session_meta|response_item)"/],
  ["open-webui", /"(childrenIds|history|user_id)"/],
  ["openai-jsonl", /"(custom_id|messages)"/],
  ["cursor", /"role"/],
];

/** The source that a file is most likely from, by its name and its first bytes; null if nothing fits. */
export function guessSource(name: string, head: string): string | null {
  const lower = name.toLowerCase();
  if (head.startsWith("SQLite format 3")) return lower.includes("logs") ? "llm" : "openai-agents";
  if (head.startsWith("PK")) return lower.startsWith("data-") || lower.includes("claude") ? "claude" : "chatgpt";
  return MARKS.find(([, mark]) => mark.test(head))?.[0] ?? null;
}

/** The name with only the characters that the server accepts; its ending stays. */
export function toFileName(name: string): string {
  const clean = name.normalize("NFKD").replace(/[^A-Za-z0-9_.-]+/g, "_").slice(1 - MAX_NAME_CHARS);
  return /^[A-Za-z0-9_]/.test(clean) ? clean : `_${clean}`;
}
