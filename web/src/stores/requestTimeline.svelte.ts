/** The timeline of the open branch: loaded once, then extended by the requests that follow. */

import { requests as calls, type BranchRef } from "../api/calls";
import { addPage, EMPTY_TIMELINE, sumTurns, type RequestTimeline, type TimelineRequest } from "../lib/requestTimeline";
import { notices } from "./notices.svelte";

export class RequestTimelineStore {
  timeline = $state.raw<RequestTimeline>(EMPTY_TIMELINE);
  loaded = $state(false);
  /** Why a request found less in the provider's cache than it could have, by the number of its reply. */
  breaks = $state.raw<ReadonlyMap<number, string>>(new Map());
  turns = $derived(sumTurns(this.timeline.requests));
  #byReply = $derived(new Map(this.timeline.requests.map((each) => [each.reply, each])));
  #isLoading = false;
  #isStale = false;
  #comparedReply = 0;

  constructor(readonly branchRef: BranchRef) {}

  find(reply: number): TimelineRequest | undefined {
    return this.#byReply.get(reply);
  }

  /** Loads what came after the last known request. A call during a load is one more load after it. */
  async update(): Promise<void> {
    if (this.#isLoading) {
      this.#isStale = true;
      return;
    }
    this.#isLoading = true;
    await notices.run(async () => {
      do {
        this.#isStale = false;
        let since: number | null = this.timeline.requests.at(-1)?.reply ?? 0;
        while (since !== null) {
          const page = await calls.timeline(this.branchRef, since);
          this.timeline = addPage(this.timeline, page, since);
          since = page.next_since;
        }
      } while (this.#isStale);
      this.loaded = true;
    });
    this.#isLoading = false;
  }

  /** Compares the requests with those before them, if there are new ones of which the provider reported cached tokens. */
  async loadBreaks(): Promise<void> {
    const last = this.timeline.requests.at(-1);
    if (!last || last.reply === this.#comparedReply || !this.timeline.requests.some((each) => each.cacheRead)) return;
    this.#comparedReply = last.reply;
    // Marks only: the picture is complete without them.
    const report = await calls.cacheBreaks(this.branchRef).catch(() => null);
    if (report) this.breaks = new Map(report.breaks.map((each) => [each.reply, each.detail]));
  }
}
