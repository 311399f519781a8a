/** Light or dark: as the system has it, unless somebody chose. */

export type Theme = "system" | "light" | "dark";

const STORED = "quire-theme";
const ORDER: Theme[] = ["system", "light", "dark"];

class ThemeStore {
  chosen = $state<Theme>("system");

  start(): void {
    const stored = localStorage.getItem(STORED);
    this.set(ORDER.includes(stored as Theme) ? (stored as Theme) : "system");
  }

  set(theme: Theme): void {
    this.chosen = theme;
    localStorage.setItem(STORED, theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  turn(): void {
    this.set(ORDER[(ORDER.indexOf(this.chosen) + 1) % ORDER.length] ?? "system");
  }
}

export const theme = new ThemeStore();
