/** Short notes at the edge of the page, read out by screen readers too. */

import { isAborted, Problem } from "../api/client";

export interface Notice {
  id: number;
  text: string;
  wrong: boolean;
}

const SECONDS = 7;

class Notices {
  shown = $state<Notice[]>([]);
  /** The server wants a key that this window does not have. */
  locked = $state(false);
  #next = 1;

  say(text: string, { wrong = false } = {}): void {
    const id = this.#next++;
    this.shown.push({ id, text, wrong });
    setTimeout(() => this.dismiss(id), SECONDS * (wrong ? 2_000 : 1_000));
  }

  dismiss(id: number): void {
    this.shown = this.shown.filter((each) => each.id !== id);
  }

  /** What went wrong, in the server's words. */
  fail(error: unknown): void {
    if (isAborted(error)) return;
    if (error instanceof Problem && error.status === 401) {
      this.locked = true;
      return;
    }
    this.say(error instanceof Error ? error.message : String(error), { wrong: true });
  }

  /** Does something, and says what went wrong if it does; undefined then. */
  async try<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      this.fail(error);
      return undefined;
    }
  }
}

export const notices = new Notices();
