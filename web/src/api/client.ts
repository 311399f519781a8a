/** HTTP client of the page. Every failure is an `ApiError` whose message can be displayed as it is. */

import { messages } from "../lib/messages";

export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, detail: string) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  /** Sent as the raw request body, with its own media type. */
  file?: Blob;
  signal?: AbortSignal;
}

const API_KEY_STORAGE = "quire-key";

/** The API key, if the server requires one. Session storage limits it to this browser tab. */
export const apiKey = {
  get: (): string | null => sessionStorage.getItem(API_KEY_STORAGE),
  set: (value: string): void => sessionStorage.setItem(API_KEY_STORAGE, value),
};

export function buildUrl(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) params.append(name, String(each));
  }
  const search = params.toString();
  return search ? `${path}?${search}` : path;
}

/** Sends a request and returns the response unread, for streams; throws `ApiError` on an error status. */
export async function sendRequest(
  method: string, path: string, { query, body, file, signal }: RequestOptions = {},
): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = apiKey.get();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (file) headers["Content-Type"] = file.type || "application/octet-stream";
  else if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(buildUrl(path, query), {
      method,
      headers,
      body: file ?? (body === undefined ? undefined : JSON.stringify(body)),
      signal,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "Cannot reach the server. Check that it is running.");
  }
  if (!response.ok) throw await parseError(response);
  return response;
}

async function parseError(response: Response): Promise<ApiError> {
  try {
    const problem = (await response.json()) as { code?: string; detail?: string };
    return new ApiError(response.status, problem.code ?? "unknown", problem.detail ?? response.statusText);
  } catch {
    return new ApiError(response.status, "unknown", messages.serverAnswered(response.status));
  }
}

/** Sends a request and parses the JSON of its response. */
export async function requestJson<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const response = await sendRequest(method, path, options);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

/** Whether an error only says that the caller aborted the request. */
export function isAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
