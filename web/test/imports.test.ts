import { expect, test } from "vitest";

import { guessSource, toFileName } from "../src/lib/imports";

test.each([
  ["conversations.json", '[{"title": "t", "create_time": 1.0, "mapping": {"a": {}}}]', "chatgpt"],
  ["conversations.json", '[{"uuid": "u", "name": "n", "account": {}, "chat_messages": []}]', "claude"],
  ["chat.json", '{"conversationId": "c", "endpoint": "openAI"}', "librechat"],
  ["chat-export.json", '[{"id": "i", "user_id": "u", "title": "t", "chat": {"history": {}}}]', "open-webui"],
  ["s.jsonl", '{"parentUuid":null,"type":"user"}', "claude-code"],
  ["rollout.jsonl", '{"timestamp":"t","type":"session_meta","payload":{}}', "codex"],
  ["train.jsonl", '{"messages": [{"role": "user"}]}', "openai-jsonl"],
  ["t.jsonl", '{"role":"user","message":{"content":[]}}', "cursor"],
  ["logs.db", "SQLite format 3\u0000", "llm"],
  ["sessions.db", "SQLite format 3\u0000", "openai-agents"],
  ["data-2026-01-01-batch-0000.zip", "PK\u0003\u0004", "claude"],
  ["3f2a.zip", "PK\u0003\u0004", "chatgpt"],
  ["notes.txt", "hello", null],
])("%s is recognised by its first bytes", (name, head, source) => {
  expect(guessSource(name, head)).toBe(source);
});

test.each([
  ["conversations.json", "conversations.json"],
  ["My export (2).zip", "My_export_2_.zip"],
  ["../../etc/passwd", "_.._.._etc_passwd"],
  [".hidden", "_.hidden"],
  ["é.json", "e_.json"],
  ["", "_"],
])("%j becomes a name that the server accepts", (name, clean) => {
  expect(toFileName(name)).toBe(clean);
  expect(toFileName(name)).toMatch(/^[A-Za-z0-9_][A-Za-z0-9_.-]*$/);
});

test("a long name is cut at its beginning, and stays valid", () => {
  const name = toFileName(`${".".repeat(150)}${"-".repeat(150)}.jsonl`);
  expect(name).toMatch(/^[A-Za-z0-9_][A-Za-z0-9_.-]*\.jsonl$/);
  expect(name.length).toBeLessThanOrEqual(200);
});
