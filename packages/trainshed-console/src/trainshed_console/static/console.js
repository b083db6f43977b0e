// What all pages do: keys, copying, forms, menus, rows that open, and views of the list of jobs.
"use strict";

/**
 * Select the row that lies so many rows below the selected one.
 * @param {number} step
 */
const select = (step) => {
  const rows = pickAll("[data-row]", HTMLElement);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("is-selected"));
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  rows[at]?.classList.remove("is-selected");
  next.classList.add("is-selected");
  pick("a", HTMLElement, next)?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};

const showHelp = () => pick("#help", HTMLDialogElement)?.showModal();

// When "g" was pressed, ms since the epoch: the next key then names a page.
let leapt = 0;
/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => {
    const search = pick("[data-search]", HTMLInputElement);
    search?.focus();
    search?.select();
  },
  j: () => select(1),
  k: () => select(-1),
  g: () => {
    leapt = Date.now();
  },
  c: () => pick('[data-keys="c"]', HTMLElement)?.click(),
  t: switchTheme,
  "?": showHelp,
};
document.addEventListener("keydown", (event) => {
  const typing = "input, textarea, select, dialog[open], [contenteditable]";
  if (event.ctrlKey || event.metaKey || event.altKey || closest(event, typing, HTMLElement)) {
    if (event.key === "Escape") closest(event, "input", HTMLInputElement)?.blur();
    return;
  }
  const leaps = Date.now() - leapt < 1200;
  leapt = 0;
  if (leaps) {
    const link = pick(`[data-keys="g ${CSS.escape(event.key)}"]`, HTMLElement);
    if (link) event.preventDefault();
    link?.click();
  } else if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

/**
 * Copy a text, and return whether the browser allowed it. Browsers lend the clipboard to pages of TLS or of this
 * machine; elsewhere a selection does it.
 * @param {string} text
 */
const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = document.createElement("textarea");
    const focused = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return done;
  }
};

/**
 * Copy a text, and have a button say for a while whether that went well.
 * @param {HTMLElement} button
 * @param {string} text
 */
const copyBy = async (button, text) => {
  button.dataset.label ??= button.textContent;
  button.textContent = (await copy(text)) ? "Copied" : "Copy failed";
  setTimeout(() => {
    button.textContent = button.dataset.label ?? "";
  }, 1600);
};

document.addEventListener("click", (event) => {
  if (closest(event, "[data-theme-switch]", HTMLElement)) switchTheme();
  if (closest(event, "[data-help]", HTMLElement)) showHelp();
  const button = closest(event, "[data-copy]", HTMLElement);
  const code = button?.parentElement && pick("code", HTMLElement, button.parentElement);
  if (button && code) copyBy(button, code.textContent);
  const sharing = closest(event, "[data-copy-address]", HTMLElement);
  if (sharing) copyBy(sharing, location.href);
  for (const menu of pickAll("details.menu[open]", HTMLDetailsElement))
    if (event.target instanceof Node && !menu.contains(event.target)) menu.open = false;
});

// A click anywhere on a row opens it.
document.addEventListener("click", (event) => {
  const row = closest(event, "tr[data-row]", HTMLElement);
  const ownUse = "a, button, input, label, summary";
  if (!row || closest(event, ownUse, HTMLElement) || String(getSelection())) return;
  pick("th a", HTMLElement, row)?.click();
});

// A double click on what submits a job is meant once, also where the answer takes its time and the form was put
// anew meanwhile. When forms were sent, ms since the epoch, by their addresses.
/** @type {Map<string, number>} */
const sent = new Map();
// Back from where it led.
addEventListener("pageshow", () => sent.clear());
document.addEventListener("submit", (event) => {
  const form = closest(event, "form", HTMLFormElement);
  // A button may send the form elsewhere, and otherwise.
  const by = event.submitter?.hasAttribute("formaction") ? event.submitter : null;
  const button = by instanceof HTMLButtonElement ? by : null;
  if (!form || (button?.formMethod || form.method) !== "post") return;
  const action = button?.formAction ?? form.action;
  const last = sent.get(action) ?? 0;
  if (Date.now() - last < 10_000) event.preventDefault();
  else sent.set(action, Date.now());
});

document.addEventListener("change", (event) =>
  closest(event, "form[data-now]", HTMLFormElement)?.requestSubmit(),
);

// A file of this machine is put into a field, where it can be read before it is sent.
document.addEventListener("change", async (event) => {
  const chooser = closest(event, "[data-into]", HTMLInputElement);
  const file = chooser?.files?.[0];
  const field = chooser?.form?.elements.namedItem(chooser.dataset.into ?? "");
  if (!file || !(field instanceof HTMLTextAreaElement)) return;
  field.value = await file.text();
  field.dispatchEvent(new Event("input", { bubbles: true }));
});

// A search is sent when its reader pauses; other fields of the form are sent when somebody asks for it.
/** @type {number | undefined} */
let pausing;
document.addEventListener("input", (event) => {
  const form = closest(event, "[data-search]", HTMLInputElement)?.form;
  if (form?.role !== "search") return;
  clearTimeout(pausing);
  pausing = setTimeout(() => form.requestSubmit(), 500);
});

// What was left empty does not stand in the address.
document.addEventListener("formdata", (event) => {
  const form = closest(event, "form", HTMLFormElement);
  if (form?.method !== "get") return;
  const filled = [...event.formData].filter(([, value]) => value !== "");
  for (const name of [...event.formData.keys()]) event.formData.delete(name);
  for (const [name, value] of filled) event.formData.append(name, value);
});

// Rows that were loaded by scrolling, or moved down by later ones, are kept up to date as well.
const MAX_ROWS = 300;
const keepRows = () => {
  const table = pick("[data-rows]", HTMLElement)?.closest("table");
  const count = table?.querySelectorAll("[data-row]").length;
  const address = document.body.dataset.events;
  if (!address || !count) return;
  const sign = address.includes("?") ? "&" : "?";
  stream.move(`${address}${sign}rows=${Math.min(count, MAX_ROWS)}`);
};
document.addEventListener("htmx:afterSwap", () => {
  ages();
  keepRows();
});
/** @type {number | undefined} */
let widening;
document.addEventListener("rows", () => {
  widening ??= setTimeout(() => {
    widening = undefined;
    keepRows();
  }, 10_000);
});

// Lines by severity, of all jobs that a search has come to so far.
document.addEventListener("htmx:afterSwap", () => {
  /** @type {Record<string, number>} */
  const sums = {};
  for (const hits of pickAll("[data-counts]", HTMLElement))
    for (const [level, count] of Object.entries(JSON.parse(hits.dataset.counts ?? "{}")))
      sums[level] = (sums[level] ?? 0) + count;
  const whole = Object.values(sums).reduce((sum, count) => sum + count, 0);
  for (const box of pickAll("[data-histogram] > div", HTMLElement)) {
    const bar = need("[class^=level-]", SVGElement, box);
    const count = sums[bar.classList[0].slice("level-".length)] ?? 0;
    need("dd", HTMLElement, box).textContent = String(count);
    bar.setAttribute("width", String(whole ? (100 * count) / whole : 0));
  }
});

/**
 * Show the views of the list of jobs: addresses that this browser keeps by the names that somebody gave them.
 * @param {HTMLElement} box
 */
const showViews = (box) => {
  /** @type {Record<string, string>} */
  const saved = JSON.parse(localStorage.getItem("views") || "{}");
  const keep = () => {
    localStorage.setItem("views", JSON.stringify(saved));
    showViews(box);
  };
  /**
   * @param {string} text
   * @param {string} label
   * @param {() => void} does
   */
  const buttonOf = (text, label, does) => {
    const button = made('<button type="button" class="link"></button>');
    Object.assign(button, { textContent: text, ariaLabel: label });
    button.addEventListener("click", does);
    return button;
  };
  const tags = Object.entries(saved).flatMap(([name, address]) => {
    const link = document.createElement("a");
    Object.assign(link, { className: "tag", textContent: name, href: address });
    if (address === location.search) link.ariaCurrent = "true";
    const forget = () => {
      delete saved[name];
      keep();
    };
    return [link, buttonOf("×", `Forget ${name}`, forget)];
  });
  const save = () => {
    const name = prompt("Name of this view");
    if (!name) return;
    saved[name] = location.search;
    keep();
  };
  if (location.search && !Object.values(saved).includes(location.search))
    tags.push(buttonOf("Save this view", "Save this view", save));
  box.replaceChildren(...tags);
  box.hidden = !tags.length;
};
for (const box of pickAll("[data-views]", HTMLElement)) showViews(box);

// From a job's page to what it is compared with.
for (const box of pickAll('[name="job"]', HTMLInputElement))
  box.checked ||= box.value === new URLSearchParams(location.search).get("mark");

// On a phone both may be wider than it.
for (const bar of pickAll(".bar nav, .tabs", HTMLElement)) {
  const here = pick("[aria-current]", HTMLElement, bar);
  if (!here) continue;
  bar.scrollLeft = here.offsetLeft - bar.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
}

// Who searched goes on typing where the last search ended.
const searched = pick('form[role="search"] [data-search]', HTMLInputElement);
if (searched?.value) {
  searched.focus();
  searched.setSelectionRange(searched.value.length, searched.value.length);
}

ages();
setInterval(ages, 1000);
stream.open();
