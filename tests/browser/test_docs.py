"""The page of the API as people meet it: in a browser, against a service that runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from test_page import CONTRASTS
from visiting import ROWS, TOKEN, Visit, serving

SEARCH, PASSAGE, INFO = "#post-v1-search", "#get-v1-passages-id", "#get-v1-info"
PHONE = {"width": 390, "height": 844}


def send(page: Page, route: str, body: str | None = None) -> Locator:
    """Send what stands in a route's form, or this body; the line that says what became of it."""
    section = page.locator(route)
    if body is not None:
        section.get_by_label("Body, as JSON").fill(body)
    section.get_by_role("button", name="Send").click()
    status = section.get_by_role("status")
    expect(status).to_have_text(re.compile(r"^\d{3} "))
    return status


def reply(page: Page, route: str) -> str:
    return page.locator(route).get_by_role("region", name="Reply").inner_text()


def curl(page: Page, route: str) -> list[str]:
    """The words of the line for a terminal, as a shell reads them."""
    return shlex.split(page.locator(f"{route} .curl code").inner_text())


def rows(page: Page, route: str, part: str) -> dict[str, str]:
    """By its first cell, each row of a table of a route."""
    table = page.locator(route).get_by_role("heading", name=part, exact=True).locator("..").locator("table").first
    return {row.split("\t")[0]: row for row in table.locator("tbody tr").all_inner_texts()}


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_route_of_the_description_is_shown_and_can_be_reached_from_the_contents(visit: Visit):
    page = visit(path="docs")
    paths = page.evaluate("fetch('openapi.json').then(reply => reply.json())")["paths"]
    known = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert len(known) == 7
    assert page.locator(".route h2").all_inner_texts() == known
    links = page.locator("#contents a")
    assert links.all_inner_texts() == known
    for link, section in zip(links.all(), page.locator(".route").all(), strict=True):
        assert link.get_attribute("href") == f"#{section.get_attribute('id')}"
        for status in paths[link.inner_text().split()[1]].popitem()[1]["responses"]:
            expect(section.locator("summary b", has_text=status)).to_have_count(1)
    expect(page.locator(SEARCH)).to_contain_text("The best passages for each question.")


def test_fields_are_shown_with_their_types_limits_and_defaults(visit: Visit):
    page = visit(path="docs")
    body = rows(page, SEARCH, "Body")
    assert body["k"] == "k\tinteger\t1 to 1,000\t20\tPassages for each question."
    assert body["question"].startswith("question\tstring or null\t1 to 2,000 characters\t\tOne question; or questions.")
    assert "list of string or null\t1 to 32 of 1 to 2,000 characters" in body["questions"]
    assert "list of list of number or null\t1 to 32 of 1 to 8,192" in body["vectors"]
    assert 'boolean or "weighted" or "reciprocal"\t\tfalse' in body["hybrid"]
    assert "above 0, at most 1" in body["probes"]
    assert body["where"].startswith("where\tobject or null")
    assert rows(page, PASSAGE, "Parameters") == {"id": "id\tstring\trequired"}
    replies = rows(page, SEARCH, "Replies")
    assert replies["results"].startswith("results\tlist of object\t")
    assert replies["results[].hits[].score"].startswith("results[].hits[].score\tnumber")
    assert replies["timings_ms"].startswith("timings_ms\tobject of number")


def test_an_address_leads_to_its_route_and_the_page_back_to_the_questions(visit: Visit):
    page = visit(path="docs", hash=INFO)
    expect(page.locator(INFO)).to_be_in_viewport()
    page.get_by_role("link", name="Ask").click()
    expect(page.get_by_label("Your question")).to_be_visible()


def test_a_description_that_cannot_be_read_is_said(visit: Visit):
    page = visit(path="docs", refused=("502",))
    page.route("**/openapi.json", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("openapi.json cannot be read")


def test_what_the_description_says_is_never_markup(visit: Visit):
    page = visit(path="docs")

    def spoil(route: Route) -> None:
        text = route.fetch().text()
        route.fulfill(body=text.replace("Several questions.", "<img src=x onerror='window.ran=1'>"))

    page.route("**/openapi.json", spoil)
    page.reload()
    expect(page.locator(SEARCH)).to_contain_text("<img src=x onerror='window.ran=1'>")
    assert page.evaluate("window.ran ?? null") is None


# ── the line for a terminal ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_line_for_a_terminal_is_the_request_and_follows_the_body(visit: Visit, service: str):
    page = visit(path="docs")
    words = curl(page, SEARCH)
    assert words[:5] == ["curl", "-s", f"{service}v1/search", "-H", "content-type: application/json"]
    assert words[5] == "-d" and json.loads(words[6]) == {"question": "who wrote the Iliad?", "k": 3}
    asked = {"question": 'what\'s in $HOME, `here` & "there"?'}
    page.locator(SEARCH).get_by_label("Body, as JSON").fill(json.dumps(asked))
    assert json.loads(curl(page, SEARCH)[6]) == asked
    page.locator(PASSAGE).get_by_label("id").fill("a/b's")
    assert curl(page, PASSAGE) == ["curl", "-s", f"{service}v1/passages/a%2Fb's"]


def test_the_line_for_a_terminal_can_be_copied(visit: Visit):
    page = visit(path="docs", permissions=["clipboard-read", "clipboard-write"])
    page.locator(SEARCH).get_by_role("button", name="Copy").click()
    expect(page.locator(SEARCH).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"{SEARCH} .curl code").inner_text()


def test_the_line_is_selected_where_there_is_no_clipboard(visit: Visit):
    page = visit(path="docs")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.locator(SEARCH).get_by_role("button", name="Copy").click()
    expect(page.locator(SEARCH).get_by_role("button", name="Selected")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == page.locator(f"{SEARCH} .curl code").inner_text()


# ── trying it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_of_the_description_can_be_sent(visit: Visit):
    page = visit(path="docs")
    expect(send(page, SEARCH)).to_have_text(re.compile(r"^200 OK · [\d,]+ ms$"))
    found = json.loads(reply(page, SEARCH))
    assert found["results"][0]["question"] == "who wrote the Iliad?"
    assert [hit["rank"] for hit in found["results"][0]["hits"]] == [1, 2, 3]


def test_a_body_that_is_wrong_shows_what_the_service_says(visit: Visit):
    page = visit(path="docs", refused=("400",))
    expect(send(page, SEARCH, '{"question": "who?", "k": 1001}')).to_contain_text("400 Bad Request")
    error = json.loads(reply(page, SEARCH))["error"]
    assert error == {"code": "invalid_input", "message": "k: Input should be less than or equal to 1000"}
    expect(send(page, SEARCH, "{nothing like JSON")).to_contain_text("400 Bad Request")
    assert json.loads(reply(page, SEARCH))["error"]["code"] == "invalid_input"


def test_routes_without_a_body_can_be_tried(visit: Visit):
    page = visit(path="docs", refused=("404",))
    expect(send(page, INFO)).to_contain_text("200 OK")
    assert json.loads(reply(page, INFO))["rows"] == ROWS
    page.locator(PASSAGE).get_by_role("button", name="Send").click()  # without an id, nothing is asked
    expect(page.locator(PASSAGE).get_by_role("status")).to_have_text("")
    page.locator(PASSAGE).get_by_label("id").fill("<i>markup</i>")
    expect(send(page, PASSAGE)).to_contain_text("200 OK")
    assert json.loads(reply(page, PASSAGE))["title"] == "<b>Marble</b> & stone"
    page.locator(PASSAGE).get_by_label("id").fill("nobody")
    page.locator(PASSAGE).get_by_label("id").press("Enter")
    expect(page.locator(PASSAGE).get_by_role("status")).to_contain_text("404 Not Found")
    expect(send(page, "#get-metrics")).to_contain_text("200 OK")
    assert "# TYPE bpr_requests_total counter" in reply(page, "#get-metrics")


def test_a_token_is_sent_kept_for_this_tab_and_not_shown(visit: Visit, small_bundle: Path):
    with serving(small_bundle, TOKEN) as (url, process):
        page = visit(path="docs", url=url, refused=("401", "ERR_CONNECTION_REFUSED"))
        expect(send(page, INFO)).to_contain_text("401 Unauthorized")
        page.get_by_label(re.compile("^Token")).fill(TOKEN)
        page.keyboard.press("Enter")
        expect(send(page, INFO)).to_contain_text("200 OK")
        assert curl(page, INFO)[-2:] == ["-H", "Authorization: Bearer $BPR_TOKEN"]
        assert page.evaluate("({...sessionStorage})") == {"bpr-token": TOKEN}
        assert TOKEN not in page.evaluate("document.body.innerText + JSON.stringify(localStorage) + location.href")
        page.reload()
        expect(send(page, INFO)).to_contain_text("200 OK")
        page.get_by_label(re.compile("^Token")).fill("")
        page.keyboard.press("Enter")
        assert page.evaluate("sessionStorage.length") == 0 and "-H" not in curl(page, INFO)

        process.terminate()
        process.wait(30)
        page.locator(INFO).get_by_role("button", name="Send").click()
        expect(page.locator(INFO).get_by_role("status")).to_contain_text("The server cannot be reached")
        expect(page.locator(INFO).locator(".reply")).to_be_hidden()


def test_a_slow_old_reply_never_replaces_a_newer_one(visit: Visit):
    page = visit(path="docs")
    held: list[Route] = []
    page.route("**/v1/search", lambda route: held.append(route), times=1)
    page.locator(SEARCH).get_by_role("button", name="Send").click()
    expect(page.locator(SEARCH).get_by_role("status")).to_have_text("Asking …")
    send(page, SEARCH, '{"question": "Who discovered oxygen?", "k": 1}')
    held[0].fulfill(json={"results": "old"})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert json.loads(reply(page, SEARCH))["results"][0]["question"] == "Who discovered oxygen?"


# ── for everybody ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_keyboard_alone_is_enough(visit: Visit):
    page = visit(path="docs")
    page.locator("#contents a").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == SEARCH
    area = page.locator(SEARCH).get_by_label("Body, as JSON")
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if area.evaluate("e => e === document.activeElement"):
            break
    page.keyboard.press("Control+Enter")
    expect(page.locator(SEARCH).get_by_role("status")).to_contain_text("200 OK")
    folded = page.locator(f"{SEARCH} summary", has_text="ErrorReply")
    folded.focus()
    page.keyboard.press("Enter")
    expect(page.locator(SEARCH).get_by_text("error.message")).to_be_visible()
    tree = page.locator("body").aria_snapshot()
    assert re.findall(r"^\s*- (?:button|link|textbox)(?: \[.*\])?:?$", tree, re.MULTILINE) == []


@pytest.mark.parametrize("width", [360, 800])
def test_nothing_is_wider_than_the_window(visit: Visit, width: int):
    page = visit(path="docs", viewport={"width": width, "height": 740})
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true })")
    send(page, SEARCH)
    wide, window = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert wide <= window
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.className)"
    assert page.locator(".route, .route table, .route pre, details").evaluate_all(cut) == []


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 900}, PHONE])
def test_text_can_be_read_in_light_and_in_dark(visit: Visit, viewport: dict[str, int]):
    grounds = set()
    for scheme in ("light", "dark"):
        page = visit(path="docs", color_scheme=scheme, viewport=viewport)
        send(page, SEARCH)
        found = page.evaluate(CONTRASTS)
        assert len(found) > 100
        assert [(round(contrast, 2), what) for contrast, what in found if contrast < 4.5] == []
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_colours_that_were_chosen_on_the_page_of_questions_hold_here(visit: Visit):
    page = visit(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    light = page.evaluate(ground)
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="The HTTP API")).to_be_visible()
    assert page.evaluate(ground) == light != dark
