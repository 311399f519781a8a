"""Languages of the page: German throughout, chosen by the browser or by hand, and remembered."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from accessibility_faults import VIEWPORTS
from browser_setup import WEB_DIR
from page_faults import collect_faults, save_picture
from page_server import PageServer
from playwright.sync_api import Browser, Page, expect
from test_daily_use import create_conversation

from quire.model import Message, ToolCallPart

pytestmark = pytest.mark.nightly

CATALOGUES = WEB_DIR / "src" / "i18n"
RULE_OF_THE_DEMO = "house rules"
SHARED_WORDS = {"key", "create", "serve", "all", "cloud"}
"""Words of commands and names that a German text has too."""


@cache
def list_words(language: str) -> set[str]:
    """Words of at least two letters in the messages of a language."""
    source = "\n".join(file.read_text(encoding="utf-8") for file in (CATALOGUES / language).glob("*.ts"))
    texts = re.findall(r'"([^"\n]*)"|`([^`]*)`', re.sub(r"^import .*$|/\*.*?\*/", "", source, flags=re.MULTILINE))
    plain = " ".join(re.sub(r"\$\{[^}]*\}|\{\w+\}", " ", " ".join(each)) for each in texts)
    return {word.lower() for word in re.findall(r"[^\W\d_]{2,}", plain)}


def find_english(text: str) -> list[str]:
    """Words of a text that occur in the English messages, and in no German one."""
    english = list_words("en") - list_words("de") - SHARED_WORDS
    # Names of tools, such as history_search, are no words.
    plain = re.sub(r"\w+_\w+", " ", text.lower().replace(RULE_OF_THE_DEMO, ""))
    words = re.findall(r"[^\W\d_]{2,}", plain)
    return sorted({word for word in words if word in english})


@pytest.fixture
def german_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce", locale="de-DE")
    with collect_faults(context) as faults:
        yield context.new_page()
    context.close()
    assert faults == []


def create_german_conversation(page_server: PageServer) -> str:
    """A conversation without an English word: a turn with folded steps, a failed one, and a second answer."""
    messages = [Message.user("Bitte alle Blätter zählen.")]
    for number in range(4):
        call = ToolCallPart(id=f"g{number}", name="zaehle", arguments=f'{{"blatt": {number}}}')
        messages.append(Message(role="assistant", parts=(call,)))
        messages.append(Message.tool(call.id, "Gezählt.", is_error=number == 2))
    code = "Vier Blätter.\n\n```python\nx = 4\n```\n\n| Blatt | Zahl |\n|---|---|\n| A | 4 |"
    return create_conversation(page_server, *messages, Message.assistant(code))


def test_german_views_have_no_english_word(german_page: Page, page_server: PageServer) -> None:
    page = german_page
    conversation = create_german_conversation(page_server)
    page.goto(page_server.url())
    expect(page.get_by_role("heading", name="Sehen, was das Modell sieht")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_role("status", name="Modell")).to_contain_text("antwortet.")
    faults = {"welcome": find_english(read_main(page))}
    page.goto(page_server.url(conversation))
    expect(page.get_by_role("article").last).to_contain_text("Vier Blätter.")
    page.get_by_role("button", name=re.compile("4 Aufrufe in 4 Schritten, 1 gescheitert")).click()
    faults["chat"] = find_english(read_main(page))
    for panel, title in (("context", "Kontext"), ("references", "Verweise"), ("window", "Auslastung")):
        page.goto(page_server.url(conversation, panel=panel))
        expect(page.get_by_role("complementary", name=title)).to_be_visible()
        page.wait_for_timeout(400)
        faults[panel] = find_english(read_main(page))
    page.goto(page_server.url(conversation, panel="settings"))
    expect(page.get_by_label("Verdichten ab", exact=True)).to_have_value("0,85")
    settings = page.get_by_role("complementary", name="Einstellungen")
    faults["settings"] = find_english(" ".join(settings.locator("label, .setting > p").all_inner_texts()))
    assert {view: words for view, words in faults.items() if words} == {}


def read_main(page: Page) -> str:
    """The page without the list, whose titles other tests write, and without names and texts of the demo's agent."""
    return page.evaluate(
        """() => {
            const code = "noscript, script, style, pre";
            const own = code + ", nav li, nav h2, .name, .description, select option, strong, .model, [lang=en]";
            const clone = document.body.cloneNode(true);
            clone.querySelectorAll(own).forEach((one) => one.remove());
            const hints = ["title", "placeholder", "aria-label", "alt"];
            const all = [...clone.querySelectorAll("*")];
            const read = all.flatMap((one) => hints.map((name) => one.getAttribute(name) ?? ""));
            return clone.innerText + "\\n" + read.join("\\n");
        }"""
    )


def test_german_dialogs_have_no_english_word(german_page: Page, page_server: PageServer) -> None:
    page = german_page
    page.goto(page_server.url(create_german_conversation(page_server)))
    expect(page.get_by_role("article").last).to_contain_text("Vier Blätter.")
    faults: dict[str, list[str]] = {}

    def check(name: str) -> None:
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        own: Any = dialog.locator(":scope :is(h2, p, dd, dt, label, h3):not([lang=en])").all_inner_texts()
        faults[name] = find_english(" ".join(own))
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()

    page.get_by_role("button", name="Tastenkürzel").click()
    check("shortcuts")
    page.get_by_role("button", name="Importieren").click()
    check("import")
    page.get_by_role("button", name="Modell:").click()
    check("models")
    page.get_by_role("button", name=re.compile(r"Mehr zu #\d+")).last.click()
    faults["message menu"] = find_english(" ".join(page.get_by_role("menu").locator("button").all_inner_texts()))
    page.get_by_role("menuitem", name="Diese Nachricht unwiderruflich löschen").click()
    check("erase")
    page.keyboard.press("Control+k")
    check("palette")
    page.get_by_role("button", name="Weitere Aktionen").click()
    faults["menu"] = find_english(" ".join(page.get_by_role("menuitem").all_inner_texts()))
    assert {name: words for name, words in faults.items() if words} == {}


def test_a_language_is_chosen_by_hand_and_remembered(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url())
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.get_by_role("combobox", name="Language").select_option("Deutsch")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sehen, was das Modell sieht")
    expect(page.get_by_role("textbox", name="Nachricht")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "de")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sehen, was das Modell sieht")
    page.get_by_role("combobox", name="Sprache").select_option("English")
    expect(page.get_by_role("heading", level=1)).to_have_text("See what the model sees")


def test_german_is_loaded_only_where_it_is_spoken(page: Page, page_server: PageServer) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto(page_server.url())
    expect(page.get_by_role("heading", level=1)).to_have_text("See what the model sees")
    assert not [url for url in loaded if "/de-" in url]
    page.get_by_role("combobox", name="Language").select_option("Deutsch")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sehen, was das Modell sieht")
    assert [url for url in loaded if "/de-" in url]


def test_a_language_that_cannot_be_loaded_starts_in_english(browser: Browser, page_server: PageServer) -> None:
    context = browser.new_context(locale="de-DE")
    page = context.new_page()
    page.route("**/assets/de-*.js", lambda route: route.abort())
    page.goto(page_server.url())
    expect(page.get_by_role("heading", level=1)).to_have_text("See what the model sees")
    context.close()


def test_numbers_and_values_are_written_as_the_language_does(german_page: Page, page_server: PageServer) -> None:
    page = german_page
    conversation = create_conversation(page_server, Message.user("Wort " * 3_000), Message.assistant("Gelesen."))
    page.goto(page_server.url(conversation, panel="settings"))
    threshold = page.get_by_label("Verdichten ab", exact=True)
    threshold.fill("0,6")
    preview = page.get_by_role("region", name="Was das bewirken würde")
    expect(preview).to_contain_text(re.compile(r"Dann: \d\.\d{3} von \d+\.\d{3}, Verdichtung ab \d+\.\d{3}"))
    threshold.fill("5")
    expect(page.get_by_role("alert")).to_have_text("Erwartet wird eine Zahl von 0 bis 1.")
    expect(preview.get_by_role("button", name="Speichern")).to_be_disabled()
    page.get_by_role("button", name="Verwerfen").click()


def test_an_english_word_would_be_found() -> None:
    assert find_english("Die Antwort wurde summary of archived") == ["archived", "of", "summary"]
    assert find_english("Zusammenfassung archivierter Nachrichten") == []


def test_longer_words_fit_a_phone(browser: Browser, page_server: PageServer, demo_conversation: str) -> None:
    phone: dict[str, Any] = {**VIEWPORTS["phone"], "locale": "de-DE"}
    context = browser.new_context(reduced_motion="reduce", **phone)
    page = context.new_page()
    for view in ({}, {"panel": "context", "reply": 15}, {"panel": "window"}, {"panel": "settings"}):
        page.goto(page_server.url(demo_conversation, **view))
        expect(page.get_by_role("article").last).to_be_visible()
        page.wait_for_timeout(400)
        save_picture(page, f"german-{view.get('panel', 'chat')}-phone")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    context.close()
