"""The playground in a browser: keyboard alone, both texts and their steps, hovering, refusals, keys, narrow pages."""

import time
from typing import Any

import httpx
import pytest

from tests.apps.serving.serving import Served, serving, templated
from tests.support.browser import resize
from tests.support.waiting import soon


def shown(browser: Any, selector: str) -> str:
    """What an element says."""
    text: str = browser.find_element("css selector", selector).get_property("textContent")
    return text


def until(browser: Any, selector: str, words: str) -> str:
    """Wait for words."""
    began = time.monotonic()
    while words not in (text := shown(browser, selector)):
        assert time.monotonic() - began < 60, text
        time.sleep(0.05)
    return text


def shorten(browser: Any) -> None:
    """Have texts be short."""
    browser.execute_script("document.getElementById('length').value = 24")


def answered(served: Served, prompt: str, is_chat: bool, num_tokens: int = 24) -> str:
    """What the server answers, with the page's settings."""
    shared = {"model": "demo", "max_tokens": num_tokens, "temperature": 0, "proposer": "off"}
    if is_chat:
        messages = [{"role": "user", "content": prompt}]
        choice = served.post("/v1/chat/completions", {**shared, "messages": messages}).json()["choices"][0]
        return str(choice["message"]["content"])
    return str(served.post("/v1/completions", {**shared, "prompt": prompt}).json()["choices"][0]["text"])


def num_tokens(served: Served) -> float:
    """The tokens that the server has generated, with all strategies."""
    samples = [sample for metric in served.server.metrics.new_tokens.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


def press(browser: Any, *keys: str) -> None:
    """Press keys wherever the focus is."""
    browser.switch_to.active_element.send_keys(*keys)


def test_by_keyboard_alone_both_texts_come_and_tell_of_their_steps(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(served.url)
    until(browser, "#model", "demo")
    press(browser, Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("id") == "prompt"
    press(browser, "# heapq")
    while browser.switch_to.active_element.get_attribute("id") != "chat":
        press(browser, Keys.TAB)
    press(browser, Keys.SPACE)  # as it stands, a text that the model knows
    press(browser, Keys.CONTROL + Keys.ENTER)
    until(browser, "#verdict", "same text ✓")
    texts = browser.execute_script("return [plain.text, drafted.text]")
    assert texts == [answered(served, "# heapq", is_chat=False, num_tokens=96)] * 2
    figures = [shown(browser, f"[data-column={column}] .figures") for column in ("plain", "drafted")]
    assert "tokens96" in figures[0]
    assert "tokens/step1.00" in figures[0]
    colours = {each.get_attribute("class") for each in browser.find_elements("css selector", ".token")}
    assert len(colours) >= 6
    nameless = "[...document.querySelectorAll('.token')].filter((one) => !(one.ariaLabel ?? one.textContent).trim())"
    assert browser.execute_script(f"return {nameless}.length") == 0, "a screen reader has something to say of each"
    while browser.switch_to.active_element.get_attribute("class") != "text":
        press(browser, Keys.TAB)
    press(browser, Keys.TAB)  # to the strategy's text
    press(browser, Keys.END)
    told = until(browser, "#told", "step ")
    steps = len(browser.find_elements("css selector", "[data-column=drafted] .token.first"))
    assert f"step {steps}" in told
    for _ in range(95):
        press(browser, Keys.ARROW_LEFT)
        if "proposed by" in shown(browser, "#told"):
            break
    assert "and accepted" in shown(browser, "#told") or steps == 96, "on a busy machine it may be that no draft pays"
    label = browser.find_element("css selector", "#tree svg").get_attribute("aria-label")
    assert "accepted" in label
    assert browser.find_elements("css selector", "#tree .node.accepted")
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_strategy_begins_once_plain_decoding_has_ended(served: Served, browser: Any) -> None:
    browser.get(served.url)
    until(browser, "#model", "demo")
    browser.execute_script(
        "const text = (name) => document.querySelector(`[data-column=${name}] .text`);"
        "new MutationObserver(() => { window.plainThen ??= text('plain').textContent; })"
        ".observe(text('drafted'), { childList: true });"
    )
    shorten(browser)
    browser.find_element("id", "prompt").send_keys("# heapq")
    browser.find_element("id", "run").click()
    until(browser, "#verdict", "same text ✓")
    assert browser.execute_script("return window.plainThen") == shown(browser, "[data-column=plain] .text")


def test_a_model_with_a_chat_template_is_sent_a_message(served: Served, browser: Any) -> None:
    browser.get(served.url)
    until(browser, "#prompt-label", "Message")
    shorten(browser)
    browser.find_element("id", "prompt").send_keys("hi")
    for is_chat in (True, False):
        assert browser.find_element("id", "chat").is_selected() is is_chat
        browser.find_element("id", "run").click()
        until(browser, "#verdict", "same text ✓")
        assert browser.execute_script("return drafted.text") == answered(served, "hi", is_chat)
        browser.find_element("id", "chat").click()
        browser.execute_script("document.getElementById('verdict').textContent = ''")


def test_a_model_without_a_chat_template_is_sent_a_prompt(browser: Any) -> None:
    with serving(templated(None)) as bare:
        browser.get(bare.url)
        until(browser, "#model", "demo")
        assert shown(browser, "#prompt-label") == "Prompt"
        assert not browser.find_element("id", "chat").is_displayed()
        shorten(browser)
        browser.find_element("id", "prompt").send_keys("hi")
        browser.find_element("id", "run").click()
        until(browser, "#verdict", "same text ✓")
        assert browser.execute_script("return plain.text") == answered(bare, "hi", is_chat=False)


def test_on_a_phone_the_result_is_in_view(served: Served, browser: Any) -> None:
    resize(browser, 390, 664)
    browser.get(served.url)
    until(browser, "#model", "demo")
    browser.find_element("id", "prompt").send_keys("# heapq")
    button = browser.find_element("id", "run")
    browser.execute_script("arguments[0].scrollIntoView()", button)
    button.click()
    until(browser, "#verdict", "same text ✓")
    box = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.top, box.bottom];"
    verdict, text = (browser.execute_script(box, place) for place in ("#verdict", "[data-column=drafted] .text"))
    assert 0 <= verdict[0] < verdict[1] <= 664
    assert verdict[1] <= text[0] < 664 - 100, "the text begins below the verdict, and some of it is seen"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_hovering_tells_of_a_token(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    first, other = browser.find_elements("css selector", "[data-column=plain] .token")[:2]
    for token, step in ((first, "step 1"), (other, "step 2")):
        ActionChains(browser).move_to_element(token).perform()
        assert step in shown(browser, "#told")
        assert "the model's own" in shown(browser, "#told")


def test_what_the_server_refuses_is_said_and_the_page_goes_on(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    field = browser.find_element("id", "strategy")
    field.clear()
    field.send_keys("lookahaed", Keys.CONTROL + Keys.ENTER)
    assert "did you mean" in until(browser, "#verdict", "unknown proposer")
    field.clear()
    field.send_keys("jacobi:n=4", Keys.CONTROL + Keys.ENTER)
    until(browser, "#verdict", "same text ✓")
    assert shown(browser, "#drafted-title") == "jacobi:n=4"


def test_escape_stops_both(served: Served, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    length, before = browser.find_element("id", "length"), num_tokens(served)
    length.clear()
    length.send_keys("450", Keys.CONTROL + Keys.ENTER)
    until(browser, "#verdict", "decoding")
    assert soon(lambda: served.server.admission.num_texts and num_tokens(served) > before)
    press(browser, Keys.ESCAPE)
    until(browser, "#verdict", "stopped")
    assert soon(lambda: not served.server.engine._texts)
    assert num_tokens(served) - before < 450, "it went on after Escape"


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_runs_out_of_the_page(served: Served, browser: Any, width: int) -> None:
    resize(browser, width, 844)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_key_is_asked_for_where_the_server_wants_one(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    with serving(api_keys=("secret",)) as locked:
        browser.get(locked.url)
        until(browser, "#verdict", "No API key")
        key = browser.find_element("id", "key")
        assert key.is_displayed()
        key.send_keys("secret")
        browser.find_element("id", "prompt").send_keys("# heapq", Keys.CONTROL + Keys.ENTER)
        until(browser, "#verdict", "same text ✓")
        assert httpx.get(locked.url).status_code == 200
