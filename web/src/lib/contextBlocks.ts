/** Blocks that an agent adds to its user's messages: reminders, the environment, project rules, output of its own commands. */

import type { Message, Part } from "../api/types";

/** Start of such a block. src/quire/rows/boilerplate.py has the same tags, and a test compares them. */
const BLOCK_START =
  /\s*(?:<(session_context|hook_context|system-reminder|local-command-caveat|local-command-stdout|local-command-stderr|agent-message|agent-notification|bash-input|bash-stderr|bash-stdout|ci-monitor-event|ide_opened_file|ide_selection|task-notification|apps_instructions|codex_internal_context|collaboration_mode|environment_context|environments_instructions|managed_developer_instructions|model_instructions|model_switch|multi_agent_mode|persistent_mode|personality_spec|plugins_instructions|recommended_plugins|skills_instructions|startup_context|turn_aborted|user_instructions|subagent_notification|command-name|command-message|command-args)>|# AGENTS\.md instructions )/y;

export interface SplitText {
  blocks: string[];
  rest: string;
}

/** Separates the blocks at the start of a text from the rest; one that is not closed extends to its end. */
export function splitContextBlocks(text: string): SplitText {
  const blocks: string[] = [];
  let position = 0;
  for (;;) {
    BLOCK_START.lastIndex = position;
    const match = BLOCK_START.exec(text);
    if (!match) return { blocks, rest: text.slice(position) };
    const closing = `</${match[1] ?? "INSTRUCTIONS"}>`;
    const end = text.indexOf(closing, BLOCK_START.lastIndex);
    const next = end < 0 ? text.length : end + closing.length;
    blocks.push(text.slice(position, next).trim());
    position = next;
  }
}

export interface SplitMessage {
  /** Texts that the agent added. */
  blocks: string[];
  /** The user's own parts. */
  parts: Part[];
}

/** Whether Claude Code's transcript marks the text as its own. src/quire/rows/boilerplate.py has the same fields. */
function isMarked(part: Extract<Part, { type: "text" }>): boolean {
  const fields = part.provider_fields?.["claude-code"];
  return typeof fields === "object" && fields !== null && "isMeta" in fields;
}

/** Separates what the agent added to a user's message from what the user wrote. */
export function splitUserMessage(message: Message): SplitMessage {
  const split: SplitMessage = { blocks: [], parts: [] };
  for (const part of message.parts) {
    if (part.type !== "text") {
      split.parts.push(part);
      continue;
    }
    if (isMarked(part)) {
      split.blocks.push(part.text);
      continue;
    }
    const { blocks, rest } = splitContextBlocks(part.text);
    split.blocks.push(...blocks);
    if (blocks.length === 0) split.parts.push(part);
    else if (rest.trim()) split.parts.push({ ...part, text: rest.trimStart() });
  }
  return split;
}

/** System messages longer than this are folded to their first line. */
const MAX_OPEN_SYSTEM_CHARS = 200;
const MAX_HEADING_CHARS = 80;

/** The first line of a long system message, to fold it under; null if it is short enough to stay open. */
export function getSystemHeading(message: Message): string | null {
  const text = message.parts.map((part) => (part.type === "text" ? part.text : "")).join("\n").trim();
  if (message.role !== "system" || text.length <= MAX_OPEN_SYSTEM_CHARS) return null;
  const line = (text.split("\n", 1)[0] ?? "").replace(/^#+\s*/, "");
  return line.length <= MAX_HEADING_CHARS ? line : `${line.slice(0, MAX_HEADING_CHARS - 1)}…`;
}
