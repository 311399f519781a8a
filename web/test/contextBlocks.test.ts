import { expect, test } from "vitest";

import type { Message } from "../src/api/types";
import { getSystemHeading, splitContextBlocks, splitUserMessage } from "../src/lib/contextBlocks";

const REMINDER = "<system-reminder>\nBe kind.\n</system-reminder>";

test("blocks at the start of a text are separated from the question", () => {
  const environment = "<environment_context>\n<cwd>/mill</cwd>\n</environment_context>";
  const rules = "# AGENTS.md instructions for /mill\n\n<INSTRUCTIONS>\nNo haste.\n</INSTRUCTIONS>";
  expect(splitContextBlocks(`${rules}\n${environment}\n${REMINDER}\nWhy?`)).toEqual({ blocks: [rules, environment, REMINDER], rest: "\nWhy?" });
  expect(splitContextBlocks("<system-reminder>cut off")).toEqual({ blocks: ["<system-reminder>cut off"], rest: "" });
  for (const text of ["What is a <system-reminder>?", "# AGENTS.md: what is it?", ""]) {
    expect(splitContextBlocks(text)).toEqual({ blocks: [], rest: text });
  }
});

test("many blocks take linear time", () => {
  expect(splitContextBlocks(REMINDER.repeat(20_000)).blocks).toHaveLength(20_000);
});

test("a user's message has its own parts, pictures included, after the blocks", () => {
  const image = { type: "image" as const, blob: "b", media_type: "image/png" };
  const message: Message = { role: "user", parts: [{ type: "text", text: `${REMINDER}\n` }, image, { type: "text", text: `${REMINDER}\n\nWhy?` }] };
  expect(splitUserMessage(message)).toEqual({ blocks: [REMINDER, REMINDER], parts: [image, { type: "text", text: "Why?" }] });
});

test("a text that a transcript marks as the agent's own is a block", () => {
  const message: Message = { role: "user", parts: [{ type: "text", text: "# Simplify", provider_fields: { "claude-code": { isMeta: true } } }] };
  expect(splitUserMessage(message)).toEqual({ blocks: ["# Simplify"], parts: [] });
});

test("only a long system message is folded, under its first line", () => {
  const message = (text: string, role: Message["role"] = "system"): Message => ({ role, parts: [{ type: "text", text }] });
  const long = `# Environment\n${"A line. ".repeat(40)}`;
  expect(getSystemHeading(message(long))).toBe("Environment");
  expect(getSystemHeading(message("Be brief."))).toBeNull();
  expect(getSystemHeading(message(long, "user"))).toBeNull();
  expect(getSystemHeading(message("word ".repeat(100)))).toHaveLength(80);
});
