/** What a branch would lose in a reload, for this browser tab: the unsent message, and why its question has no answer. */

import type { BranchRef } from "../api/calls";

interface TabStorage {
  get: (branchRef: BranchRef) => string;
  set: (branchRef: BranchRef, text: string) => void;
}

function createStorage(prefix: string): TabStorage {
  const keyOf = ({ conversation, branch }: BranchRef): string => `${prefix}${conversation}:${branch}`;
  return {
    get: (branchRef) => sessionStorage.getItem(keyOf(branchRef)) ?? "",
    set: (branchRef, text) => {
      if (text) sessionStorage.setItem(keyOf(branchRef), text);
      else sessionStorage.removeItem(keyOf(branchRef));
    },
  };
}

export const drafts = createStorage("quire-draft:");
/** The error of the last turn; it counts while the branch ends with a question. */
export const failures = createStorage("quire-failure:");
