/** Models to choose from, the choice of each conversation, and whether the chosen model answers. */

import { models as calls } from "../api/calls";
import type { Model, ModelStatus } from "../api/types";
import { notices } from "./notices.svelte";

const CHOICE_PREFIX = "quire-model:";

class ModelStore {
  /** The model of the settings. */
  default = $state("");
  items = $state.raw<Model[]>([]);
  /** The last status of each model that was checked. */
  statuses = $state.raw<Record<string, ModelStatus>>({});
  checking = $state(false);

  async load(): Promise<void> {
    const list = await notices.run(() => calls.list());
    if (!list) return;
    this.default = list.default;
    this.items = list.items;
  }

  /** Checks a model, or the default one. */
  async check(model: string | null): Promise<void> {
    this.checking = true;
    const status = await notices.run(() => calls.status(model));
    this.checking = false;
    if (status) this.statuses = { ...this.statuses, [status.model]: status };
  }

  find(name: string): Model | undefined {
    return this.items.find((each) => each.name === name);
  }

  /** The model that was chosen for a conversation; null for the default one. */
  getChoice(conversation: string): string | null {
    return localStorage.getItem(CHOICE_PREFIX + conversation);
  }

  setChoice(conversation: string, model: string | null): void {
    if (model === null) localStorage.removeItem(CHOICE_PREFIX + conversation);
    else localStorage.setItem(CHOICE_PREFIX + conversation, model);
  }
}

export const models = new ModelStore();
