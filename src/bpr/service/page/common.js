/* What both pages of bpr's service need; it is loaded before the script of either. */
"use strict";

const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash, or role) and children; strings become text nodes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const whole = new Intl.NumberFormat("en");

/** What a storage keeps under a name, after setting it if there is a value; a browser may forbid all of it. */
function kept(storage, name, value) {
  try {
    const where = window[storage];
    if (value) where.setItem(name, value);
    else if (value === "") where.removeItem(name);
    return where.getItem(name);
  } catch {
    return value ?? null;
  }
}
