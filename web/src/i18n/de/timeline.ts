/** Das Bild der Anfragen einer Unterhaltung. */

import { createCounter, createNumberFormat } from "../plurals";

const count = createCounter("de");
const number = createNumberFormat("de");

export const timeline = {
  timelineTitle: "Anfragen im Verlauf",
  timelineMessages: "Nachrichten",
  timelineRequests: (requests: number, turns: number) =>
    `${count(requests, { one: "Anfrage", other: "Anfragen" })} in ${count(turns, { one: "Runde", other: "Runden" })}`,
  timelineCached: (percent: string) => `${percent} der Eingabe aus dem Cache`,
  timelineCost: (dollars: string) => `${dollars} insgesamt`,
  timelineWindow: (tokens: number) => `Fenster ${number(tokens)}`,
  timelineTrigger: (tokens: number) => `verdichtet ab ${number(tokens)}`,
  timelineMessagesHeading: "Jede Nachricht, und was in jeder Anfrage aus ihr wurde",
  timelineCacheHeading: "Eingabe: aus dem Cache, in ihn geschrieben, weder noch",
  timelineCostHeading: "Kosten jeder Anfrage",
  timelineSlider: "Anfrage",
  timelineHint: "Pfeiltasten wählen eine Anfrage, Enter öffnet sie. Ein Klick auf eine Nachricht führt zu ihr.",
  timelineUnknownSlot: "Gesendet, Teile unbekannt",
  timelineRequest: (turn: number, step: number, reply: number) => `Runde ${turn}, Aufruf ${step}, beantwortet von #${reply}`,
  timelineTokens: (tokens: string, window: number | null) => (window ? `${tokens} von ${number(window)} Tokens` : `${tokens} Tokens`),
  timelineFromCache: (tokens: number) => `${number(tokens)} aus dem Cache`,
  timelineAfterCut: (author: string, freed: number) => `nach einer Verdichtung durch ${author}, die ${number(freed)} frei machte`,
  timelineMessageFate: (seq: number, fate: string) => `Nachricht #${seq}: ${fate}`,
  timelineTable: "Dasselbe als Tabelle",
  timelineMore: (rows: number) => `${number(rows)} frühere Anfragen zeigen`,
  timelineColumns: { turn: "Runde", step: "Aufruf", reply: "Antwort", tokens: "Tokens", cached: "Aus dem Cache", cost: "Kosten", before: "Davor" },
  timelineLegendMessages: "Eine Nachricht ist",
  timelineAuthors: { quire: "Quire", client: "den Agenten", provider: "den Anbieter", user: "dich", model: "das Modell" },
  timelineFates: {
    w: "ganz",
    x: "gekürzt",
    c: "geleert, ein Platzhalter nennt sie",
    s: "nur in der Zusammenfassung",
    r: "wiedergefunden",
    d: "von dir entfernt",
    k: "angeheftet, wichtig oder die Frage",
    b: "von dir zurückgeholt",
    o: "ausgelassen",
    "-": "kein Teil der Anfrage",
  },
  timelineBands: { read: "aus dem Cache gelesen", cost: "Kosten" },
};
