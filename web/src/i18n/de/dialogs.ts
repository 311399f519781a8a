import type { dialogs as english } from "../en/dialogs";
import { createCounter } from "../plurals";

const count = createCounter("de");
const forms = {
  messages: { one: "Nachricht", other: "Nachrichten" },
  conversations: { one: "Unterhaltung", other: "Unterhaltungen" },
};

export const dialogs: typeof english = {
  share: "Teilen",
  shareTitle: "Diese Unterhaltung teilen",
  shareText: "Wer den Link hat, meldet sich an und liest die Unterhaltung als Text mit verdeckten Geheimnissen, ohne sie ändern zu können.",
  shareWith: "Wer sie lesen darf",
  sharePrivate: "Nur ich",
  shareEveryone: "Alle, die sich hier anmelden",
  sharePeople: "Diese Personen",
  shareAddresses: "E-Mail-Adressen, durch Kommas getrennt",
  shareCopyLink: "Teilen und Link kopieren",
  shareStop: "Nicht mehr teilen",
  shareStopped: "Die Unterhaltung wird nicht mehr geteilt.",
  shareLinkCopied: "Geteilt. Der Link ist kopiert.",
  close: "Schließen",
  cancel: "Abbrechen",
  undo: "Rückgängig",
  redo: "Wiederholen",
  dismiss: "Ausblenden",

  // API key
  keyTitle: "Dieser Server verlangt einen API-Schlüssel",
  keyText:
    "„quire key create“ erzeugt einen. Er wird nur für dieses Fenster gespeichert, bis es geschlossen wird. Auf dem eigenen Rechner genügt die Adresse, die „quire serve“ ausgegeben hat.",
  keyField: "API-Schlüssel",
  keyOpen: "Öffnen",

  // Models
  model: "Modell",
  modelLabel: "Modell:",
  chooseModel: "Modell auswählen",
  cannotAnswerBadge: "kann nicht antworten",
  modelIsChecked: "wird geprüft…",
  modelCannotAnswer: "kann zurzeit nicht antworten.",
  modelIsForChat: "Ein Modell ist nur zum Chatten hier nötig, nicht um Aufgezeichnetes anzusehen.",
  modelAnswers: "antwortet.",
  hostReachable: (host) => `${host} ist erreichbar.`,
  checkAgain: "Erneut prüfen",
  modelFilter: "Filtern oder Namen eingeben",
  modelsOfSettings: "Einstellungen",
  modelsOfUpstream: "Vom Server aufgeführt",
  modelsOfPriceList: "Preisliste des Anbieters",
  windowUnknown: "Fenster unbekannt",
  useModel: (name) => `„${name}“ verwenden`,
  modelUnlisted: "Keine Tabelle führt es auf: Kontextfenster und Preis sind unbekannt.",
  modelFacts: "Kontextfenster und US-Dollar je Million Token für Eingabe und Ausgabe.",

  // Import
  importText:
    "Ein Export von Quire, ChatGPT, Claude.ai, LibreChat oder Open WebUI oder das Protokoll eines Agenten. Wird eine Datei erneut importiert, kommt nur Neues hinzu; ein Export von Quire, den es schon gibt, wird als Kopie importiert.",
  filesToImport: "Dateien zum Importieren",
  writtenBy: "Geschrieben von",
  chooseProgram: "Programm auswählen",
  importOf: (name) => `Import von ${name}`,
  uploading: "Wird hochgeladen",
  importing: (found) => `Wird importiert: ${found}`,
  imported: "Importiert",
  notImported: "Nicht importiert",
  newMessages: (value) => count(value, { one: "neue Nachricht", other: "neue Nachrichten" }),
  newMessagesIn: (messages, conversations) =>
    `${count(messages, { one: "neue Nachricht", other: "neue Nachrichten" })} in ${count(conversations, forms.conversations)}`,
  importedBefore: (value) => `${count(value, forms.messages)} schon früher importiert`,
  recordedByGateway: (value) => `${count(value, forms.conversations)} vom Gateway aufgezeichnet`,
  unreadableItems: (value) =>
    count(value, { one: "Eintrag war nicht lesbar", other: "Einträge waren nicht lesbar" }),
  chooseFiles: "Dateien auswählen",
  startImport: "Importieren",

  // Shortcuts
  shortcuts: "Tastenkürzel",
  shortcutsTitle: "Tastenkürzel (?)",
  shortcutKeys: {
    search: "Strg+K",
    list: "↓, ↑",
    field: "Tab, Eingabe",
    messages: "Alt+↑, Alt+↓",
    compactions: "Alt+Umschalt+↑, Alt+Umschalt+↓",
    reply: "Eingabe auf einer Antwort",
    summary: "Eingabe auf einer Verdichtung",
    undo: "Strg+Z auf einer Verdichtung",
    ends: "Pos1, Ende im Verlauf",
    panels: "Alt+1 bis Alt+4",
    compare: "Alt+5",
    escape: "Esc",
    help: "?",
  },
  shortcutActions: {
    search: "Titel und Nachrichten durchsuchen, Befehle ausführen",
    list: "Zwischen Treffern oder Unterhaltungen der Liste wechseln",
    field: "Zum Nachrichtenfeld der eben geöffneten Unterhaltung",
    messages: "Vorige oder nächste Nachricht",
    compactions: "Vorige oder nächste Verdichtung",
    reply: "Was das Modell sah",
    summary: "Zusammenfassung öffnen",
    undo: "Verdichtung rückgängig machen",
    ends: "Erste oder neueste Nachricht",
    panels: "Kontext, Verweise, Auslastung, Einstellungen",
    compare: "Mit einer anderen Anfrage vergleichen, im Kontext einer Antwort",
    escape: "Antwort anhalten oder Seitenleiste schließen",
    help: "Diese Liste",
  },
  shortcutsOnMac: "Auf dem Mac ⌘ oder Control statt Strg und Option statt Alt.",
};
