/** Branches: which line an entry belongs to, and which other lines begin in its place. */

export interface BranchLike {
  number: number;
  head: number;
  forked_at: number;
  parent: number | null;
}

/** The branches that a branch is made of, its own first, each with the last entry that it gives. */
export function lineage<B extends BranchLike>(branches: readonly B[], number: number): { branch: B; last: number }[] {
  const byNumber = new Map(branches.map((branch) => [branch.number, branch]));
  const line: { branch: B; last: number }[] = [];
  let branch = byNumber.get(number);
  let last = branch?.head ?? 0;
  while (branch && line.length <= branches.length) {
    line.push({ branch, last });
    last = Math.min(last, branch.forked_at);
    branch = branch.parent === null ? undefined : byNumber.get(branch.parent);
  }
  return line;
}

/** The branch whose row holds the entry `seq` of the branch `number`. */
export function ownerOf(branches: readonly BranchLike[], number: number, seq: number): number {
  return lineage(branches, number).find(({ branch, last }) => seq > branch.forked_at && seq <= last)?.branch.number ?? number;
}

/**
 * The lines that share everything before `seq` and differ from it on, oldest first, as the branch to look at for each.
 * The line that is looked at stands for itself, even where it reaches further than the one that first said it.
 */
export function siblings(branches: readonly BranchLike[], number: number, seq: number): number[] {
  const owner = ownerOf(branches, number, seq);
  const before = seq === 1 ? null : ownerOf(branches, number, seq - 1);
  const begin = branches.filter((branch) => {
    if (branch.number === owner || branch.head < seq) return false;
    if (branch.forked_at !== seq - 1) return branch.number === before && before !== owner;
    return before === null ? true : ownerOf(branches, branch.number, seq - 1) === before;
  });
  const all = [...begin.map((branch) => branch.number), owner].sort((a, b) => a - b);
  return all.map((each) => (each === owner ? number : each));
}
