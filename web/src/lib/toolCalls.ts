/**
 * Tool calls in the form that people know from their agents: a diff, a checklist, a terminal, a file, a list of hits, a
 * sub-agent. The names and arguments are those of Claude Code, Codex, OpenCode and Gemini CLI. A call with other
 * arguments than these tools have is of the form `other`.
 */

import type { ToolCallPart, ToolResultPart } from "../api/types";
import { diffLines, splitLines, type DiffLine } from "./lineDiff";

export interface FileDiff {
  path: string;
  /** A file that is written whole may be a new one or replace another. */
  change: "edited" | "written" | "added" | "deleted";
  lines: DiffLine[];
}

export interface ChecklistItem {
  text: string;
  status: "pending" | "in_progress" | "completed";
}

export interface SearchHit {
  path: string;
  /** Line of the file; null for a hit that is a whole file. */
  line: number | null;
  text: string;
}

export type CallView =
  | { kind: "diff"; files: FileDiff[] }
  | { kind: "checklist"; explanation: string; items: ChecklistItem[] }
  | { kind: "terminal"; command: string; output: string; exitCode: number | null }
  | { kind: "file"; path: string; firstLine: number; lines: string[] }
  | { kind: "hits"; pattern: string; hits: SearchHit[] }
  | { kind: "agent"; task: string; type: string | null; prompt: string; answer: string }
  | { kind: "other" };

/** How a call ended. What the user denied or stopped has not failed. */
export type CallOutcome = "done" | "failed" | "denied" | "stopped";

type Arguments = Record<string, unknown>;

const SHELL_TOOLS = ["bash", "exec_command", "shell", "local_shell", "shell_command", "run_shell_command"];
const EDIT_TOOLS = ["edit", "multiedit", "replace"];
const WRITE_TOOLS = ["write", "write_file"];
const READ_TOOLS = ["read", "read_file"];
const SEARCH_TOOLS = ["grep", "glob", "grep_search", "search_file_content"];
const CHECKLIST_TOOLS = ["todowrite", "update_plan", "write_todos"];
const AGENT_TOOLS = ["task", "agent", "spawn_agent"];

/** Texts that begin the result of a call that the user, or a rule of theirs, did not allow. */
const DENIALS = [
  /^The user doesn['’]t want to (?:proceed with this tool use|take this action)/,
  /^Permission to use .{1,100} has been denied/,
  /^(?:exec command |patch )?rejected by user/,
  /^exec_command failed\b[^]*\brejected by user/,
  /^The user (?:rejected permission to use|denied) this/,
  /^\S+ was not run: the user denied it/,
  /^\[Operation Cancelled\] Reason: User (?:did not allow|denied)/,
];
const STOPS = [/^\[?Request interrupted by user/, /^aborted by user/, /^\S+ was not run: the turn was stopped/];
/** How much of a result is searched for these texts and for an exit code. */
const HEADER_CHARS = 2_000;

export function readOutcome(result: ToolResultPart): CallOutcome {
  const text = result.content.find((piece) => piece.type === "text")?.text ?? "";
  const header = text.slice(0, HEADER_CHARS).trimStart();
  if (DENIALS.some((pattern) => pattern.test(header))) return "denied";
  if (STOPS.some((pattern) => pattern.test(header))) return "stopped";
  // Codex reports a command that failed as a result like any other.
  const exitCode = CODEX_EXIT.exec(header)?.[1] ?? (text.startsWith('{"output":') ? CODEX_JSON_EXIT.exec(text.slice(-HEADER_CHARS))?.[1] : undefined);
  return result.is_error || (exitCode !== undefined && exitCode !== "0") ? "failed" : "done";
}

/** What the user said when they denied the call; empty if they said nothing. */
export function readDenialReason(result: ToolResultPart): string {
  return /(?:the user said:|with the following feedback:|the user denied it\. Reason:)\s*([^]*)/.exec(readText(result))?.[1]?.trim() ?? "";
}

export function readText(result: ToolResultPart | null): string {
  return (result?.content ?? []).flatMap((piece) => (piece.type === "text" ? [piece.text] : [])).join("\n");
}

export function viewCall(call: Pick<ToolCallPart, "name" | "arguments">, result: ToolResultPart | null): CallView {
  const name = call.name.toLowerCase();
  const values = parseObject(call.arguments);
  const text = readText(result);
  if (!values) return { kind: "other" };
  const patch = findPatch(values);
  if (patch !== null && (name.endsWith("patch") || SHELL_TOOLS.includes(name))) return { kind: "diff", files: parsePatch(patch) };
  if (SHELL_TOOLS.includes(name)) return viewCommand(values, text);
  if (EDIT_TOOLS.includes(name)) return viewEdit(values);
  if (WRITE_TOOLS.includes(name)) return viewWrite(values);
  const found = result && readOutcome(result) === "done" ? stripReminders(text) : "";
  if (READ_TOOLS.includes(name)) return viewFile(values, found);
  if (SEARCH_TOOLS.includes(name)) return viewHits(values, found);
  if (CHECKLIST_TOOLS.includes(name)) return viewChecklist(values);
  if (AGENT_TOOLS.includes(name)) return viewAgent(values, text);
  return { kind: "other" };
}

/** The call in a few words for its line: a command, a path, a pattern, a task. Null if the arguments say it best. */
export function summarizeView(view: CallView, project: string | null): string | null {
  switch (view.kind) {
    case "diff":
      return view.files.map((file) => shortenPath(file.path, project)).join(", ");
    case "checklist":
      return view.items.find((item) => item.status === "in_progress")?.text ?? "";
    case "terminal":
      return view.command;
    case "file":
      return shortenPath(view.path, project);
    case "hits":
      return view.pattern;
    case "agent":
      return view.task;
    case "other":
      return null;
  }
}

/** A path below the project's folder, relative to it. */
export function shortenPath(path: string, project: string | null): string {
  return project && path.startsWith(`${project.replace(/\/$/, "")}/`) ? path.slice(project.replace(/\/$/, "").length + 1) : path;
}

export function countChanges(files: readonly FileDiff[]): { added: number; removed: number } {
  const count = (kind: DiffLine["kind"]) => files.reduce((sum, file) => sum + file.lines.filter((line) => line.kind === kind).length, 0);
  return { added: count("added"), removed: count("removed") };
}

function parseObject(text: string): Arguments | null {
  try {
    const value: unknown = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Arguments) : null;
  } catch {
    return null;
  }
}

/** The first of these arguments that is a text. */
function getText(values: Arguments, ...names: string[]): string | null {
  return names.map((name) => values[name]).find((value) => typeof value === "string") ?? null;
}

const getPath = (values: Arguments) => getText(values, "file_path", "filePath", "path", "absolute_path");

function getObjects(value: unknown): Arguments[] {
  return Array.isArray(value) ? value.filter((each) => each !== null && typeof each === "object") : [];
}

/** A patch in the format of Codex: an argument of its own, or in the command of a shell. */
function findPatch(values: Arguments): string | null {
  const texts = [values.input, values.patch, values.patchText, values.cmd, values.command].flat();
  const text = texts.find((each) => typeof each === "string" && each.includes("*** Begin Patch"));
  return typeof text === "string" ? text.slice(text.indexOf("*** Begin Patch")) : null;
}

const PATCH_CHANGES = { Add: "added", Update: "edited", Delete: "deleted" } as const;
const PATCH_LINES = { "+": "added", "-": "removed", " ": "same" } as const;

function parsePatch(patch: string): FileDiff[] {
  const files: FileDiff[] = [];
  for (const line of splitLines(patch)) {
    if (line.startsWith("*** End Patch")) break;
    const header = /^\*\*\* (Add|Update|Delete) File: (.+)$/.exec(line);
    if (header) files.push({ path: header[2] ?? "", change: PATCH_CHANGES[header[1] as keyof typeof PATCH_CHANGES], lines: [] });
    const file = files.at(-1);
    if (header || !file) continue;
    if (line.startsWith("*** Move to: ")) file.path = `${file.path} → ${line.slice("*** Move to: ".length)}`;
    else if (line.startsWith("@@")) file.lines.push({ kind: "place", text: line.slice(2).trim() });
    else if (line === "") file.lines.push({ kind: "same", text: "" });
    else if (line.charAt(0) in PATCH_LINES) {
      file.lines.push({ kind: PATCH_LINES[line.charAt(0) as keyof typeof PATCH_LINES], text: line.slice(1) });
    }
  }
  // The mark of a place without a name says nothing at the beginning.
  for (const { lines } of files) if (lines[0]?.kind === "place" && lines[0].text === "") lines.shift();
  return files;
}

function viewEdit(values: Arguments): CallView {
  const path = getPath(values);
  const edits = (Array.isArray(values.edits) ? getObjects(values.edits) : [values]).map((edit) => [
    getText(edit, "old_string", "oldString"),
    getText(edit, "new_string", "newString"),
  ]);
  if (path === null || edits.length === 0 || edits.flat().includes(null)) return { kind: "other" };
  const lines = edits.flatMap(([old, now], index): DiffLine[] => [
    ...(index > 0 ? [{ kind: "place", text: "" } as const] : []),
    ...diffLines(old ?? "", now ?? ""),
  ]);
  return { kind: "diff", files: [{ path, change: "edited", lines }] };
}

function viewWrite(values: Arguments): CallView {
  const [path, content] = [getPath(values), getText(values, "content")];
  if (path === null || content === null) return { kind: "other" };
  return { kind: "diff", files: [{ path, change: "written", lines: diffLines("", content) }] };
}

const CODEX_EXIT = /^(?:(?:Chunk ID|Wall time|Original token count): .*\n)*(?:Process exited with code|Exit code:?) (-?\d+)/;
const CODEX_JSON_EXIT = /"metadata":\{"exit_code":(-?\d+)[^{}]*\}\}\s*$/;
/** What Codex writes before the output of a command, and Claude Code before that of one that failed. */
const COMMAND_HEADER =
  /^(?:(?:Chunk ID|Wall time|Original token count|Total output lines|Process exited with code|Process running with session ID|Exit code):? .*\n)+(?:Output:\n)?|^Exit code \d+$/;
const TERMINAL_CODES = /\u001b(?:\[[0-9;?]*[A-Za-z]|\][^\u0007]*\u0007)/g;

function viewCommand(values: Arguments, text: string): CallView {
  const given = values.cmd ?? values.command;
  // ["bash", "-lc", "make"] runs the last of them.
  const isWrapped = Array.isArray(given) && given.length === 3 && /^-l?c$/.test(String(given[1]));
  const command = Array.isArray(given) ? (isWrapped ? String(given[2]) : given.join(" ")) : given;
  if (typeof command !== "string") return { kind: "other" };
  const json = text.startsWith('{"output":') ? parseObject(text) : null;
  const metadata = getObjects([json?.metadata])[0];
  const exitCode = typeof metadata?.exit_code === "number" ? metadata.exit_code : CODEX_EXIT.exec(text)?.[1];
  const output = (json ? getText(json, "output") : null) ?? text.replace(COMMAND_HEADER, "");
  return { kind: "terminal", command, output: output.replace(TERMINAL_CODES, ""), exitCode: exitCode === undefined ? null : Number(exitCode) };
}

/** Removes what Claude Code adds for the model at the end of a result. */
function stripReminders(text: string): string {
  let rest = text;
  while (rest.trimEnd().endsWith("</system-reminder>")) {
    const start = rest.lastIndexOf("<system-reminder>");
    if (start < 0) break;
    rest = rest.slice(0, start).trimEnd();
  }
  return rest;
}

const NUMBERED_LINE = /^\s*(\d{1,9})(?:→|\t|\| ?)(.*)$/;

function viewFile(values: Arguments, text: string): CallView {
  const path = getPath(values);
  const lines = splitLines(text.replace(/^<file>\n/, "").replace(/\n<\/file>$/, ""));
  if (path === null) return { kind: "other" };
  const numbered = lines.map((line) => NUMBERED_LINE.exec(line));
  const firstLine = Number(numbered[0]?.[1] ?? values.offset ?? 1) || 1;
  const isNumbered = numbered.every((match, index) => Number(match?.[1]) === firstLine + index);
  return { kind: "file", path, firstLine, lines: isNumbered ? numbered.map((match) => match?.[2] ?? "") : lines };
}

function viewHits(values: Arguments, text: string): CallView {
  const pattern = getText(values, "pattern");
  if (pattern === null) return { kind: "other" };
  const hits: SearchHit[] = [];
  let path = getPath(values) ?? "";
  for (const line of splitLines(text)) {
    if (/^(?:--|Found \d+ (?:files?|matches)\b.*|No (?:files|matches) found.*|\s*)$/.test(line)) continue;
    const inFile = /^(.+?):(\d{1,9}):(.*)$/.exec(line) ?? (values.output_mode === "content" ? /^(.+?)-(\d{1,9})-(.*)$/.exec(line) : null);
    const inGivenFile = /^(?:\s+Line )?(\d{1,9})[:-] ?(.*)$/.exec(line);
    if (inFile) hits.push({ path: inFile[1] ?? "", line: Number(inFile[2]), text: inFile[3] ?? "" });
    else if (inGivenFile) hits.push({ path, line: Number(inGivenFile[1]), text: inGivenFile[2] ?? "" });
    else if (/^\S.*:$/.test(line)) path = line.slice(0, -1);
    else hits.push({ path: line, line: null, text: "" });
  }
  return { kind: "hits", pattern, hits };
}

function viewChecklist(values: Arguments): CallView {
  const items = getObjects(values.todos ?? values.plan).flatMap((item): ChecklistItem[] => {
    const text = getText(item, "content", "step", "description");
    const status = item.status === "in_progress" || item.status === "completed" ? item.status : "pending";
    return text === null ? [] : [{ text, status }];
  });
  return items.length === 0 ? { kind: "other" } : { kind: "checklist", explanation: getText(values, "explanation") ?? "", items };
}

function viewAgent(values: Arguments, text: string): CallView {
  const prompt = getText(values, "prompt", "message");
  if (prompt === null) return { kind: "other" };
  // What follows the id is for the model: how to continue the agent, and its usage.
  const hasAnswer = !/^(?:Async agent launched|\{"agent_id":)/.test(text);
  return {
    kind: "agent", prompt,
    answer: hasAnswer ? text.replace(/(?:^|\n)agentId: [^]*$/, "").trim() : "",
    task: getText(values, "description", "task_name") ?? splitLines(prompt)[0] ?? "",
    type: getText(values, "subagent_type", "agent_type"),
  };
}

/** Id of the sub-agent that a call started; null if the result has none. */
export function readAgentId(result: ToolResultPart | null): string | null {
  const text = readText(result);
  return /^agentId: ([\w-]+)/m.exec(text)?.[1] ?? /^\{"agent_id":"([^"]+)"/.exec(text)?.[1] ?? null;
}

const LANGUAGES_BY_ENDING: Record<string, string> = {
  bash: "bash", c: "c", cc: "cpp", cfg: "ini", cpp: "cpp", cjs: "javascript", css: "css", diff: "diff", go: "go", h: "c", hpp: "cpp",
  html: "xml", ini: "ini", java: "java", js: "javascript", json: "json", jsx: "javascript", mjs: "javascript", patch: "diff",
  py: "python", pyi: "python", rs: "rust", sh: "bash", sql: "sql", svelte: "xml", svg: "xml", toml: "ini", ts: "typescript",
  tsx: "typescript", vue: "xml", xml: "xml", yaml: "yaml", yml: "yaml",
};

/** The language of a file's highlighting; null if the page has none for it. */
export function findLanguage(path: string): string | null {
  const ending = /\.(\w+)$/.exec(path)?.[1]?.toLowerCase() ?? "";
  return Object.hasOwn(LANGUAGES_BY_ENDING, ending) ? (LANGUAGES_BY_ENDING[ending] ?? null) : null;
}
