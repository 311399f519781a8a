/** Who answers on this server. */

import { agents } from "../api/calls";
import type { Agent } from "../api/types";
import { notices } from "./notices.svelte";

class AgentStore {
  known = $state.raw<Agent | null>(null);

  name = $derived(this.known?.name || "Assistant");

  async load(): Promise<void> {
    this.known = (await notices.try(() => agents.list()))?.items[0] ?? this.known;
  }
}

export const agent = new AgentStore();
