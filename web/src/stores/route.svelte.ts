/** Router: the page's location is the URL fragment, so that back, forward and links work. */

import { notices } from "./notices.svelte";

export type PanelName = "context" | "references" | "window" | "settings";

export interface Location {
  conversation: string | null;
  /** Null for the branch used last. */
  branch: number | null;
  /** Sequence number of the entry to scroll to. */
  at: number | null;
  panel: PanelName | null;
  /** The reply whose context the panel displays; null for the next request. */
  reply: number | null;
  /** The reply whose request the panel compares with that one. */
  compare: number | null;
  /** The document that the references panel displays. */
  document: string | null;
  /** Words to mark in the entry `at`: those of the search that led there. */
  find: string | null;
}

export const PANEL_NAMES: readonly PanelName[] = ["context", "references", "window", "settings"];

/** Keys of the titles of the panels. */
export const PANEL_TITLES = {
  context: "Context",
  references: "References",
  window: "Usage",
  settings: "Settings",
} as const;

export function parseHash(hash: string): Location {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query);
  const id = path.startsWith("c/") ? decodeId(path.slice(2)) : "";
  return {
    conversation: id || null,
    branch: parseInteger(params.get("branch")),
    at: parseInteger(params.get("at")),
    panel: PANEL_NAMES.find((name) => name === params.get("panel")) ?? null,
    reply: parseInteger(params.get("reply")),
    compare: parseInteger(params.get("compare")),
    document: params.get("document"),
    find: params.get("find"),
  };
}

export function formatHash(location: Location): string {
  const params = new URLSearchParams();
  if (location.branch !== null) params.set("branch", String(location.branch));
  if (location.at !== null) params.set("at", String(location.at));
  if (location.panel) params.set("panel", location.panel);
  if (location.reply !== null) params.set("reply", String(location.reply));
  if (location.compare !== null) params.set("compare", String(location.compare));
  if (location.document !== null) params.set("document", location.document);
  if (location.find !== null) params.set("find", location.find);
  const query = params.toString();
  const path = location.conversation === null ? "#/" : `#/c/${encodeURIComponent(location.conversation)}`;
  return query ? `${path}?${query}` : path;
}

function parseInteger(text: string | null): number | null {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** Decodes an id; a mistyped URL yields an empty one. */
function decodeId(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** Copies the address of a place of the page, without the token of this machine. */
export async function copyLink(hash: string): Promise<void> {
  await navigator.clipboard.writeText(`${location.origin}${location.pathname}${hash}`);
  notices.show("Link copied.");
}

class RouteStore {
  location = $state.raw<Location>(parseHash(typeof globalThis.location === "undefined" ? "" : globalThis.location.hash));

  /** Follows the browser's history; returns the function that stops it. */
  listen(): () => void {
    const update = () => (this.location = parseHash(globalThis.location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }

  /** Navigates with these changes; `replace` adds no step to the browser's history. */
  go(changes: Partial<Location>, { replace = false } = {}): void {
    const next = { ...this.location, ...changes };
    const hash = formatHash(next);
    if (hash !== formatHash(this.location)) {
      if (replace) history.replaceState(null, "", hash);
      else history.pushState(null, "", hash);
    }
    this.location = next;
  }

  openConversation(conversation: string | null, branch: number | null = null): void {
    const { panel } = this.location;
    this.go({ conversation, branch, at: null, reply: null, compare: null, document: null, find: null, panel: conversation ? panel : null });
  }

  showPanel(panel: PanelName | null, changes: Partial<Location> = {}): void {
    this.go({ panel, reply: null, compare: null, document: null, ...changes });
  }
}

export const route = new RouteStore();
