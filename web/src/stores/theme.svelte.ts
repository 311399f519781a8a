/** Colour theme: the system's, unless the user chose light or dark. */

export type Theme = "system" | "light" | "dark";

const THEME_STORAGE = "quire-theme";
const THEMES: Theme[] = ["system", "light", "dark"];

class ThemeStore {
  current = $state<Theme>("system");

  restore(): void {
    const stored = localStorage.getItem(THEME_STORAGE);
    this.set(THEMES.includes(stored as Theme) ? (stored as Theme) : "system");
  }

  set(theme: Theme): void {
    this.current = theme;
    localStorage.setItem(THEME_STORAGE, theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  selectNext(): void {
    this.set(THEMES[(THEMES.indexOf(this.current) + 1) % THEMES.length] ?? "system");
  }
}

export const theme = new ThemeStore();
