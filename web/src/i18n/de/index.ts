/** All messages of the page in German. */

import type { Catalogue } from "../language.svelte";
import { context } from "./context";
import { conversation } from "./conversation";
import { dialogs } from "./dialogs";
import { insights } from "./insights";
import { list } from "./list";
import { settings } from "./settings";
import { timeline } from "./timeline";

export const de: Catalogue = { ...context, ...conversation, ...dialogs, ...insights, ...list, ...settings, ...timeline };
