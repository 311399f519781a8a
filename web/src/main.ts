import { mount } from "svelte";

import App from "./App.svelte";
import { language } from "./i18n/language.svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/prose.css";

const target = document.getElementById("page");
// A language that cannot be loaded must not hide the page: it starts in English then.
if (target) void language.restore().catch(console.warn).then(() => mount(App, { target }));
