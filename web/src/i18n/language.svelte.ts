/** The language of the page, and its messages: the browser's language, unless the user chose another one. */

import { en } from "./en";

export type Catalogue = typeof en;

/** Languages by the name that their speakers use. Languages other than English are loaded when they are selected. */
export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

const LANGUAGE_STORAGE = "quire-language";

const CATALOGUES: Record<Language, () => Promise<Catalogue>> = {
  en: async () => en,
  de: async () => (await import("./de")).de,
};

/** The first of the browser's languages that the page speaks; English if there is none. */
export function matchLanguage(preferred: readonly string[]): Language {
  const known = preferred.map((tag) => tag.toLowerCase().split("-")[0] ?? "").find((tag) => tag in LANGUAGES);
  return (known as Language | undefined) ?? "en";
}

class LanguageStore {
  current = $state<Language>("en");
  catalogue = $state.raw<Catalogue>(en);

  /** Locale of dates: the browser's own region, if it is one of the current language. */
  locale: string = $derived(
    globalThis.navigator?.languages?.find((tag) => tag.toLowerCase().split("-")[0] === this.current) ?? this.current,
  );

  async restore(): Promise<void> {
    const stored = localStorage.getItem(LANGUAGE_STORAGE);
    await this.#load(stored && stored in LANGUAGES ? (stored as Language) : matchLanguage(navigator.languages));
  }

  async select(language: Language): Promise<void> {
    localStorage.setItem(LANGUAGE_STORAGE, language);
    await this.#load(language);
  }

  async #load(language: Language): Promise<void> {
    this.catalogue = await CATALOGUES[language]();
    this.current = language;
    document.documentElement.lang = language;
  }
}

export const language = new LanguageStore();

type Values<K extends keyof Catalogue> = Catalogue[K] extends (...values: infer V) => string ? V : [];

/** The message with this key in the current language. */
export function t<K extends keyof Catalogue>(key: K, ...values: Values<K>): string {
  const message = language.catalogue[key] as string | ((...values: Values<K>) => string);
  return typeof message === "string" ? message : message(...values);
}
