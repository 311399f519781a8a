/** Requests to the server. Every error is a `Problem`, whose text can be shown as it is. */

export class Problem extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, detail: string) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export interface Asked {
  query?: Query;
  body?: unknown;
  /** Sent as it is, with its own type. */
  file?: Blob;
  signal?: AbortSignal;
}

const STORED = "quire-key";

/** The key that this window was given, if the server asks for one. It is forgotten with the window. */
export const key = {
  get: (): string | null => sessionStorage.getItem(STORED),
  set: (value: string): void => sessionStorage.setItem(STORED, value),
  forget: (): void => sessionStorage.removeItem(STORED),
};

export function address(path: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) given.append(name, String(each));
  }
  const asked = given.toString();
  return asked ? `${path}?${asked}` : path;
}

/** The answer itself, for streams; a `Problem` if it is none. */
export async function answer(method: string, path: string, { query, body, file, signal }: Asked = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const own = key.get();
  if (own) headers.Authorization = `Bearer ${own}`;
  if (file) headers["Content-Type"] = file.type || "application/octet-stream";
  else if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers,
      body: file ?? (body === undefined ? undefined : JSON.stringify(body)),
      signal,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server cannot be reached; is it still running?");
  }
  if (!response.ok) throw await problemIn(response);
  return response;
}

async function problemIn(response: Response): Promise<Problem> {
  try {
    const said = (await response.json()) as { code?: string; detail?: string };
    return new Problem(response.status, said.code ?? "unknown", said.detail ?? response.statusText);
  } catch {
    return new Problem(response.status, "unknown", `The server answered ${response.status}.`);
  }
}

export async function ask<T>(method: string, path: string, asked: Asked = {}): Promise<T> {
  const response = await answer(method, path, asked);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

/** Whether an error only says that nobody waits for the answer any more. */
export function isAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
