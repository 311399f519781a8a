/** The list of conversations with those of agents grouped by project and session. */

import type { Conversation } from "../api/types";

/** A conversation and the sub-agents that it started. */
export interface ConversationNode {
  conversation: Conversation;
  subAgents: ConversationNode[];
}

/** One session of an agent: the user's conversations, then those of sub-agents without a listed parent. */
export interface Session {
  id: string;
  nodes: ConversationNode[];
  /** Calls for titles and the like. */
  sideCalls: Conversation[];
}

export interface ProjectGroup {
  key: string;
  client: string;
  /** Usually the path of its folder; null if the client did not name it. */
  project: string | null;
  sessions: Session[];
  /** Whether earlier sessions of the group are in the chunk before. */
  isContinued?: boolean;
}

export type ListItem = { conversation: Conversation; group?: undefined } | { group: ProjectGroup; conversation?: undefined };

const SUB_AGENT = "subagent";

/** Groups conversations of agents; a group takes the place of its first conversation, as a session does in its group. */
export function groupConversations(conversations: readonly Conversation[]): ListItem[] {
  const bySession = new Map<string, Conversation[]>();
  for (const each of conversations) {
    const session = each.origin?.session;
    if (!session) continue;
    const members = bySession.get(session);
    if (members) members.push(each);
    else bySession.set(session, [each]);
  }
  const items: ListItem[] = [];
  const groups = new Map<string, ProjectGroup>();
  const placed = new Set<string>();
  for (const conversation of conversations) {
    const session = conversation.origin?.session;
    if (!session) items.push({ conversation });
    if (!session || placed.has(session)) continue;
    placed.add(session);
    const members = bySession.get(session) ?? [];
    const client = conversation.origin?.client ?? "";
    const project = members.find((each) => each.origin?.project)?.origin?.project ?? null;
    const key = JSON.stringify([client, project]);
    let group = groups.get(key);
    if (!group) {
      group = { key, client, project, sessions: [] };
      groups.set(key, group);
      items.push({ group });
    }
    group.sessions.push(buildSession(session, members));
  }
  return items;
}

function buildSession(id: string, members: readonly Conversation[]): Session {
  const session: Session = { id, nodes: [], sideCalls: [] };
  const subAgents: ConversationNode[] = [];
  for (const conversation of members) {
    const purpose = conversation.origin?.purpose;
    if (!purpose) session.nodes.push({ conversation, subAgents: [] });
    else if (purpose === SUB_AGENT) subAgents.push({ conversation, subAgents: [] });
    else session.sideCalls.push(conversation);
  }
  const byAgent = new Map(subAgents.map((node) => [node.conversation.origin?.agent, node]));
  const [main] = session.nodes;
  for (const node of subAgents) {
    const parent = byAgent.get(node.conversation.origin?.parent_agent ?? "");
    if (parent && !isWithin(parent, node)) parent.subAgents.push(node);
    else (main?.subAgents ?? session.nodes).push(node);
  }
  return session;
}

/** Whether a node is `root` or below it: agents that name each other as parents make no cycle. */
function isWithin(node: ConversationNode, root: ConversationNode): boolean {
  return node === root || root.subAgents.some((child) => isWithin(node, child));
}

const CLIENT_NAMES: Record<string, string> = {
  "claude-code": "Claude Code",
  codex: "Codex",
  opencode: "OpenCode",
  cursor: "Cursor",
  chatgpt: "ChatGPT",
  claude: "Claude.ai",
  librechat: "LibreChat",
  "open-webui": "Open WebUI",
  "openai-agents": "OpenAI Agents",
  "openai-jsonl": "OpenAI JSON Lines",
};

/** "Claude Code" for `claude-code`; a name that is not known stays as it is. */
export function formatClient(client: string | null | undefined): string {
  return CLIENT_NAMES[client ?? ""] ?? (client || "The client");
}

/** The last folder of a project's path. */
export function formatProject(project: string): string {
  return project.split(/[\\/]/).findLast((each) => each !== "") ?? project;
}

export function isSubAgent(conversation: Pick<Conversation, "origin">): boolean {
  return conversation.origin?.purpose === SUB_AGENT;
}
