/** Where the page is: kept in the address after the #, so that back, forward and links work. */

export type PanelName = "context" | "references" | "window" | "settings";

export interface Place {
  conversation: string | null;
  branch: number;
  /** The entry to show. */
  at: number | null;
  panel: PanelName | null;
  /** The reply whose context the panel shows; null for the next request. */
  reply: number | null;
  /** The document that the panel shows. */
  document: string | null;
}

const PANELS: readonly string[] = ["context", "references", "window", "settings"];

export function parsed(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const given = new URLSearchParams(query);
  const id = path.startsWith("c/") ? decoded(path.slice(2)) : "";
  const panel = given.get("panel");
  return {
    conversation: id || null,
    branch: whole(given.get("branch")) ?? 0,
    at: whole(given.get("at")),
    panel: panel !== null && PANELS.includes(panel) ? (panel as PanelName) : null,
    reply: whole(given.get("reply")),
    document: given.get("document"),
  };
}

export function written(place: Place): string {
  const given = new URLSearchParams();
  if (place.branch) given.set("branch", String(place.branch));
  if (place.at !== null) given.set("at", String(place.at));
  if (place.panel) given.set("panel", place.panel);
  if (place.reply !== null) given.set("reply", String(place.reply));
  if (place.document !== null) given.set("document", place.document);
  const query = given.toString();
  const path = place.conversation === null ? "#/" : `#/c/${encodeURIComponent(place.conversation)}`;
  return query ? `${path}?${query}` : path;
}

function whole(text: string | null): number | null {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** An address that somebody mistyped is no reason to fail. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

class Route {
  place = $state.raw<Place>(parsed(typeof location === "undefined" ? "" : location.hash));

  listen(): () => void {
    const changed = () => (this.place = parsed(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }

  /** Goes on with these changes; `quiet` leaves no step in the history. */
  go(changes: Partial<Place>, { quiet = false } = {}): void {
    const next = { ...this.place, ...changes };
    const address = written(next);
    if (address !== written(this.place)) {
      if (quiet) history.replaceState(null, "", address);
      else history.pushState(null, "", address);
    }
    this.place = next;
  }

  open(conversation: string | null, branch = 0): void {
    const { panel } = this.place;
    this.go({ conversation, branch, at: null, reply: null, document: null, panel: conversation ? panel : null });
  }

  show(panel: PanelName | null, more: Partial<Place> = {}): void {
    this.go({ panel, reply: null, document: null, ...more });
  }
}

export const route = new Route();
