"""The page as people meet it: in a browser, against a service that runs."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from visiting import LIGHTHOUSE, MARKUP, ROWS, TOKEN, Visit, ask, serving, settled

OXYGEN = "Who discovered oxygen?"
TESLA = "Where was Nikola Tesla born?"
KEEPER = "Who built the lighthouse of Porto Vento?"
FESTIVAL = "When is the marble festival of Quarryville held?"
STAGES = ["queue", "encode", "candidates", "rerank", "words", "texts", "read"]


def hits(page: Page, column: int = 0) -> list[str]:
    """The ids of the passages of a column."""
    return page.locator(".column").nth(column).locator(".hit").evaluate_all("all => all.map(e => e.dataset.passage)")


def body_of(page: Page, path: str, act) -> dict:
    """What the page sends to a route when something is done to it."""
    with page.expect_request(f"**/v1/{path}") as sent:
        act()
    settled(page)
    return json.loads(sent.value.post_data)


def slide(page: Page, name: str, value: int) -> None:
    """Put a slider somewhere, as a pointer does."""
    page.locator(f"#{name}").evaluate(
        "(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')) }",
        value,
    )


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_visit_asks_nothing_and_tells_of_the_index(visit: Visit):
    page = visit()
    expect(page.get_by_role("heading", name="Ask a question")).to_be_visible()
    expect(page.get_by_label("Your question")).to_be_focused()
    expect(page.locator("#columns")).to_be_hidden()
    expect(page.locator("#answer")).to_be_hidden()
    facts = page.locator("#fact-list").inner_text().split()
    assert facts[:2] == ["passages", str(ROWS)] and "16×" in facts and "mini" in facts and "scan" in facts
    assert page.locator(".size b").all_inner_texts() == ["3.6 kB", "58.4 kB"]  # 38 × 96 B, 38 × 384 × 4 B


def test_a_question_brings_ranked_passages_and_an_answer(visit: Visit):
    page = visit()
    ask(page, OXYGEN)
    assert page.locator(".rank").all_inner_texts() == [str(rank) for rank in range(1, 21)]
    expect(page.locator(".hit .title").first).to_have_text("Oxygen")
    expect(page.locator(".answer-text")).to_have_text("Carl Wilhelm Scheele")
    assert 50 < int(re.fullmatch(r"(\d+) % sure", page.locator(".confidence").inner_text())[1]) <= 100
    expect(page.locator("#status")).to_have_text(re.compile("Answer: Carl Wilhelm Scheele"))
    assert page.title() == f"{OXYGEN} · bpr"


def test_scores_have_bars_that_compare_them_with_the_best(visit: Visit):
    page = visit(OXYGEN)
    scores = [float(text) for text in page.locator(".score").all_inner_texts()]
    shares = page.locator(".score .bar span").evaluate_all("all => all.map(e => parseFloat(e.style.width))")
    assert scores == sorted(scores, reverse=True) and shares[0] == 100
    assert shares == pytest.approx([max(0, 100 * score / scores[0]) for score in scores], abs=0.2)


@pytest.mark.parametrize("question", [OXYGEN, KEEPER])
def test_the_marked_part_of_the_passage_is_the_answer(visit: Visit, question: str):
    page = visit()
    with page.expect_response("**/v1/answer") as came:
        ask(page, question)
    answer = came.value.json()["results"][0]["answers"][0]
    assert page.locator("#answer mark").all_inner_texts() == [answer["text"]]
    page.get_by_role("button", name="Show passage").click()
    assert page.locator("blockquote").evaluate("e => e.textContent") == answer["passage"]["text"]
    before = page.locator("#answer mark").evaluate("e => e.previousSibling.textContent")
    assert before == answer["passage"]["text"][: answer["start"]]
    assert page.locator(".hit mark").all_inner_texts() == [answer["text"]]


def test_characters_that_javascript_counts_twice_do_not_shift_the_mark(visit: Visit):
    page = visit(KEEPER)
    expect(page.locator("#answer mark")).to_have_text("Amalia Ferro")
    shown = page.locator(".hit mark").evaluate("e => e.previousSibling.textContent")
    assert shown == LIGHTHOUSE["text"][: LIGHTHOUSE["text"].index("Amalia")]
    assert any(ord(letter) > 0xFFFF for letter in shown)  # else this test would show nothing


def test_nothing_is_marked_where_no_passage_answers(visit: Visit):
    page = visit("zxqj vbnm qwrt")
    expect(page.locator(".no-answer")).to_have_text("No answer found in the passages read.")
    expect(page.locator("#status")).to_have_text("No answer found in the passages read.")
    expect(page.locator("mark")).to_have_count(0)
    expect(page.locator(".hit").first).to_be_visible()


def test_a_passage_opens_with_its_id_and_metadata_and_closes_again(visit: Visit):
    page = visit(KEEPER)
    first = page.locator(".hit").first
    low = first.bounding_box()["height"]
    page.locator(".hit-head").first.click()
    expect(page.locator(".hit-head").first).to_have_attribute("aria-expanded", "true")
    assert first.locator(".details").inner_text().split() == ["id", "lighthouse", "year", "1887", "coast", "north"]
    assert first.bounding_box()["height"] > low
    first.locator(".text").click()
    expect(page.locator(".hit-head").first).to_have_attribute("aria-expanded", "false")
    expect(first.locator(".details")).to_have_count(0)


def test_the_id_of_a_passage_leads_to_it(visit: Visit):
    page = visit(FESTIVAL)
    page.locator(".hit-head").first.click()
    link = page.locator(".hit .details a").first.evaluate("e => e.href")
    assert page.evaluate("link => fetch(link).then(reply => reply.json())", link) == MARKUP


def test_markup_in_a_passage_is_text_and_nothing_of_it_runs(visit: Visit):
    page = visit(FESTIVAL)
    first = page.locator(".hit").first
    page.locator(".hit-head").first.click()
    assert first.locator(".text").evaluate("e => e.textContent") == MARKUP["text"]
    expect(first.locator(".title")).to_have_text(MARKUP["title"])
    expect(first.locator(".details")).to_contain_text(MARKUP["id"])
    expect(first.locator(".details")).to_contain_text(MARKUP["meta"]["note"])
    assert page.locator("#results :is(img, script, b b, i, em)").count() == 0
    assert page.evaluate("window.ran") is None


# ── where the time went ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_bar_has_every_stage_and_its_parts_fill_it(visit: Visit):
    page = visit()
    with page.expect_response("**/v1/answer") as came:
        ask(page, OXYGEN)
    times = came.value.json()["timings_ms"]
    named = [text.split()[0] for text in page.locator("#answer .legend li").all_inner_texts()]
    assert named[:7] == STAGES and set(STAGES) | {"total"} == set(times)
    widths = page.locator("#answer .stage").evaluate_all(
        "all => Object.fromEntries(all.map(e => [e.title.split(' ')[0], e.getBoundingClientRect().width]))"
    )
    bar = page.locator("#answer .stage-bar").bounding_box()["width"]
    gaps = len(widths) - 1
    assert sum(widths.values()) + gaps == pytest.approx(bar, abs=1)
    assert widths["read"] / bar == pytest.approx(times["read"] / times["total"], abs=0.05)
    expect(page.locator("#answer .total")).to_have_text(
        re.compile(r"^[\d,.]+ ms( · batch of 2)? · [\d,.]+ ms round trip$")
    )


def test_passages_have_a_bar_of_their_own(visit: Visit):
    page = visit(OXYGEN)
    named = [text.split()[0] for text in page.locator(".column-head .legend li").all_inner_texts()]
    assert named[:6] == STAGES[:6] and "read" not in named


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_slider_of_passages_changes_what_is_asked_for(visit: Visit):
    page = visit(OXYGEN)
    assert body_of(page, "search", lambda: slide(page, "k", 7))["k"] == 7
    assert len(hits(page)) == 7
    expect(page.locator("#k-value")).to_have_text("7")
    assert "k=7" in page.url


def test_the_slider_of_candidates_goes_from_k_to_ten_thousand_and_begins_at_the_bundles_own(visit: Visit):
    page = visit()
    assert "candidates" not in body_of(page, "search", lambda: ask(page, OXYGEN))
    expect(page.locator("#candidates-value")).to_have_text(f"all {ROWS}")  # 2,000 are more than there are
    assert body_of(page, "search", lambda: slide(page, "candidates", 100))["candidates"] == 10_000
    assert body_of(page, "search", lambda: slide(page, "candidates", 0))["candidates"] == 20
    expect(page.locator("#candidates-value")).to_have_text("20")
    assert body_of(page, "search", lambda: slide(page, "k", 25))["candidates"] == 25
    expect(page.locator(".answer-text")).to_be_visible()
    own = round(100 * math.log(2000 / 25) / math.log(10_000 / 25))
    assert "candidates" not in body_of(page, "search", lambda: slide(page, "candidates", own))


def test_a_slider_that_is_drawn_along_asks_once(visit: Visit):
    page = visit(OXYGEN)
    asked: list[dict] = []
    page.route("**/v1/search", lambda route: (asked.append(json.loads(route.request.post_data)), route.continue_()))
    page.locator("#k").evaluate(
        "e => { for (const k of [30, 20, 10, 5]) { e.value = k; e.dispatchEvent(new Event('change')) } }"
    )
    settled(page)
    assert [each["k"] for each in asked] == [5] and len(hits(page)) == 5


def test_words_can_be_asked_too_where_the_bundle_keeps_them(visit: Visit):
    page = visit(OXYGEN)
    assert body_of(page, "search", lambda: page.get_by_text("Also by words").click())["hybrid"] is True
    words = page.locator(".column-head .legend li", has_text="words")
    assert float(words.locator("b").inner_text()) > 0


def test_a_comparison_shows_both_rankings_and_how_rerank_moves_each_passage(visit: Visit):
    page = visit(TESLA)
    page.get_by_text("Compare without rerank").click()
    settled(page)
    assert page.locator(".column h2").all_inner_texts() == ["With rerank", "Without rerank"]
    left, right = (page.locator(".column").nth(at).bounding_box() for at in (0, 1))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    first, second = (page.locator(".hits").nth(at).bounding_box()["y"] for at in (0, 1))
    assert first == second  # though one legend may be longer
    reranked, plain = hits(page, 0), hits(page, 1)
    assert reranked != plain
    signs = page.locator(".column").nth(0).locator(".move > [aria-hidden]").all_inner_texts()
    for at, (name, sign) in enumerate(zip(reranked, signs, strict=True)):
        up = plain.index(name) - at if name in plain else None
        assert sign == ("new" if up is None else "=" if up == 0 else f"▲{up}" if up > 0 else f"▼{-up}")
    assert {sign[0] for sign in signs} >= {"▲", "▼"}


def test_the_passage_under_the_pointer_is_shown_in_both_columns(visit: Visit):
    page = visit(hash="#q=Where+was+Tesla+born&compare=1")
    page.locator(".column").nth(0).locator(".hit-head").nth(0).hover()
    twins = page.locator(".hit.twin").evaluate_all("all => all.map(e => e.dataset.passage)")
    assert twins == [hits(page)[0]] * 2


def test_a_link_brings_its_question_and_its_settings(visit: Visit):
    page = visit(hash="#q=Who+discovered+oxygen%3F&k=5&candidates=3000&hybrid=1&compare=1")
    expect(page.get_by_label("Your question")).to_have_value(OXYGEN)
    assert [len(hits(page, column)) for column in (0, 1)] == [5, 5]
    expect(page.get_by_role("switch", name="Also by words")).to_be_checked()


def test_a_link_that_makes_no_sense_is_read_as_far_as_it_does(visit: Visit):
    page = visit(hash="#q=Who+discovered+oxygen%3F&k=-3&candidates=many&compare=perhaps&%%%")
    assert len(hits(page)) == 1 and page.locator(".column").count() == 1


def test_back_and_forward_go_through_the_questions(visit: Visit):
    page = visit()
    ask(page, OXYGEN)
    slide(page, "k", 3)  # a setting is no step of its own
    settled(page)
    ask(page, TESLA)
    page.go_back()
    expect(page.get_by_label("Your question")).to_have_value(OXYGEN)
    expect(page.locator(".answer-text")).to_have_text("Carl Wilhelm Scheele")
    page.go_back()
    expect(page.locator("#welcome")).to_be_visible()
    page.go_forward()
    expect(page.locator(".answer-text")).to_have_text("Carl Wilhelm Scheele")


def test_the_facts_are_read_again_when_the_bundle_was_changed(visit: Visit):
    page = visit()
    page.route("**/v1/search", lambda route: route.fulfill(json={**route.fetch().json(), "generation": 2}))
    page.route("**/v1/info", lambda route: route.fulfill(json={**route.fetch().json(), "rows": 39, "generation": 2}))
    ask(page, OXYGEN)
    assert page.locator("#fact-list").inner_text().split()[:2] == ["passages", "39"]


def test_without_a_reader_no_answer_is_asked_for(visit: Visit):
    page = visit()
    page.route("**/v1/info", lambda route: route.fulfill(json={**route.fetch().json(), "reader": False}))
    page.route("**/v1/answer", lambda route: pytest.fail("an answer was asked for"))
    page.reload()
    ask(page, OXYGEN)
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.locator("#answer")).to_be_hidden()


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slow_old_reply_never_replaces_a_newer_one(visit: Visit):
    page = visit()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if json.loads(route.request.post_data)["question"] == OXYGEN:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/*", hold)
    page.unroute("**/v1/info")
    page.get_by_label("Your question").fill(OXYGEN)
    with page.expect_request("**/v1/answer"), page.expect_request("**/v1/search"):
        page.keyboard.press("Enter")
    ask(page, TESLA)
    now = page.locator("#results").inner_text()
    assert len(held) == 2
    for route in held:
        route.fulfill(json={"results": [{"hits": [], "answers": []}], "timings_ms": {"total": 1}})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator("#results").inner_text() == now
    expect(page.locator(".hit .title").first).to_have_text("Nikola Tesla")


@pytest.mark.parametrize("width", [1280, 390])
def test_passages_come_before_the_answer_and_do_not_move_when_it_arrives(visit: Visit, width: int):
    page = visit(viewport={"width": width, "height": 900})
    held: list[Route] = []
    page.route("**/v1/answer", lambda route: held.append(route))
    page.get_by_label("Your question").fill(OXYGEN)
    page.keyboard.press("Enter")
    expect(page.locator(".hit-head").first).to_be_visible()
    expect(page.locator("#answer .bone").first).to_be_visible()
    expect(page.locator("#results")).to_have_attribute("aria-busy", "true")
    top = page.locator(".column").bounding_box()["y"]
    held[0].continue_()
    settled(page)
    expect(page.locator(".answer-text")).to_be_visible()
    assert page.locator(".column").bounding_box()["y"] == pytest.approx(top, abs=2)


def test_a_skeleton_stands_where_slow_passages_will_be(visit: Visit):
    page = visit()
    held: list[Route] = []
    page.route("**/v1/search", lambda route: held.append(route))
    page.get_by_label("Your question").fill(OXYGEN)
    page.keyboard.press("Enter")
    expect(page.locator(".hit .bone").first).to_be_visible()
    high = page.locator(".hit").first.bounding_box()
    held[0].continue_()
    settled(page)
    assert page.locator(".hit .bone").count() == 0
    assert page.locator(".hit").first.bounding_box()["y"] == pytest.approx(high["y"], abs=4)
    assert page.locator(".hit").first.bounding_box()["height"] == pytest.approx(high["height"], abs=4)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_service_refuses_is_said_with_its_request_id(visit: Visit):
    page = visit(refused=("400",))
    with page.expect_response("**/v1/search") as came:
        ask(page, "a" * 2001)
    said = came.value.json()
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text(said["error"]["message"])
    expect(problem).to_contain_text(said["request_id"])
    assert page.locator(".problem").count() == 1  # though the answer was refused too
    expect(page.locator("#columns")).to_be_hidden()
    ask(page, OXYGEN)
    expect(problem).to_be_hidden()
    expect(page.locator(".answer-text")).to_be_visible()


def test_a_busy_service_says_when_to_try_again_and_a_button_does(visit: Visit):
    page = visit(refused=("429",))
    error = {"error": {"code": "overloaded", "message": "64 requests are in flight already"}, "request_id": "abc"}
    refusal = {"status": 429, "json": error, "headers": {"Retry-After": "7"}}
    page.route("**/v1/search", lambda route: route.fulfill(**refusal), times=1)
    ask(page, OXYGEN)
    expect(page.get_by_role("alert")).to_contain_text("Try again in 7 seconds.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer-text")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_passages_stay_where_the_answer_alone_fails(visit: Visit):
    page = visit(refused=("504", "502"))
    error = {"error": {"code": "deadline_exceeded", "message": "it was not done in time"}, "request_id": "abc"}
    page.route("**/v1/answer", lambda route: route.fulfill(status=504, json=error), times=1)
    ask(page, OXYGEN)
    expect(page.locator("#answer")).to_contain_text("it was not done in time")
    assert len(hits(page)) == 20
    page.route("**/v1/answer", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#answer")).to_contain_text("The server answered 502, and not in bpr's words.")


def test_a_token_is_asked_for_and_kept_for_this_tab_alone(visit: Visit, small_bundle: Path):
    with serving(small_bundle, TOKEN) as (url, process):
        page = visit(OXYGEN, url=url, refused=("401", "ERR_CONNECTION_REFUSED"))
        field = page.get_by_label(re.compile("^Token"))
        expect(field).to_be_focused()
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The token was not accepted")).to_be_visible()
        page.locator("#token").fill(TOKEN)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator(".answer-text")).to_have_text("Carl Wilhelm Scheele")
        assert page.evaluate("[...Object.values(sessionStorage)]") == [TOKEN]
        assert TOKEN not in page.evaluate("document.cookie + JSON.stringify(localStorage) + location.href")
        page.reload()
        expect(page.locator(".answer-text")).to_have_text("Carl Wilhelm Scheele")

        process.terminate()
        process.wait(30)
        ask(page, TESLA)
        expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()


# ── for everybody ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_keyboard_alone_is_enough(visit: Visit):
    page = visit()
    page.keyboard.type(OXYGEN)
    page.keyboard.press("Enter")
    settled(page)
    focused = "document.activeElement.closest('.hit')?.dataset.passage ?? document.activeElement.id"
    order = hits(page)
    steps = [("ArrowDown", order[0]), ("j", order[1]), ("ArrowDown", order[2]), ("k", order[1]), ("ArrowUp", order[0])]
    for key, where in steps:
        page.keyboard.press(key)
        assert page.evaluate(focused) == where
    page.keyboard.press("Enter")
    expect(page.locator(".hit-head").first).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("?")
    page.keyboard.press("Enter")  # its button
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    assert page.evaluate(focused) == "question"
    expect(page.get_by_label("Your question")).to_have_value(OXYGEN)  # the slash was not typed
    page.keyboard.type("/?jk")
    expect(page.get_by_label("Your question")).to_have_value(OXYGEN + "/?jk")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Your question")).to_have_value("")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "question"


def test_the_keys_of_a_slider_stay_its_own(visit: Visit):
    page = visit(OXYGEN)
    page.locator("#candidates").focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    settled(page)
    assert page.locator("#candidates").evaluate("e => e === document.activeElement")
    began = round(100 * math.log(2000 / 20) / math.log(10_000 / 20))
    assert int(page.locator("#candidates").input_value()) == began - 5


def test_whatever_has_the_focus_shows_it(visit: Visit):
    page = visit(OXYGEN)
    page.keyboard.press("ArrowDown")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator("#k").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_everything_that_can_be_used_has_a_name(visit: Visit):
    page = visit(OXYGEN)
    tree = page.locator("body").aria_snapshot()
    nameless = re.findall(r"^\s*- (?:button|slider|switch|searchbox|link|textbox)(?: \[.*\])?:?$", tree, re.MULTILINE)
    assert nameless == []
    assert all(f'slider "{name}"' in tree for name in ("Passages", "Candidates"))


@pytest.mark.parametrize("hash", ["", "#q=Who+discovered+oxygen%3F", "#q=Where+was+Tesla+born&compare=1"])
@pytest.mark.parametrize("width", [360, 640])  # a phone; 1,280 pixels at 200 %
def test_nothing_is_wider_than_the_window(visit: Visit, width: int, hash: str):
    page = visit(hash=hash, viewport={"width": width, "height": 740})
    for head in page.locator(".hit-head").all()[:2]:
        head.click()
    wide, window = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert wide <= window
    if "compare" in hash and width == 360:
        upper, lower = (page.locator(".column").nth(at).bounding_box() for at in (0, 1))
        assert upper["y"] + upper["height"] <= lower["y"]


# The contrast of every text with what lies behind it, by WCAG's formula; a canvas turns any colour into RGB.
CONTRASTS = """() => {
  const paint = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const over = (colours) => {
    paint.clearRect(0, 0, 1, 1);
    for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest('.hidden, noscript')) continue;
    const behind = [], style = getComputedStyle(element);
    for (let each = element; each; each = each.parentElement) {
      if (getComputedStyle(each).opacity !== '1') found.push([0, `opacity of ${each.className}`]);
      behind.unshift(getComputedStyle(each).backgroundColor);
    }
    const [a, b] = [light(over(behind)), light(over([...behind, style.color]))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), `${element.tagName}.${element.className}: ${node.data.slice(0, 30)}`]);
  }
  return found;
}"""


@pytest.mark.parametrize("hash", ["", "#q=Where+was+Tesla+born&compare=1&k=6"])
def test_text_can_be_read_in_light_and_in_dark(visit: Visit, hash: str):
    grounds = set()
    for scheme in ("light", "dark"):
        page = visit(hash=hash, color_scheme=scheme)
        for head in page.locator(".hit-head").all()[:1]:
            head.click()
        found = page.evaluate(CONTRASTS)
        assert len(found) > 10
        assert [(round(contrast, 2), what) for contrast, what in found if contrast < 4.5] == []
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_colours_follow_the_system_until_somebody_chooses(visit: Visit):
    page = visit(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, button = page.evaluate(ground), page.locator("#theme")
    expect(button).to_have_accessible_name("Colours: auto")
    button.click()
    expect(button).to_have_accessible_name("Colours: light")
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light  # kept
    button.click()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == dark  # chosen
    button.click()
    assert page.evaluate(ground) == light  # auto again


def test_nothing_moves_for_those_who_want_it_still(visit: Visit):
    page = visit(reduced_motion="reduce")
    page.route("**/v1/search", lambda route: None)
    page.get_by_label("Your question").fill(OXYGEN)
    page.keyboard.press("Enter")
    expect(page.locator(".bone").first).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0


def test_a_print_has_the_whole_passages_on_white_and_no_buttons(visit: Visit):
    page = visit(OXYGEN, color_scheme="dark")
    clamped = page.locator(".hit .text").first.bounding_box()["height"]
    page.emulate_media(media="print")
    assert page.locator(".hit .text").first.bounding_box()["height"] > clamped
    expect(page.locator(".controls")).to_be_hidden()
    assert sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))) > 700
