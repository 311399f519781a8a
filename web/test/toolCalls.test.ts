import { expect, test } from "vitest";

import type { ToolResultPart } from "../src/api/types";
import { diffLines } from "../src/lib/lineDiff";
import { countChanges, findLanguage, readAgentId, readDenialReason, readOutcome, shortenPath, summarizeView, viewCall, type CallView } from "../src/lib/toolCalls";

const result = (text: string, is_error = false): ToolResultPart => ({ type: "tool_result", call_id: "c", content: [{ type: "text", text }], is_error });
const view = (name: string, values: unknown, text?: string, isError = false) =>
  viewCall({ name, arguments: JSON.stringify(values) }, text === undefined ? null : result(text, isError));
const draw = (viewed: CallView) =>
  viewed.kind === "diff" ? viewed.files.flatMap((file) => file.lines.map((line) => `${{ same: " ", added: "+", removed: "-", place: "@" }[line.kind]}${line.text}`)) : viewed;

test("an edit is the difference of its texts, of each edit of several", () => {
  const edit = { file_path: "/mill/gate.py", old_string: "a = 1\nPORT = 7421\nb = 2", new_string: "a = 1\nPORT = 7500\nSILL = 3\nb = 2" };
  expect(draw(view("Edit", edit))).toEqual([" a = 1", "-PORT = 7421", "+PORT = 7500", "+SILL = 3", " b = 2"]);
  expect(draw(view("edit", { filePath: "a", oldString: "x", newString: "y" }))).toEqual(["-x", "+y"]);
  const several = { file_path: "a", edits: [{ old_string: "x", new_string: "" }, { old_string: "", new_string: "z" }] };
  expect(draw(view("MultiEdit", several))).toEqual(["-x", "@", "+z"]);
  expect(draw(view("Write", { file_path: "a", content: "1\n2\n" }))).toEqual(["+1", "+2"]);
  expect(view("Edit", { file_path: "a", old_string: 3 })).toEqual({ kind: "other" });
});

test("the difference of two texts makes the one from the other", () => {
  const apply = (before: string[], after: string[]) => {
    const lines = diffLines(before.join("\n"), after.join("\n"));
    const pick = (kind: string) => lines.filter((line) => line.kind === "same" || line.kind === kind).map((line) => line.text);
    return [pick("removed"), pick("added")];
  };
  for (let seed = 1; seed < 200; seed++) {
    const draw = (salt: number) => Array.from({ length: (seed * salt) % 9 + 1 }, (_, index) => `l${(seed * salt * (index + 3)) % 4}`);
    expect(apply(draw(7), draw(13))).toEqual([draw(7), draw(13)]);
  }
  const long = Array.from({ length: 900 }, (_, index) => `a${index}`);
  expect(apply(long, long.map((line) => `${line}b`))).toEqual([long, long.map((line) => `${line}b`)]);
});

const PATCH = `*** Begin Patch
*** Update File: src/gate.py
*** Move to: src/sluice.py
@@ def open_gate():
 a
-b
+c
*** Add File: notes.txt
+one
*** Delete File: old.txt
*** End Patch`;

test("a patch of Codex is a difference for each file, also in the command of a shell", () => {
  const patched = view("apply_patch", { input: PATCH });
  expect(patched).toMatchObject({ kind: "diff", files: [{ path: "src/gate.py → src/sluice.py", change: "edited" }, { path: "notes.txt", change: "added" }, { path: "old.txt", change: "deleted" }] });
  expect(draw(patched)).toEqual(["@def open_gate():", " a", "-b", "+c", "+one"]);
  expect(patched.kind === "diff" && countChanges(patched.files)).toEqual({ added: 2, removed: 1 });
  expect(view("shell", { command: ["apply_patch", PATCH] })).toEqual(patched);
  expect(view("exec_command", { cmd: `apply_patch <<'EOF'\n${PATCH}\nEOF` })).toEqual(patched);
});

test("a command has its output and exit code, of each agent", () => {
  const terminal = (command: string, output: string, exitCode: number | null) => ({ kind: "terminal", command, output, exitCode });
  expect(view("Bash", { command: "ls" }, "a\nb")).toEqual(terminal("ls", "a\nb", null));
  expect(view("Bash", { command: "ls x" }, "Exit code 2\nno x", true)).toEqual(terminal("ls x", "no x", 2));
  const codex = "Chunk ID: fc598c\nWall time: 0.0000 seconds\nProcess exited with code 1\nOriginal token count: 10\nOutput:\ncat: gate.py: No such file\n";
  expect(view("exec_command", { cmd: "cat gate.py" }, codex)).toEqual(terminal("cat gate.py", "cat: gate.py: No such file\n", 1));
  const older = '{"output":"ahoy\\n","metadata":{"exit_code":0,"duration_seconds":0.1}}';
  expect(view("shell", { command: ["bash", "-lc", "echo ahoy"] }, older)).toEqual(terminal("echo ahoy", "ahoy\n", 0));
  expect(view("shell", { command: ["make", "all"] }, "Exit code: 0\nWall time: 1 seconds\nOutput:\nok")).toEqual(terminal("make all", "ok", 0));
  expect(view("Bash", { command: "x" }, "\u001b[31mred\u001b[0m")).toEqual(terminal("x", "red", null));
  // The output of a program is no header.
  expect(view("Bash", { command: "x" }, "Output:\nExit code 3")).toEqual(terminal("x", "Output:\nExit code 3", null));
});

test("a file that was read has its lines and their numbers", () => {
  const file = (firstLine: number, ...lines: string[]) => ({ kind: "file", path: "/mill/gate.py", firstLine, lines });
  expect(view("Read", { file_path: "/mill/gate.py" }, "1\tPORT = 7421\n2\t\n3\tdef gate():")).toEqual(file(1, "PORT = 7421", "", "def gate():"));
  expect(view("Read", { file_path: "/mill/gate.py", offset: 41 }, "    41→a\n    42→b\n\n<system-reminder>Not malware.</system-reminder>\n")).toEqual(file(41, "a", "b"));
  expect(view("read", { filePath: "/mill/gate.py" }, "<file>\n00001| a\n00002| b\n</file>")).toEqual(file(1, "a", "b"));
  expect(view("read_file", { absolute_path: "/mill/gate.py" }, "1 sack\n7\tsacks")).toEqual(file(1, "1 sack", "7\tsacks"));
  expect(view("Read", { file_path: "/mill/gate.py" }, "File does not exist.", true)).toEqual(file(1));
  expect([findLanguage("/mill/gate.py"), findLanguage("a.TS"), findLanguage("Makefile"), findLanguage("a.constructor")]).toEqual(["python", "typescript", null, null]);
});

test("a search has its hits, by file and line", () => {
  const hits = (...found: [string, number | null, string][]) => ({ kind: "hits", pattern: "port", hits: found.map(([path, line, text]) => ({ path, line, text })) });
  expect(view("Grep", { pattern: "port" }, "Found 2 files\na.py\nb/c.py")).toEqual(hits(["a.py", null, ""], ["b/c.py", null, ""]));
  expect(view("Grep", { pattern: "port", output_mode: "content" }, "a.py:3:port = 1\na.py-4-x\n--\nb.py:9:  port: 2")).toEqual(hits(["a.py", 3, "port = 1"], ["a.py", 4, "x"], ["b.py", 9, "  port: 2"]));
  expect(view("Grep", { pattern: "port", path: "a.py" }, "3:port = 1")).toEqual(hits(["a.py", 3, "port = 1"]));
  expect(view("grep", { pattern: "port" }, "Found 1 matches\n/m/a.py:\n  Line 3: port = 1")).toEqual(hits(["/m/a.py", 3, "port = 1"]));
  expect(view("Glob", { pattern: "port" }, "No files found")).toEqual(hits());
});

test("a plan is a checklist", () => {
  const items = [{ text: "Sift", status: "completed" }, { text: "Mill", status: "in_progress" }, { text: "Sell", status: "pending" }];
  const checklist = view("TodoWrite", { todos: items.map(({ text, status }) => ({ content: text, status, activeForm: text })) });
  expect(checklist).toEqual({ kind: "checklist", explanation: "", items });
  expect(view("update_plan", { explanation: "First", plan: items.map(({ text, status }) => ({ step: text, status })) })).toEqual({ kind: "checklist", explanation: "First", items });
  expect(summarizeView(checklist, null)).toBe("Mill");
});

test("a sub-agent has its task, its id and its answer", () => {
  const task = { description: "Count", prompt: "Count the sacks.\nAll.", subagent_type: "Explore" };
  const agent = { kind: "agent", task: "Count", type: "Explore", prompt: "Count the sacks.\nAll." };
  const texts = {
    waited: "There are **31**.\nagentId: a3a31233 (use SendMessage to continue)\n<usage>total_tokens: 9</usage>",
    launched: "Async agent launched successfully.\nagentId: a3a31233 (internal ID)\nWait.",
    spawned: '{"agent_id":"01a1","nickname":"Pascal"}',
  };
  expect(view("Task", task, texts.waited)).toEqual({ ...agent, answer: "There are **31**." });
  expect(view("Agent", task, texts.launched)).toEqual({ ...agent, answer: "" });
  expect(view("spawn_agent", { message: "Count the sacks.\nAll." }, texts.spawned)).toEqual({ ...agent, task: "Count the sacks.", type: null, answer: "" });
  expect([...Object.values(texts), "31"].map((text) => readAgentId(result(text)))).toEqual(["a3a31233", "a3a31233", "01a1", null]);
});

test("what the user denied or stopped has not failed", () => {
  const rejected = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file).";
  const outcomes = (texts: string[], isError: boolean) => texts.map((text) => readOutcome(result(text, isError)));
  expect(outcomes([rejected, "Permission to use Bash with command rm x has been denied.", "The user rejected permission to use this specific tool call.", "The user denied this operation.", "order_timber was not run: the user denied it."], true)).toEqual(Array(5).fill("denied"));
  expect(outcomes(["exec command rejected by user", "patch rejected by user", 'exec_command failed for `rm x`: Rejected("rejected by user")'], false)).toEqual(Array(3).fill("denied"));
  expect(outcomes(["[Request interrupted by user for tool use]", "aborted by user after 3.2s"], true)).toEqual(["stopped", "stopped"]);
  expect(outcomes(["The file was denied.", "Exit code 1\nPermission denied"], true)).toEqual(["failed", "failed"]);
  expect(outcomes(["ok", "Chunk ID: 1\nProcess exited with code 0\nOutput:\n", "Wall time: 1 seconds\nProcess exited with code 1\n", "Exit code: 2\nOutput:\n", JSON.stringify({ output: "x".repeat(9_000), metadata: { exit_code: 3, duration_seconds: 1 } })], false)).toEqual(["done", "done", "failed", "failed", "failed"]);
  expect(readDenialReason(result(`${rejected} To tell you how to proceed, the user said:\nUse the other gate.`, true))).toBe("Use the other gate.");
  expect([readDenialReason(result("order was not run: the user denied it. Reason: too dear", true)), readDenialReason(result(rejected, true))]).toEqual(["too dear", ""]);
});

test("other tools, and arguments that are no object, stay as they are", () => {
  for (const text of ["", "[1]", "null", "{", '{"command": 3}']) expect(viewCall({ name: "Bash", arguments: text }, null)).toEqual({ kind: "other" });
  expect(view("mcp__sails__set", { command: "ls" })).toEqual({ kind: "other" });
  expect([shortenPath("/home/mill/a.py", "/home/mill"), shortenPath("/home/mills/a.py", "/home/mill/"), shortenPath("a", null)]).toEqual(["a.py", "/home/mills/a.py", "a"]);
});
