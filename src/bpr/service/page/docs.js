/* The API of bpr's service, for people: reads openapi.json, shows every route of it, and sends a request when asked to.

   What the description or a reply says becomes text nodes, never markup. sessionStorage holds a token, localStorage the
   colours, both under the names that app.js has for them. */
"use strict";

const SAID_MS = 1500; // how long a button says what it did

let schemas = {}; // by name, what references mean

// ── small tools ─────────────────────────────────────────────────────────────────────────────────────────────────────

/** A text in which `this` is code. */
const prose = (text) => text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));

const json = (value) => JSON.stringify(value);
const together = (parts, between) => parts.filter(Boolean).join(between);

document.documentElement.dataset.theme = kept("localStorage", "bpr-theme") ?? "auto"; // it is chosen on the other page

// ── what a schema says ──────────────────────────────────────────────────────────────────────────────────────────────

const nameOf = (schema) => schema?.$ref?.split("/").at(-1);
const resolved = (schema) => (schema?.$ref ? schemas[nameOf(schema)] : schema) ?? {};

function typeOf(schema) {
  const { anyOf, enum: values, type, items, additionalProperties: inside } = resolved(schema);
  if (anyOf) return anyOf.map(typeOf).join(" or ");
  if (values) return values.map(json).join(" or ");
  if (type === "array") return `list of ${typeOf(items)}`;
  if (type === "object" && typeof inside === "object") return `object of ${typeOf(inside)}`;
  return type ?? "any";
}

function range(least, most, unit = "") {
  const [low, high] = [least, most].map((number) => (number === undefined ? "" : whole.format(number) + unit));
  if (low && high) return `${whole.format(least)} to ${high}`;
  return low ? `at least ${low}` : high && `at most ${high}`;
}

function limitsOf(schema) {
  const { anyOf, type, items, ...own } = resolved(schema);
  if (anyOf) return together(anyOf.map(limitsOf), "; ");
  if (type === "array") return together([range(own.minItems, own.maxItems), limitsOf(items)], " of ");
  if (type === "string") return range(own.minLength, own.maxLength, " characters");
  const { exclusiveMinimum: above, exclusiveMaximum: below } = own;
  return together([above === undefined ? "" : `above ${above}`, range(own.minimum, own.maximum),
    below === undefined ? "" : `below ${below}`], ", ");
}

/** One field, and the fields of what it holds: results, results[].hits, results[].hits[].rank. */
function rowsOf(name, field, isRequired, around = []) {
  const holder = resolved(field);
  const held = holder.type === "array" ? resolved(holder.items) : holder;
  const before = held === holder ? `${name}.` : `${name}[].`;
  const inner = around.includes(held) ? [] : fieldsOf(held, before, [...around, held]);
  const row = {
    name, type: typeOf(field), limits: together([isRequired && "required", limitsOf(field)], ", "),
    default: "default" in holder ? json(holder.default) : "",
    description: field.description ?? holder.description ?? held.description ?? "",
  };
  return [row, ...inner];
}

/** The rows of all fields of an object. before: what their names begin with; around: the schemas that it is in. */
function fieldsOf(schema, before = "", around = []) {
  const { properties = {}, required = [] } = resolved(schema);
  return Object.entries(properties).flatMap(([name, field]) =>
    rowsOf(before + name, field, required.includes(name), around));
}

/** The fields as a table of those columns that say anything; null, if there are none. */
function table(rows, ...columns) {
  if (!rows.length) return null;
  const used = columns.filter((column) => rows.some((row) => row[column]));
  const cells = (row) => [make("th", { scope: "row" }, make("code", {}, row.name)),
    ...used.map((column) => make("td", { className: column }, ...prose(row[column])))];
  return make("table", {},
    make("thead", {}, make("tr", {}, ...["name", ...used].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))));
}

// ── a route ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Every method of every path, with an id that an address can name. */
function routesOf({ paths }) {
  return Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, route]) => {
    const id = `${method}${path}`.replace(/[^\w]+/g, "-").replace(/-$/, "");
    const body = Object.values(route.requestBody?.content ?? {})[0]?.schema;
    return { parameters: [], ...route, method: method.toUpperCase(), path, id, body };
  }));
}

const titleOf = ({ method, path }) => [
  make("span", { className: `method ${method.toLowerCase()}` }, method), " ", make("code", {}, path)];

function card(route) {
  const { id, parameters, body, summary, description = summary, responses } = route;
  const part = (title, ...shown) => (shown.some(Boolean) ? make("div", {}, make("h3", {}, title), ...shown) : null);
  const given = parameters.flatMap(({ name, schema, required, description: what }) =>
    rowsOf(name, { ...schema, description: what ?? schema.description }, required));
  return make("section", { id, className: "card route", "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, make("a", { href: `#${id}` }, ...titleOf(route))),
    make("p", {}, ...prose(description ?? "")),
    part("Parameters", table(given, "type", "limits", "default", "description")),
    part("Body", table(fieldsOf(body), "type", "limits", "default", "description")),
    part("Replies", ...replies(responses)),
    part("Try it", tryForm(route)));
}

/** What comes back: statuses that share a schema stand together, those of success open. */
function replies(responses) {
  const groups = new Map();
  for (const [status, { description, content = {} }] of Object.entries(responses)) {
    const [[kind, { schema } = {}] = ["no body"]] = Object.entries(content);
    const name = nameOf(schema) ?? kind;
    if (!groups.has(name)) groups.set(name, { schema, statuses: [] });
    groups.get(name).statuses.push([status, description]);
  }
  return [...groups].map(([name, { schema, statuses }]) => make("details", { open: statuses[0][0].startsWith("2") },
    make("summary", {}, ...statuses.flatMap(([status]) => [make("b", {}, status), " "]), name),
    make("ul", {}, ...statuses.map(([status, what]) => make("li", {}, make("b", {}, status), ` ${what}`))),
    resolved(schema).description ? make("p", {}, ...prose(resolved(schema).description)) : null,
    table(fieldsOf(schema), "type", "description")));
}

// ── trying it ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** A text as one word of a shell's line. */
const quoted = (text) => (/^[\w:/.%-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** JSON with so many spaces of indentation; what is none stays as it is. */
function written(text, spaces) {
  try {
    return JSON.stringify(JSON.parse(text), null, spaces);
  } catch {
    return text;
  }
}

/** The same request for a terminal; the token is named, never shown. */
function curlLine({ method, address, body }) {
  const parts = ["curl", "-s", ...(method === (body === null ? "GET" : "POST") ? [] : ["-X", method]), quoted(address)];
  if (kept("sessionStorage", "bpr-token")) parts.push("-H", '"Authorization: Bearer $BPR_TOKEN"');
  if (body !== null) parts.push("-H", "'content-type: application/json'", "-d", quoted(written(body, 0)));
  return parts.join(" ");
}

async function copy(code, button) {
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // browsers have no clipboard for pages that are neither https nor localhost
    getSelection().selectAllChildren(code);
    said = "Selected";
  }
  button.textContent = said;
  setTimeout(() => { button.textContent = "Copy"; }, SAID_MS);
}

/** Send a request: [what became of it in a line, the reply as text]. */
async function sent({ method, address, body }) {
  const token = kept("sessionStorage", "bpr-token"), began = performance.now();
  const headers = { ...(token && { authorization: `Bearer ${token}` }),
    ...(body !== null && { "content-type": "application/json" }) };
  try {
    const response = await fetch(address, { method, headers, body, cache: "no-store" });
    const text = await response.text();
    const took = Math.round(performance.now() - began);
    return [`${response.status} ${response.statusText} · ${whole.format(took)} ms`, written(text, 2)];
  } catch {
    return ["The server cannot be reached. It may have stopped, or the network is down.", ""];
  }
}

/** Fields for a request, its line for a terminal, and its reply. */
function tryForm({ id, method, path, parameters, body }) {
  const inputs = parameters.map(({ name }) => make("input", { id: `${id}-${name}`, name, required: true }));
  const area = body ? make("textarea", { id: `${id}-body`, spellcheck: false, rows: 5 }) : null;
  if (area) area.value = JSON.stringify(resolved(body).examples?.[0] ?? {}, null, 2);
  const labelled = (field, text) => [make("label", { htmlFor: field.id }, text), field];
  const code = make("code"), status = make("p", { className: "status", role: "status" });
  const reply = make("pre", { className: "reply", tabIndex: 0, hidden: true, role: "region", "aria-label": "Reply" });
  const copier = make("button", { className: "quiet", type: "button", onclick: () => copy(code, copier) }, "Copy");
  const request = () => {
    const filled = inputs.reduce((all, { name, value }) =>
      all.replace(`{${name}}`, encodeURIComponent(value || name.toUpperCase())), path);
    return { method, address: new URL(`.${filled}`, location.href).href, body: area?.value ?? null };
  };
  const send = make("button", { className: "primary", type: "submit" }, "Send");
  const form = make("form", { className: "try" },
    ...inputs.flatMap((input) => labelled(input, input.name)), ...(area ? labelled(area, "Body, as JSON") : []),
    make("div", { className: "curl" }, make("pre", {}, code), copier),
    make("div", { className: "send" }, send, status), reply);
  let asked = 0; // a new request makes those before it void
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const mine = ++asked;
    status.textContent = "Asking …";
    const [line, text] = await sent(request());
    if (mine !== asked) return;
    [status.textContent, reply.textContent, reply.hidden] = [line, text, !text];
  });
  form.addEventListener("input", () => { code.textContent = curlLine(request()); });
  area?.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
    if (key === "Enter" && (ctrlKey || metaKey)) form.requestSubmit();
  });
  form.dispatchEvent(new Event("input"));
  return form;
}

// ── beginning ───────────────────────────────────────────────────────────────────────────────────────────────────────

async function show() {
  try {
    const description = await (await fetch("openapi.json", { cache: "no-store" })).json();
    schemas = description.components?.schemas ?? {};
    const { title, version, description: about = "" } = description.info;
    byId("about").append(...prose(`${title} ${version}. ${about}`));
    const routes = routesOf(description);
    byId("contents").append(make("ul", {}, ...routes.map((route) =>
      make("li", {}, make("a", { href: `#${route.id}` }, ...titleOf(route))))));
    byId("routes").append(...routes.map(card));
    byId(location.hash.slice(1))?.scrollIntoView(); // it was not there when the browser looked for it
  } catch (error) {
    byId("routes").append(make("p", { className: "card problem", role: "alert" },
      `openapi.json cannot be read: ${error.message}`));
  }
  byId("routes").setAttribute("aria-busy", "false");
}

addEventListener("DOMContentLoaded", () => {
  const token = byId("token");
  token.value = kept("sessionStorage", "bpr-token") ?? "";
  byId("token-form").addEventListener("submit", (event) => event.preventDefault());
  token.addEventListener("change", () => {
    if (token.reportValidity()) kept("sessionStorage", "bpr-token", token.value);
    for (const form of document.querySelectorAll(".try")) form.dispatchEvent(new Event("input"));
  });
  show();
});
