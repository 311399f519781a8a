/** Insights: tokens, cost and use by day, model, project, source, slot and tool. */

import { createCounter } from "../plurals";

const count = createCounter("de");
const forms = { branches: { one: "Zweig", other: "Zweige" } };

export const insights = {
  insightsButton: "Auswertung",
  insights: {
    title: "Auswertung",
    close: "Schließen",
    period: "Zeitraum",
    days: (days: number) => `Letzte ${days} Tage`,
    since: (day: string) => `Seit ${day}, in Tagen nach UTC.`,
    pending: (branches: number) => `${count(branches, forms.branches)} noch nicht gezählt; öffne dies gleich noch einmal.`,
    empty: "In diesem Zeitraum wurde nichts aufgezeichnet.",
    loading: "Die Statistik wird gelesen",
    turns: "Runden",
    requests: "Anfragen",
    input: "Token der Eingabe",
    output: "Token der Ausgabe",
    cached: "Aus dem Cache",
    cost: "Kosten",
    compactions: "Verdichtungen",
    recalled: "Erinnerte Nachrichten",
    tokens: "Token",
    calls: "Aufrufe",
    messages: "Nachrichten",
    name: "Name",
    by: { day: "Nach Tag", model: "Nach Modell", project: "Nach Projekt", source: "Nach Quelle", slot: "Nach Abschnitt", tool: "Nach Werkzeug" },
    unnamed: { model: "Unbekannt", project: "Ohne Projekt", source: "Quire" } as Record<string, string>,
    documents: "Meistbenutzte Dokumente",
    rules: "Meistbenutzte Regeln",
    unused: "Nie benutzt",
    unusedKinds: { rules: "Regeln", tools: "Werkzeuge", documents: "Dokumente" },
    more: (count: string) => `und ${count} weitere`,
    costly: "Teuerste Runden",
    turn: "Runde",
    suggestions: "Vorschläge",
    advice: {
      pin: (share: string) => `Hefte es an oder mache es zur Referenz des Agenten: ${share} der Runden nennen es.`,
      always: (share: string) => `Nimm es immer auf: ${share} der Anfragen enthalten es.`,
      remove: () => "Nie benutzt. Entferne es, oder nimm es im Modus agent auf.",
    },
  },
};
