/** Numbers with their noun in the plural form of a language. */

export interface PluralForms {
  one: string;
  other: string;
}

/** Makes a function for a language that turns 1 and 45 into "1 message" and "45 messages". */
export function createCounter(locale: string): (value: number, forms: PluralForms) => string {
  const rules = new Intl.PluralRules(locale);
  const numbers = new Intl.NumberFormat(locale);
  return (value, { one, other }) => `${numbers.format(value)} ${rules.select(value) === "one" ? one : other}`;
}

/** Makes a function for a language that turns 150000 into "150,000". */
export function createNumberFormat(locale: string): (value: number) => string {
  const numbers = new Intl.NumberFormat(locale);
  return (value) => numbers.format(Math.round(value));
}
