/** The agent of this server: its name, model and description. */

import { agents } from "../api/calls";
import type { Agent } from "../api/types";
import { notices } from "./notices.svelte";

/** Name of the agent that the engine uses where none is configured. */
const DEFAULT_AGENT = "default";

class AgentStore {
  details = $state.raw<Agent | null>(null);

  /** Display name; the default agent goes by the model's name. */
  name = $derived(pickName(this.details));

  async load(): Promise<void> {
    this.details = (await notices.run(() => agents.list()))?.items[0] ?? this.details;
  }
}

function pickName(details: Agent | null): string {
  const name = details?.name === DEFAULT_AGENT ? details.model : details?.name;
  return name || "Assistant";
}

export const agent = new AgentStore();
