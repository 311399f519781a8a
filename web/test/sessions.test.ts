import { expect, test } from "vitest";

import type { Conversation, Origin } from "../src/api/types";
import { formatClient, formatProject, groupConversations, type ConversationNode } from "../src/lib/sessions";

const NO_ORIGIN: Origin = { client: null, session: null, project: null, agent: null, parent_agent: null, purpose: null };
const plain = (id: string): Conversation => ({ id, title: id, created_at: 1, updated_at: 1, origin: null, tags: [], owner: null });
const sent = (id: string, session: string, origin: Partial<Origin> = {}): Conversation => ({
  ...plain(id),
  origin: { ...NO_ORIGIN, client: "claude-code", session, project: "/home/ann/mill", ...origin },
});
const subAgent = (id: string, session: string, parent: string | null = null) =>
  sent(id, session, { purpose: "subagent", agent: id, parent_agent: parent, project: null });
const outline = (nodes: ConversationNode[]): unknown[] =>
  nodes.map((node) => (node.subAgents.length ? [node.conversation.id, outline(node.subAgents)] : node.conversation.id));

test("plain conversations stay as they are, and a project takes the place of its newest conversation", () => {
  const items = groupConversations([plain("a"), sent("m1", "s1"), plain("b"), sent("m2", "s2"), sent("c1", "s3", { client: "codex" })]);
  expect(items.map((each) => each.conversation?.id ?? each.group?.sessions.map((session) => session.id))).toEqual([
    "a", ["s1", "s2"], "b", ["s3"],
  ]);
  expect(items[1]!.group).toMatchObject({ client: "claude-code", project: "/home/ann/mill" });
});

test("sub-agents are under their parent, wherever they are in the list, and side calls apart", () => {
  const [item] = groupConversations([
    subAgent("deep", "s1", "sub"),
    sent("title", "s1", { purpose: "side", project: null }),
    subAgent("sub", "s1"),
    sent("main", "s1"),
  ]);
  const [session] = item!.group!.sessions;
  expect(outline(session!.nodes)).toEqual([["main", [["sub", ["deep"]]]]]);
  expect(session!.sideCalls.map((each) => each.id)).toEqual(["title"]);
});

test("sub-agents without a listed parent are listed on their own, and parents in a circle end", () => {
  const [item] = groupConversations([subAgent("a", "s1", "b"), subAgent("b", "s1", "a")]);
  expect(outline(item!.group!.sessions[0]!.nodes)).toEqual([["b", ["a"]]]);
});

test("a session has the project that any of its conversations names", () => {
  const [item, ...rest] = groupConversations([subAgent("sub", "s1"), sent("other", "s2"), sent("main", "s1")]);
  expect(rest).toEqual([]);
  expect(item!.group!.sessions.map((each) => each.id)).toEqual(["s1", "s2"]);
});

test("clients and projects have short names", () => {
  expect(["claude-code", "codex", "aider", null].map(formatClient)).toEqual(["Claude Code", "Codex", "aider", "The client"]);
  expect(["/home/ann/mill/", "C:\\work\\mill", "mill", "/"].map(formatProject)).toEqual(["mill", "mill", "mill", "/"]);
});
