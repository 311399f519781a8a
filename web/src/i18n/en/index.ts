/** All messages of the page in English. Its type is what another language must translate. */

import { context } from "./context";
import { conversation } from "./conversation";
import { dialogs } from "./dialogs";
import { insights } from "./insights";
import { list } from "./list";
import { settings } from "./settings";
import { timeline } from "./timeline";

export const en = { ...context, ...conversation, ...dialogs, ...insights, ...list, ...settings, ...timeline };
