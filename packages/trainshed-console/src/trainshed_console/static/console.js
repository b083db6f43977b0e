// Features of all pages: keys, copying, forms, menus, rows that open, and saved views of the list of jobs.
"use strict";

/**
 * Select the row that is `step` rows below the selected row.
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

// Time of the last press of "g", in ms since the epoch. The next key selects a page.
let leapStart = 0;
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
    leapStart = Date.now();
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
  const leaps = Date.now() - leapStart < 1200;
  leapStart = 0;
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
 * Copy a text, and return whether that succeeded. Browsers allow the clipboard only with TLS or on localhost.
 * On other pages, the function copies a selection.
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
 * Copy a text, and show the result on a button for a while.
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

// Times of the last submission of each form, in ms since the epoch, by URL. A double click submits a job only
// once, even if the form was replaced before the response.
/** @type {Map<string, number>} */
const submitTimes = new Map();
// After a return to the page, the user may submit its forms again.
addEventListener("pageshow", () => submitTimes.clear());
document.addEventListener("submit", (event) => {
  const form = closest(event, "form", HTMLFormElement);
  // A button may override the URL and the method of its form.
  const by = event.submitter?.hasAttribute("formaction") ? event.submitter : null;
  const button = by instanceof HTMLButtonElement ? by : null;
  if (!form || (button?.formMethod || form.method) !== "post") return;
  const action = button?.formAction ?? form.action;
  const last = submitTimes.get(action) ?? 0;
  if (Date.now() - last < 10_000) event.preventDefault();
  else submitTimes.set(action, Date.now());
});

document.addEventListener("change", (event) =>
  closest(event, "form[data-now]", HTMLFormElement)?.requestSubmit(),
);

// A chosen file fills a text field, so that the user can read it before sending.
document.addEventListener("change", async (event) => {
  const chooser = closest(event, "[data-into]", HTMLInputElement);
  const file = chooser?.files?.[0];
  const field = chooser?.form?.elements.namedItem(chooser.dataset.into ?? "");
  if (!file || !(field instanceof HTMLTextAreaElement)) return;
  field.value = await file.text();
  field.dispatchEvent(new Event("input", { bubbles: true }));
});

// A search form is submitted when the user stops typing. Other forms are submitted by a button.
/** @type {number | undefined} */
let searchTimer;
document.addEventListener("input", (event) => {
  const form = closest(event, "[data-search]", HTMLInputElement)?.form;
  if (form?.role !== "search") return;
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => form.requestSubmit(), 500);
});

// Empty fields are not part of the address.
document.addEventListener("formdata", (event) => {
  const form = closest(event, "form", HTMLFormElement);
  if (form?.method !== "get") return;
  const filled = [...event.formData].filter(([, value]) => value !== "");
  for (const name of [...event.formData.keys()]) event.formData.delete(name);
  for (const [name, value] of filled) event.formData.append(name, value);
});

// Also update rows that were loaded by scrolling or moved down by newer rows.
const MAX_ROWS = 300;
const requestRows = () => {
  const table = pick("[data-rows]", HTMLElement)?.closest("table");
  const count = table?.querySelectorAll("[data-row]").length;
  const address = document.body.dataset.events;
  if (!address || !count) return;
  const sign = address.includes("?") ? "&" : "?";
  stream.move(`${address}${sign}rows=${Math.min(count, MAX_ROWS)}`);
};
document.addEventListener("htmx:afterSwap", () => {
  updateAges();
  requestRows();
});
/** @type {number | undefined} */
let rowsTimer;
document.addEventListener("rows", () => {
  rowsTimer ??= setTimeout(() => {
    rowsTimer = undefined;
    requestRows();
  }, 10_000);
});

// The number of lines by severity, in all jobs searched so far.
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
 * Show the saved views of the list of jobs: addresses with names, stored in this browser.
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
    const button = fromHtml('<button type="button" class="link"></button>');
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

// A link from a job's page selects that job for a comparison.
for (const box of pickAll('[name="job"]', HTMLInputElement))
  box.checked ||= box.value === new URLSearchParams(location.search).get("mark");

// On a phone, the navigation and the tabs may be wider than the screen. Scroll to their current entry.
for (const bar of pickAll(".bar nav, .tabs", HTMLElement)) {
  const here = pick("[aria-current]", HTMLElement, bar);
  if (!here) continue;
  bar.scrollLeft = here.offsetLeft - bar.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
}

// After a search, put the cursor at the end of the search text.
const searched = pick('form[role="search"] [data-search]', HTMLInputElement);
if (searched?.value) {
  searched.focus();
  searched.setSelectionRange(searched.value.length, searched.value.length);
}

updateAges();
setInterval(updateAges, 1000);
stream.open();
