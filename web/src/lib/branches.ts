/** Branch lineage: which branch stores an entry, and which other branches fork at the same place. */

export interface BranchLike {
  number: number;
  head: number;
  fork_seq: number;
  parent: number | null;
}

/** The branch and its ancestors, itself first, each with the last entry that it contributes. */
export function traceLineage<B extends BranchLike>(branches: readonly B[], number: number): { branch: B; last: number }[] {
  const byNumber = new Map(branches.map((branch) => [branch.number, branch]));
  const lineage: { branch: B; last: number }[] = [];
  let branch = byNumber.get(number);
  let last = branch?.head ?? 0;
  while (branch && lineage.length <= branches.length) {
    lineage.push({ branch, last });
    last = Math.min(last, branch.fork_seq);
    branch = branch.parent === null ? undefined : byNumber.get(branch.parent);
  }
  return lineage;
}

/** The branch that stores the entry `seq` of the branch `number`. */
export function findOwner(branches: readonly BranchLike[], number: number, seq: number): number {
  return traceLineage(branches, number).find(({ branch, last }) => seq > branch.fork_seq && seq <= last)?.branch.number ?? number;
}

/**
 * The branches that share all entries before `seq` and differ from there, oldest first. The branch `number` takes the
 * place of the owner of the entry, even where it is a later fork of it.
 */
export function findSiblings(branches: readonly BranchLike[], number: number, seq: number): number[] {
  const owner = findOwner(branches, number, seq);
  const previousOwner = seq === 1 ? null : findOwner(branches, number, seq - 1);
  const others = branches.filter((branch) => {
    if (branch.number === owner || branch.head < seq) return false;
    if (branch.fork_seq !== seq - 1) return branch.number === previousOwner && previousOwner !== owner;
    return previousOwner === null ? true : findOwner(branches, branch.number, seq - 1) === previousOwner;
  });
  const all = [...others.map((branch) => branch.number), owner].sort((a, b) => a - b);
  return all.map((each) => (each === owner ? number : each));
}
