/** Notices (toasts) at the edge of the page, announced by screen readers too. */

import { ApiError, isAborted } from "../api/client";

export interface Notice {
  id: number;
  text: string;
  isError: boolean;
  /** Takes the action back; null where that is not possible. */
  undo: (() => void) | null;
}

export interface NoticeOptions {
  isError?: boolean;
  undo?: (() => void) | null;
}

const NOTICE_MS = 7_000;
const ERROR_MS = 2 * NOTICE_MS;

class NoticeStore {
  items = $state<Notice[]>([]);
  /** Whether the server requires an API key that this window does not have. */
  needsKey = $state(false);
  #nextId = 1;

  show(text: string, { isError = false, undo = null }: NoticeOptions = {}): void {
    const id = this.#nextId++;
    this.items.push({ id, text, isError, undo });
    setTimeout(() => this.dismiss(id), isError || undo ? ERROR_MS : NOTICE_MS);
  }

  dismiss(id: number): void {
    this.items = this.items.filter((each) => each.id !== id);
  }

  undo(notice: Notice): void {
    this.dismiss(notice.id);
    notice.undo?.();
  }

  /** Shows an error's message, or opens the key dialog on status 401. Where people sign in, the server leads there. */
  showError(error: unknown): void {
    if (isAborted(error)) return;
    if (error instanceof ApiError && error.code === 'sign_in_required') {
      location.reload();
      return;
    }
    if (error instanceof ApiError && error.status === 401) {
      this.needsKey = true;
      return;
    }
    this.show(error instanceof Error ? error.message : String(error), { isError: true });
  }

  /** Runs `work` and shows its error, if any; the result is undefined then. */
  async run<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      this.showError(error);
      return undefined;
    }
  }
}

export const notices = new NoticeStore();
