/** Whether the insights are open. */

class InsightsStore {
  open = $state(false);
}

export const insights = new InsightsStore();
