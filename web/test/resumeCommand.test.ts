import { expect, test } from "vitest";

import { formatResumeCommand } from "../src/lib/resumeCommand";

test("an id is one word of the shell, and no option", () => {
  const format = (conversation: string) => formatResumeCommand({ conversation, branch: 2 }, "codex");
  expect(format("01ke6p8kt0")).toBe("quire resume --in codex --branch 2 -- 01ke6p8kt0");
  expect(format("--run")).toBe("quire resume --in codex --branch 2 -- '--run'");
  expect(format("it's; rm -rf ~ $(x)")).toBe("quire resume --in codex --branch 2 -- 'it'\\''s; rm -rf ~ $(x)'");
});
