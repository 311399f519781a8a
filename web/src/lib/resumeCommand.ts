/** The shell command that continues a conversation in a coding agent. */

import type { BranchRef } from "../api/calls";

export const PROGRAMS = { claude: "Claude Code", codex: "Codex", opencode: "opencode", gemini: "Gemini CLI" } as const;
export type Program = keyof typeof PROGRAMS;

export function formatResumeCommand({ conversation, branch }: BranchRef, program: Program): string {
  // Clients choose ids: they must be neither an option nor more than one word of the shell.
  const word = /^[\w.]+[\w.-]*$/.test(conversation) ? conversation : `'${conversation.replaceAll("'", "'\\''")}'`;
  return `quire resume --in ${program} --branch ${branch} -- ${word}`;
}
