/** All messages of the page in German. */

import type { Catalogue } from "../language.svelte";
import { context } from "./context";
import { conversation } from "./conversation";
import { dialogs } from "./dialogs";
import { list } from "./list";
import { settings } from "./settings";

export const de: Catalogue = { ...context, ...conversation, ...dialogs, ...list, ...settings };
