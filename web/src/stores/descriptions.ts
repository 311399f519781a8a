/** Author and first words of the messages that decisions are about, by their number. */

import { entries, type BranchRef } from "../api/calls";
import { describeEntries, listMessageRanges, MAX_RANGE_ENTRIES, type Candidate } from "../lib/descriptions";

export async function loadDescriptions(
  branch: BranchRef,
  decisions: readonly Candidate[],
  signal?: AbortSignal,
): Promise<Map<number, string>> {
  const pages = await Promise.all(
    listMessageRanges(decisions).map(([first, last]) =>
      entries.list(branch, { first, last, limit: MAX_RANGE_ENTRIES, kinds: ["message"] }, signal),
    ),
  );
  return new Map(pages.flatMap((page) => describeEntries(page.items)));
}
