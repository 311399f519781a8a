/** Insights: tokens, cost and use by day, model, project, source, slot and tool. */

import { createCounter } from "../plurals";

const count = createCounter("en");
const forms = { branches: { one: "branch", other: "branches" } };

export const insights = {
  insightsButton: "Insights",
  insights: {
    title: "Insights",
    close: "Close",
    period: "Period",
    days: (days: number) => `Last ${days} days`,
    since: (day: string) => `Since ${day}, in days of UTC.`,
    pending: (branches: number) => `${count(branches, forms.branches)} not counted yet; open this again in a moment.`,
    empty: "Nothing was recorded in this period.",
    loading: "Reading the statistics",
    turns: "Turns",
    requests: "Requests",
    input: "Input tokens",
    output: "Output tokens",
    cached: "From cache",
    cost: "Cost",
    compactions: "Compactions",
    recalled: "Recalled messages",
    tokens: "Tokens",
    calls: "Calls",
    messages: "Messages",
    name: "Name",
    by: { day: "By day", model: "By model", project: "By project", source: "By source", slot: "By slot", tool: "By tool" },
    unnamed: { model: "Unknown", project: "No project", source: "Quire" } as Record<string, string>,
    documents: "Documents used most",
    rules: "Rules used most",
    unused: "Never used",
    unusedKinds: { rules: "Rules", tools: "Tools", documents: "Documents" },
    more: (count: string) => `and ${count} more`,
    costly: "Turns that cost most",
    turn: "Turn",
    suggestions: "Suggestions",
    advice: {
      pin: (share: string) => `Pin it, or make it a reference of the agent: ${share} of the turns name it.`,
      always: (share: string) => `Include it always: ${share} of the requests have it.`,
      remove: () => "Never used. Remove it, or include it in mode agent.",
    },
  },
};
