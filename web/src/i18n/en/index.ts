/** All messages of the page in English. Its type is what another language must translate. */

import { context } from "./context";
import { conversation } from "./conversation";
import { dialogs } from "./dialogs";
import { list } from "./list";
import { settings } from "./settings";

export const en = { ...context, ...conversation, ...dialogs, ...list, ...settings };
