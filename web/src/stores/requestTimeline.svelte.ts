/** The timeline of the open branch: loaded once, then extended by the requests that follow. */

import { requests as calls, type BranchRef } from "../api/calls";
import { addPage, EMPTY_TIMELINE, type RequestTimeline } from "../lib/requestTimeline";
import { notices } from "./notices.svelte";

export class RequestTimelineStore {
  timeline = $state.raw<RequestTimeline>(EMPTY_TIMELINE);
  loaded = $state(false);
  #isLoading = false;
  #isStale = false;

  constructor(readonly branchRef: BranchRef) {}

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
}
