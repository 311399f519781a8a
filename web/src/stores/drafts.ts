/** Unsent messages by conversation and branch, for this browser tab; a draft survives a switch and a reload. */

import type { BranchRef } from "../api/calls";

const STORAGE_PREFIX = "quire-draft:";

const keyOf = ({ conversation, branch }: BranchRef): string => `${STORAGE_PREFIX}${conversation}:${branch}`;

export const drafts = {
  get: (branchRef: BranchRef): string => sessionStorage.getItem(keyOf(branchRef)) ?? "",
  set: (branchRef: BranchRef, text: string): void => {
    if (text) sessionStorage.setItem(keyOf(branchRef), text);
    else sessionStorage.removeItem(keyOf(branchRef));
  },
};
