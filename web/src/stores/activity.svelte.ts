/** Which conversations have a running turn, and which of them need an approval: for marks in the list and the tab's title. */

import { turns } from "../api/calls";

const POLL_MS = 4_000;
const POLL_HIDDEN_MS = 20_000;

export type Activity = "running" | "waiting";

class ActivityStore {
  #states = $state.raw<ReadonlyMap<string, Activity>>(new Map());

  get(conversation: string): Activity | null {
    return this.#states.get(conversation) ?? null;
  }

  /** How many conversations other than this one wait for an approval. */
  countWaiting(except: string | null): number {
    return [...this.#states].filter(([id, state]) => state === "waiting" && id !== except).length;
  }

  /** Loads the state again and again; returns the function that stops it. */
  poll(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isStopped = false;
    const update = async () => {
      // Marks only: while the server cannot be reached, the page says so elsewhere.
      const list = await turns.running().catch(() => null);
      if (list) this.#states = new Map(list.items.map((each) => [each.conversation, each.needs_approval ? "waiting" : "running"]));
      if (!isStopped) timer = setTimeout(() => void update(), document.hidden ? POLL_HIDDEN_MS : POLL_MS);
    };
    void update();
    return () => {
      isStopped = true;
      clearTimeout(timer);
    };
  }
}

export const activity = new ActivityStore();
