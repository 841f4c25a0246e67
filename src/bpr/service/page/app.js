/* The page of bpr's service: asks it over HTTP (docs/http.md), and shows what comes back.

   What the server says becomes text nodes, never markup. The hash of the address holds the question and the settings,
   sessionStorage a token, localStorage the colours. One question is alive at a time: a new one aborts the old one's
   requests, and whatever still comes of them is dropped. */
"use strict";

const STAGES = ["queue", "encode", "candidates", "rerank", "words", "texts", "read"];
const THEMES = ["auto", "light", "dark"];
const K = { own: 20, most: 100 };
const MOST_CANDIDATES = 10_000;
const SKELETON_AFTER_MS = 120; // most questions are answered before a skeleton could be seen
const SLIDING_MS = 150; // a slider that moves on meanwhile asks only once
const BEFORE = 60; // characters of a passage that stay before its answer, so that a few lines show it

let info = null; // of /v1/info
let settings = { q: "", k: K.own, candidates: null, hybrid: false, compare: false }; // null: the bundle's own
let alive = new AbortController(); // of the question that is being asked

// ── small tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

const percent = (share) => `${Math.round(100 * share)} %`;
const count = (number, one, many) => `${whole.format(number)} ${number === 1 ? one : many}`;

function milliseconds(ms) {
  if (ms < 0.005) return "0";
  return ms >= 9.95 ? whole.format(Math.round(ms)) : ms.toFixed(ms < 0.095 ? 2 : 1);
}

function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = number < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(number) / 3));
  const shown = number / 1000 ** step;
  return `${step && shown < 100 ? shown.toFixed(1) : Math.round(shown)} ${units[step]}`;
}

// ── colours ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function showTheme(name) {
  const theme = THEMES.includes(name) ? name : "auto";
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  if (!button) return; // before the page is there
  button.textContent = `◐ ${theme[0].toUpperCase()}${theme.slice(1)}`;
  button.setAttribute("aria-label", `Colours: ${theme}`);
}

function nextTheme() {
  const now = THEMES.indexOf(document.documentElement.dataset.theme);
  showTheme(kept("localStorage", "bpr-theme", THEMES[(now + 1) % THEMES.length]));
}

showTheme(kept("localStorage", "bpr-theme"));

// ── the service ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** Why there is no reply. code: the service's own, "unreachable" or "unreadable". */
class Refusal extends Error {
  constructor(code, message, requestId = null, retryAfter = null) {
    super(message);
    Object.assign(this, { code, requestId, retryAfter });
  }
}

/** The reply of /v1/PATH with its round trip in ms; a Refusal, or an AbortError if `signal` says so. */
async function call(path, body, signal) {
  const began = performance.now();
  const headers = { accept: "application/json" };
  const token = kept("sessionStorage", "bpr-token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  let response, text;
  try {
    response = await fetch(`v1/${path}`, {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal("unreachable", "The server cannot be reached. It may have stopped, or the network is down.");
  }
  let reply = null;
  try {
    reply = JSON.parse(text);
  } catch {
    // said below
  }
  if (response.ok && reply) return { ...reply, roundTrip: performance.now() - began };
  const id = reply?.request_id ?? response.headers.get("x-request-id");
  const { code, message } = reply?.error ?? {};
  const wait = Number.parseInt(response.headers.get("retry-after"), 10);
  throw new Refusal(code ?? "unreadable", message ?? `The server answered ${response.status}, and not in bpr's words.`,
    id, Number.isNaN(wait) ? null : wait);
}

// ── settings: the controls and the address ──────────────────────────────────────────────────────────────────────────

const mostCandidates = () => Math.min(MOST_CANDIDATES, info?.limits?.candidates ?? MOST_CANDIDATES);
const candidatesNow = () => Math.max(settings.k, settings.candidates ?? info?.candidates ?? 1000);

/** Where so many candidates stand on the slider, 0–100 for k–10,000, on a scale of logarithms. */
const positionOf = (candidates) =>
  Math.round((100 * Math.log(candidates / settings.k)) / Math.log(mostCandidates() / settings.k));

/** The candidates at a place of the slider, to three digits; the bundle's own number is met exactly. */
function candidatesAt(position) {
  const own = Math.max(settings.k, info?.candidates ?? 0);
  if (position === positionOf(own)) return own;
  const exact = settings.k * (mostCandidates() / settings.k) ** (position / 100);
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(exact)) - 2);
  return Math.min(mostCandidates(), Math.max(settings.k, Math.round(exact / unit) * unit));
}

/** What the slider says, null where that is the bundle's own number. */
function candidatesOfSlider() {
  const wanted = candidatesAt(byId("candidates").valueAsNumber);
  return wanted === info?.candidates ? null : wanted;
}

function settingsOfAddress() {
  const read = new URLSearchParams(location.hash.slice(1));
  const within = (name, most, otherwise) => {
    const number = Number.parseInt(read.get(name), 10);
    return Number.isNaN(number) ? otherwise : Math.min(most, Math.max(1, number));
  };
  return {
    q: (read.get("q") ?? "").trim(),
    k: within("k", K.most, K.own),
    candidates: within("candidates", MOST_CANDIDATES, null),
    hybrid: read.get("hybrid") === "1",
    compare: read.get("compare") === "1",
  };
}

function addressOfSettings() {
  const written = new URLSearchParams();
  if (settings.q) written.set("q", settings.q);
  if (settings.k !== K.own) written.set("k", settings.k);
  if (settings.candidates !== null) written.set("candidates", settings.candidates);
  if (settings.hybrid) written.set("hybrid", "1");
  if (settings.compare) written.set("compare", "1");
  return written.size ? `#${written}` : location.pathname + location.search;
}

function showSettings() {
  const candidates = candidatesNow();
  byId("k").value = settings.k;
  byId("k-value").textContent = whole.format(settings.k);
  const slider = byId("candidates");
  if (candidatesAt(slider.valueAsNumber) !== candidates) slider.value = positionOf(candidates); // else leave it be
  byId("candidates-value").textContent =
    info && candidates >= info.rows ? `all ${whole.format(info.rows)}` : whole.format(candidates);
  slider.setAttribute("aria-valuetext", byId("candidates-value").textContent);
  byId("hybrid").checked = settings.hybrid;
  byId("compare").checked = settings.compare;
  document.title = settings.q ? `${settings.q} · bpr` : "bpr";
}

/** Take over some settings, and ask again. A new question is a step that the back button undoes; a setting is not. */
function change(some, delay = 0) {
  const step = some.q !== undefined && some.q !== settings.q;
  settings = { ...settings, ...some };
  if (settings.candidates !== null && settings.candidates < settings.k) settings.candidates = settings.k;
  history[step ? "pushState" : "replaceState"](null, "", addressOfSettings());
  refresh(delay);
}

// ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A request's fields, as the settings say. least: candidates that the route must have. */
function wanted(least) {
  const body = { question: settings.q };
  if (settings.candidates !== null) body.candidates = Math.max(least, settings.candidates);
  if (settings.hybrid && info.words) body.hybrid = true;
  return body;
}

/** Show what the settings ask for: nothing yet, or the passages and the answer of a question. */
async function refresh(delay = 0) {
  alive.abort();
  const { signal } = (alive = new AbortController());
  showSettings();
  let waiting;
  byId("results").setAttribute("aria-busy", "true");
  try {
    if (delay) await new Promise((done) => setTimeout(done, delay));
    if (signal.aborted) return;
    info ??= await call("info", null, signal);
    showInfo();
    if (!settings.q) return void showOnly("welcome");
    waiting = setTimeout(showWaiting, SKELETON_AFTER_MS);
    signal.addEventListener("abort", () => clearTimeout(waiting));
    const answered = info.reader ? call("answer", wanted(info.limits?.read ?? 0), signal) : null;
    answered?.catch(() => {}); // looked at below, when the passages are there
    const rankings = settings.compare ? [true, false] : [true];
    const replies = await Promise.all(
      rankings.map((rerank) => call("search", { ...wanted(settings.k), k: settings.k, rerank }, signal)),
    );
    clearTimeout(waiting);
    showPassages(replies, answered !== null);
    if (answered) await showAnswerOf(answered, signal);
    if (replies[0].generation !== info.generation) { // the bundle was changed
      info = await call("info", null, signal);
      showInfo();
    }
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    alive.abort(); // the sisters of the request that failed
    showProblem(error);
  } finally {
    clearTimeout(waiting);
    if (alive.signal === signal) byId("results").setAttribute("aria-busy", "false");
  }
}

/** The answer, or why there is none, beside passages that stay as they are. */
async function showAnswerOf(answered, signal) {
  try {
    showAnswer(await answered);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    byId("answer").replaceChildren(problem(error));
  }
}

// ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────────

const PARTS = ["problem", "welcome", "answer", "columns"];

function showOnly(...names) {
  for (const part of PARTS) byId(part).hidden = !names.includes(part);
}

const say = (text) => { byId("status").textContent = text; };

function showInfo() {
  byId("hybrid-control").hidden = !info.words;
  byId("k").max = Math.min(K.most, info.rows);
  showSettings();
  byId("welcome-text").textContent = `bpr looks through ${count(info.rows, "passage", "passages")}`
    + (info.reader ? ", and reads the best of them for an answer." : ".");
  const { codes, float32 } = info.bytes;
  const ratio = codes ? float32 / codes : 0;
  const times = `${ratio >= 10 ? Math.round(ratio) : ratio.toFixed(1)}×`;
  byId("sizes").replaceChildren(
    ...[["codes", codes, "as codes"], ["float32", float32, "as float32"]].map(([name, size, label]) =>
      make("div", { className: `size ${name}` }, make("span", {}, label), bar(size / Math.max(codes, float32)),
        make("b", {}, bytes(size)))),
  );
  const rows = [
    ["passages", whole.format(info.rows)], ["smaller by", times],
    ["code", `${info.bits} bits${info.planes > 1 ? ` × ${info.planes} planes` : ""}`],
    ["index", info.kind], ["model", info.model ?? "none"], ["bpr", info.version],
  ];
  byId("fact-list").replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))),
  );
  byId("facts").hidden = false;
}

/** A share of something, drawn; the number itself always stands beside it. */
function bar(share) {
  const inner = make("span", {});
  inner.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("span", { className: "bar", "aria-hidden": "true" }, inner);
}

const bone = (name) => make("span", { className: `bone ${name}`, "aria-hidden": "true" });

/** The places of the passages and of the answer, before they are there: as high as they will be. */
function showWaiting() {
  say("Asking …");
  const hit = () => make("li", { className: "hit" }, bone("head"), bone("text"));
  const hits = () => make("ol", { className: "hits" }, ...Array.from({ length: Math.min(settings.k, 6) }, hit));
  const column = () => make("section", { className: "column" },
    make("div", { className: "column-head" }, bone("head"), bone("foot")), hits());
  showColumns(settings.compare ? [column(), column()] : [column()]);
  if (info.reader) showAnswerWaiting();
  showOnly("columns", info.reader ? "answer" : "");
}

function showAnswerWaiting() {
  showInAnswer(bone("big"), bone("text"), bone("foot"));
}

const showInAnswer = (...parts) => byId("answer").replaceChildren(make("div", { className: "card answer" }, ...parts));

function showColumns(columns) {
  byId("columns").className = columns.length > 1 ? "columns wide compare" : "columns narrow";
  byId("columns").replaceChildren(...columns);
}

// ── passages ────────────────────────────────────────────────────────────────────────────────────────────────────────

/** One column for each reply: with rerank, and in a comparison without. */
function showPassages(replies, answerFollows) {
  const lists = replies.map((reply) => reply.results[0].hits);
  const compared = replies.length > 1;
  const names = compared ? ["With rerank", "Without rerank"] : ["Passages"];
  showColumns(replies.map((reply, at) =>
    column(names[at], reply, lists[at], compared ? moves(lists[at], lists[1 - at], at === 0) : new Map())));
  if (answerFollows) showAnswerWaiting();
  showOnly("columns", answerFollows ? "answer" : "");
  say(`${count(lists[0].length, "passage", "passages")} in ${milliseconds(replies[0].timings_ms.total)} ms.`);
}

function column(name, reply, hits, moved) {
  const list = hits.length
    ? make("ol", { className: "hits" }, ...hits.map((hit) => hitItem(hit, hits[0].score, moved.get(hit.id))))
    : make("p", { className: "none" }, "No passages found.");
  return make("section", { className: "column", "aria-label": name },
    make("div", { className: "column-head" }, ...stages(name, reply)), list);
}

/** By id, where a hit stands in the other ranking: [kind, sign, words]. Up and down are what rerank does to it. */
function moves(hits, others, reranked) {
  const there = new Map(others.map((other) => [other.id, other.rank]));
  const other = reranked ? "without rerank" : "with rerank";
  const move = ({ id, rank }) => {
    if (!there.has(id)) return [reranked ? "new" : "out", reranked ? "new" : "out", `not found ${other}`];
    const up = reranked ? there.get(id) - rank : rank - there.get(id);
    if (up === 0) return ["same", "=", `the same rank ${other}`];
    return [up > 0 ? "up" : "down", `${up > 0 ? "▲" : "▼"}${Math.abs(up)}`, `rank ${there.get(id)} ${other}`];
  };
  return new Map(hits.map((hit) => [hit.id, move(hit)]));
}

/** A score with as many decimals as give the best one four digits. */
function scored(value, best) {
  return value.toFixed(Math.min(4, Math.max(0, 3 - Math.floor(Math.log10(Math.abs(best) || 1)))));
}

/** How a score compares with the best one; scores may be negative. */
const relative = (value, best) => (best > 0 ? value / best : value < 0 ? best / value : 1);

let made = 0;

function hitItem(hit, best, move) {
  const body = `hit-${++made}`;
  const head = make("button", { className: "hit-head", type: "button" },
    make("span", { className: "rank" }, String(hit.rank)), titleOf(hit), move ? moveSign(...move) : null,
    make("span", { className: "score", title: "score" }, bar(relative(hit.score, best)), scored(hit.score, best)));
  head.setAttribute("aria-controls", body);
  head.setAttribute("aria-expanded", "false");
  const text = make("p", { className: "text" }, hit.text);
  const item = make("li", { className: "hit" }, make("h3", {}, head),
    make("div", { id: body, className: "body" }, text));
  item.dataset.passage = hit.id;
  const toggle = () => {
    const open = item.classList.toggle("open");
    head.setAttribute("aria-expanded", String(open));
    if (open) text.after(details(hit));
    else text.nextElementSibling.remove();
  };
  head.addEventListener("click", toggle);
  text.addEventListener("click", () => { if (!getSelection().toString()) toggle(); });
  return item;
}

const moveSign = (kind, sign, words) => make("span", { className: `move ${kind}`, title: words },
  make("span", { "aria-hidden": "true" }, sign), make("span", { className: "hidden" }, words));

const titleOf = ({ title, id }) => make("span", { className: title ? "title" : "title untitled" }, title || id);

/** What is known of a passage beside its text. */
function details({ id, meta }) {
  const open = kept("sessionStorage", "bpr-token") ? make("span", {}, id)
    : make("a", { href: `v1/passages/${encodeURIComponent(id)}`, target: "_blank", rel: "noopener" }, id);
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const rows = [["id", open], ...Object.entries(meta ?? {}).map(([name, value]) => [name, shown(value)])];
  return make("dl", { className: "details" }, ...rows.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

// ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────

/** A text with a part of it marked. start and end count code points, as Python does; JavaScript's strings do not. */
function marked(text, start, end, from = 0) {
  const points = Array.from(text);
  const part = (first, last) => points.slice(first, last).join("");
  return [(from ? "… " : "") + part(from, start), make("mark", {}, part(start, end)), part(end)];
}

/** Where an excerpt begins that shows what starts at `start`: a little before it, behind a space. */
function excerptFrom(text, start) {
  const points = Array.from(text);
  const space = points.indexOf(" ", Math.max(0, start - BEFORE));
  return start <= BEFORE || space < 0 || space >= start ? 0 : space + 1;
}

function showAnswer(reply) {
  const answer = reply.results[0].answers[0];
  if (!answer) {
    showInAnswer(make("p", { className: "no-answer" }, "No answer found in the passages read."),
      ...stages("Time", reply));
    say("No answer found in the passages read.");
    return;
  }
  const { text, confidence, passage, start, end } = answer;
  const quote = make("blockquote", {}, ...marked(passage.text, start, end, excerptFrom(passage.text, start)));
  const more = make("button", { className: "link", type: "button", "aria-expanded": "false" }, "Show passage");
  more.addEventListener("click", () => {
    const open = more.getAttribute("aria-expanded") !== "true";
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Show less" : "Show passage";
    quote.classList.toggle("open", open);
    quote.replaceChildren(...marked(passage.text, start, end, open ? 0 : excerptFrom(passage.text, start)));
    if (open) quote.after(details(passage));
    else quote.nextElementSibling.remove();
  });
  showInAnswer(
    make("div", { className: "answer-head" }, make("p", { className: "answer-text" }, text),
      make("p", { className: "confidence" }, bar(confidence), `${percent(confidence)} sure`)),
    make("p", { className: "source" }, "from ", titleOf(passage), more), quote, ...stages("Time", reply));
  for (const hit of document.querySelectorAll(".hit")) {
    if (hit.dataset.passage !== passage.id) continue;
    hit.querySelector(".text").replaceChildren(...marked(passage.text, start, end));
  }
  say(`Answer: ${text}, ${percent(confidence)} sure.`);
}

// ── where the time went ─────────────────────────────────────────────────────────────────────────────────────────────

/** A bar of the stages that a reply names, between a title and a legend. What no stage accounts for is "other". */
function stages(title, { timings_ms: times, batch, roundTrip }) {
  const parts = STAGES.filter((stage) => stage in times).map((stage) => [stage, times[stage]]);
  const rest = times.total - parts.reduce((sum, [, ms]) => sum + ms, 0);
  if (rest >= 0.05) parts.push(["other", rest]);
  const pieces = parts.filter(([, ms]) => ms > 0).map(([stage, ms]) => {
    const piece = make("span", { className: `stage ${stage}`, title: `${stage} ${milliseconds(ms)} ms` });
    piece.style.flexGrow = ms;
    return piece;
  });
  const legend = parts.map(([stage, ms]) => make("li", { className: ms > 0 ? "" : "zero" },
    make("span", { className: `swatch ${stage}`, "aria-hidden": "true" }), `${stage} `,
    make("b", {}, milliseconds(ms))));
  const together = batch > 1 ? ` · batch of ${batch}` : ""; // the stages are those of all its questions
  return [
    make("div", { className: "stage-head" }, make("h2", {}, title),
      make("p", { className: "total" }, make("b", {}, `${milliseconds(times.total)} ms`),
        `${together} · ${milliseconds(roundTrip)} ms round trip`)),
    make("div", { className: "stage-bar", "aria-hidden": "true" }, ...pieces),
    make("ul", { className: "legend", "aria-label": "Milliseconds of each stage" }, ...legend),
  ];
}

// ── problems ────────────────────────────────────────────────────────────────────────────────────────────────────────

const TITLES = {
  unauthorized: "This server wants a token",
  overloaded: "The server is busy",
  unreachable: "No connection",
  unavailable: "The server is not ready",
  deadline_exceeded: "It took too long",
  invalid_input: "That cannot be asked",
};

function showProblem(refusal) {
  byId("problem").replaceChildren(problem(refusal));
  showOnly("problem");
  say("");
  byId("token")?.focus();
}

function problem(refusal) {
  return make("div", { className: "card problem" },
    make("h2", {}, TITLES[refusal.code] ?? "That went wrong"),
    make("p", {}, refusal.message),
    refusal.retryAfter ? make("p", {}, `Try again in ${count(refusal.retryAfter, "second", "seconds")}.`) : null,
    wayOut(refusal.code),
    refusal.requestId ? make("p", { className: "request" }, "request ", make("code", {}, refusal.requestId)) : null);
}

/** What can be done about it here; another question is always possible. */
function wayOut(code) {
  if (code === "unauthorized") return tokenForm();
  if (code === "invalid_input") return null;
  return make("button", { className: "primary", type: "button", onclick: () => refresh() }, "Try again");
}

function tokenForm() {
  const refused = kept("sessionStorage", "bpr-token") !== null;
  const label = refused ? "The token was not accepted. Another one:" : "Token, kept until this tab is closed:";
  const field = make("input", { id: "token", type: "password", required: true, autocomplete: "off" });
  field.pattern = "[!-~]+"; // what a header can carry
  const form = make("form", { className: "token" }, make("label", { htmlFor: "token" }, label),
    make("div", { className: "box" }, field, make("button", { className: "primary", type: "submit" }, "Use it")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    kept("sessionStorage", "bpr-token", field.value);
    refresh();
  });
  return form;
}

// ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const typing = (element) => element.matches("input:not([type=checkbox], [type=range]), textarea, select");

/** Focus the hit that is so many further; before the first one stands the question. */
function go(step) {
  const stops = [byId("question"), ...document.querySelectorAll(".hit-head")];
  const now = stops.indexOf(document.activeElement);
  const next = stops[Math.min(stops.length - 1, Math.max(0, Math.max(0, now) + step))];
  next.focus();
  next.closest(".hit")?.scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || byId("help").open) return;
  const { key, target } = event;
  const letters = !typing(target);
  const arrows = target === byId("question") || !target.matches("input, textarea, select");
  if (key === "Escape" && (letters || target === byId("question"))) clear();
  else if (letters && key === "/") byId("question").focus();
  else if (letters && key === "?") byId("help").showModal();
  else if ((letters && key === "j") || (arrows && key === "ArrowDown")) go(1);
  else if ((letters && key === "k") || (arrows && key === "ArrowUp")) go(-1);
  else return;
  event.preventDefault();
}

function clear() {
  byId("question").value = "";
  byId("question").focus();
}

// ── beginning ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** In a comparison, the passage under the pointer or the focus is shown in both columns. */
function showTwins({ target }) {
  const id = target.closest?.(".compare .hit")?.dataset.passage;
  for (const hit of document.querySelectorAll(".compare .hit")) {
    hit.classList.toggle("twin", hit.dataset.passage === id);
  }
}

function followAddress() {
  settings = settingsOfAddress();
  byId("question").value = settings.q;
  refresh();
}

addEventListener("DOMContentLoaded", () => {
  showTheme(document.documentElement.dataset.theme);
  byId("theme").addEventListener("click", nextTheme);
  byId("open-help").addEventListener("click", () => byId("help").showModal());
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const q = byId("question").value.trim();
    if (q) change({ q });
  });
  const k = byId("k"), candidates = byId("candidates");
  k.addEventListener("input", () => { settings.k = k.valueAsNumber; showSettings(); });
  k.addEventListener("change", () => change({ k: k.valueAsNumber }, SLIDING_MS));
  candidates.addEventListener("input", () => { settings.candidates = candidatesOfSlider(); showSettings(); });
  candidates.addEventListener("change", () => change({ candidates: candidatesOfSlider() }, SLIDING_MS));
  for (const name of ["hybrid", "compare"]) {
    byId(name).addEventListener("change", () => change({ [name]: byId(name).checked }));
  }
  for (const event of ["pointerover", "focusin"]) byId("columns").addEventListener(event, showTwins);
  addEventListener("keydown", onKey);
  addEventListener("popstate", followAddress);
  followAddress();
});
