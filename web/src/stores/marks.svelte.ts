/** Conversations that this browser pins to the top of the list, and those that it hides from it. */

const PINNED_STORAGE = "quire-pinned";
const ARCHIVED_STORAGE = "quire-archived";

function read(name: string): string[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(name) ?? "[]");
    return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

class MarkStore {
  pinned = $state.raw<string[]>(read(PINNED_STORAGE));
  archived = $state.raw<string[]>(read(ARCHIVED_STORAGE));

  togglePinned(id: string): void {
    this.pinned = toggle(this.pinned, id);
    localStorage.setItem(PINNED_STORAGE, JSON.stringify(this.pinned));
  }

  toggleArchived(id: string): void {
    this.archived = toggle(this.archived, id);
    localStorage.setItem(ARCHIVED_STORAGE, JSON.stringify(this.archived));
  }
}

function toggle(ids: readonly string[], id: string): string[] {
  return ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id];
}

export const marks = new MarkStore();
