// Parts of a page that change while it is looked at, and the one event stream that they come by.
"use strict";

/**
 * Return how long something lasts: "7s", "3m 05s", "2h 10m", "1d 04h".
 * @param {number} n seconds
 */
const seconds = (n) => {
  if (n < 10) return `${Math.max(0, n).toFixed(0)}s`;
  /** @type {[string, number, number, string][]} */
  const units = [
    ["d", 86400, 3600, "h"],
    ["h", 3600, 60, "m"],
    ["m", 60, 1, "s"],
  ];
  for (const [unit, size, below, small] of units)
    if (n >= size) {
      const rest = String(Math.floor((n % size) / below)).padStart(2, "0");
      return `${Math.floor(n / size)}${unit} ${rest}${small}`;
    }
  return `${Math.floor(n)}s`;
};

/** Formats a time of the day. */
const clock = new Intl.DateTimeFormat([], {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

/**
 * Bring the ages and durations that are shown up to now.
 * @param {ParentNode} [root]
 */
const ages = (root = document) => {
  const now = Date.now() / 1000;
  for (const element of pickAll("[data-age]", HTMLElement, root)) {
    const at = Number(element.dataset.age);
    const age = seconds(now - at).replace(/ .*/, "") + (element.dataset.suffix || "");
    element.textContent = at ? age : "–";
    element.title = at ? new Date(at * 1000).toLocaleString() : "";
  }
  for (const element of pickAll("[data-since]", HTMLElement, root)) {
    const at = Date.parse(element.dataset.since ?? "") / 1000;
    element.textContent = at ? seconds(now - at) : "–";
  }
  for (const element of pickAll("[data-clock]", HTMLElement, root)) {
    const at = new Date(element.dataset.clock ?? "");
    element.textContent = at.toLocaleTimeString([], { hourCycle: "h23" });
    element.title = at.toLocaleString();
    element.removeAttribute("data-clock");
  }
};

const SCROLLS = ".log, .table-frame, .code, .story";
const FOCUSED = "a, button, select, input, [tabindex]";

/**
 * Return what tells a control from others of its part, also once that was put anew.
 * @param {Element} control
 */
const identity = (control) =>
  control.getAttribute("href") ||
  control.getAttribute("name") ||
  control.ariaLabel ||
  control.textContent;

// HTML of parts of which somebody is about to use something, by their ids: it is put when he is done.
/** @type {Map<string, string>} */
const waiting = new Map();

/**
 * Put a part anew. What its reader has opened, scrolled, marked and focused stays as it is.
 * @param {string} id
 * @param {string} html
 */
const put = (id, html) => {
  const old = document.getElementById(id);
  if (!old || !html) return;
  waiting.delete(id);
  const fresh = made(html);
  if (old.isEqualNode(fresh)) return;
  const used = old.querySelector("details.menu[open], :popover-open");
  if (used) {
    waiting.set(id, html);
    used.addEventListener("toggle", () => put(id, waiting.get(id) ?? ""), { once: true });
    return;
  }
  const open = pickAll("details", HTMLDetailsElement, old).map((details) => details.open);
  pickAll("details", HTMLDetailsElement, fresh).forEach((details, i) => {
    if (i in open) details.open = open[i];
  });
  const marked = pickAll("[name=job]:checked", HTMLInputElement, old).map((box) => box.value);
  for (const box of pickAll("[name=job]", HTMLInputElement, fresh))
    box.checked ||= marked.includes(box.value);
  if (old.classList.contains("is-selected")) fresh.classList.add("is-selected");
  const scrolled = pickAll(SCROLLS, HTMLElement, old).map((box) => [box.scrollLeft, box.scrollTop]);
  const focus = old.contains(document.activeElement) ? document.activeElement : null;
  const focused = focus && identity(focus);
  old.replaceWith(fresh);
  pickAll(SCROLLS, HTMLElement, fresh).forEach((box, i) => {
    if (scrolled[i]) [box.scrollLeft, box.scrollTop] = scrolled[i];
  });
  if (focused)
    pickAll(FOCUSED, HTMLElement, fresh)
      .find((control) => identity(control) === focused)
      ?.focus();
  ages(fresh.parentElement ?? document);
  fresh.dispatchEvent(new CustomEvent("part", { bubbles: true }));
};

/**
 * What a list holds now.
 * @typedef {object} Listing
 * @property {string[]} wanted ids of its first rows, in their order
 * @property {boolean} whole whether these are all
 * @property {Record<string, string>} parts HTML of rows by their ids
 */

/**
 * Return the rows of a list.
 * @param {HTMLElement} list
 */
const members = (list) => pickAll("[data-row][id]", HTMLElement, list.closest("table") ?? list);

/**
 * Return rows that were deleted, or do not meet the filter any more. Those below the last wanted one were loaded
 * by scrolling: the service says nothing of them, unless the list is whole.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const lost = (list, { wanted, whole }) => {
  const rows = members(list);
  const last = whole ? rows.length : rows.findLastIndex((row) => wanted.includes(row.id));
  return rows.filter((row, at) => at <= last && !wanted.includes(row.id));
};

/**
 * Add the rows that are new, each before the wanted one that follows it.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const add = (list, { wanted, parts }) => {
  for (const [at, id] of [...wanted.entries()].reverse()) {
    if (document.getElementById(id) || !parts[id]) continue;
    const row = made(parts[id]);
    const next = wanted.slice(at + 1).find((other) => document.getElementById(other));
    if (next) document.getElementById(next)?.before(row);
    else if (at === 0) list.prepend(row);
    else list.append(row);
    list.querySelector(":scope > .none")?.remove();
  }
  ages(list);
};

// Rows that come or go move the others. Who is about to use one of those is asked first: what the list would hold
// is kept, by its id, until he presses the button.
/** @type {Map<string, Listing>} */
const held = new Map();

/**
 * Have a list hold what it should.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const settle = (list, listing) => {
  const rows = members(list);
  // Nothing of what is shown is among the first ones any more: what lies between was never sent.
  const { wanted, whole } = listing;
  if (!whole && wanted.length && rows.length && !rows.some(({ id }) => wanted.includes(id)))
    return location.reload();
  const leaving = lost(list, listing);
  for (const row of leaving) row.remove();
  add(list, listing);
  held.delete(list.id);
  if (!listing.whole) list.dispatchEvent(new Event("rows", { bubbles: true }));
  // The page says in its own words that a list is empty.
  if (leaving.length && !members(list).length) location.reload();
};

/**
 * Take in what a list holds now.
 * @param {string} id
 * @param {Listing} listing
 */
const arrive = (id, listing) => {
  const list = document.getElementById(id);
  if (!list) return;
  listing = { ...listing, parts: { ...held.get(id)?.parts, ...listing.parts } };
  const fresh = listing.wanted.filter((row) => !document.getElementById(row));
  const leaving = lost(list, listing);
  const button = pick(`[data-arrivals="${id}"]`, HTMLElement);
  const isUsed = members(list).some((row) => row.matches(":hover, :focus-within, .is-selected"));
  const moves = (fresh.length && scrollY < 40) || leaving.length;
  if (!button || !moves || !isUsed) {
    settle(list, listing);
    if (button) button.hidden = true;
    return;
  }
  held.set(id, listing);
  for (const row of members(list)) row.classList.toggle("is-gone", leaving.includes(row));
  const news = [
    fresh.length && `Show ${fresh.length} new`,
    leaving.length && `Remove ${leaving.length} that no longer match`,
  ];
  button.textContent = news.filter(Boolean).join(", ");
  button.hidden = false;
};
document.addEventListener("click", (event) => {
  const button = closest(event, "[data-arrivals]", HTMLElement);
  const list = button && document.getElementById(button.dataset.arrivals ?? "");
  const listing = list && held.get(list.id);
  if (!listing) return;
  settle(list, listing);
  button.hidden = true;
});

/** The one event stream of a page, which is open while the page is looked at. */
const stream = (() => {
  const banner = need("[data-live]", HTMLElement);
  let address = document.body.dataset.events;
  /** @type {EventSource | null} */
  let source = null;
  /** @type {number | undefined} */
  let trouble;
  let ended = false;

  /**
   * Show a message, and a link after it.
   * @param {string} text
   * @param {[address: string, text: string]} [link]
   */
  const say = (text, link) => {
    banner.textContent = text;
    if (link) {
      const way = document.createElement("a");
      [way.href, way.textContent] = link;
      banner.append(" ", way);
    }
    banner.hidden = false;
  };
  const calm = () => {
    clearTimeout(trouble);
    trouble = undefined;
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const open = () => {
    if (!address || source || ended || document.hidden) return;
    const mine = (source = new EventSource(address));
    source.addEventListener("parts", ({ data }) => {
      const { parts, lists, whole, build } = JSON.parse(data);
      // The service was changed meanwhile: what it sends belongs to other styles and scripts.
      if (build !== document.body.dataset.build) return location.reload();
      /** @type {[string, string[]][]} */
      const listings = Object.entries(lists);
      if (document.querySelector(".empty") && listings.some(([, ids]) => ids.length))
        return location.reload();
      for (const [id, wanted] of listings) arrive(id, { wanted, parts, whole: whole.includes(id) });
      for (const { parts: rows } of held.values()) Object.assign(rows, parts);
      for (const id in parts) put(id, parts[id]);
    });
    source.addEventListener("gone", ({ data }) => {
      const { message, signedOut } = JSON.parse(data);
      ended = true;
      calm();
      close();
      const here = encodeURIComponent(location.pathname + location.search);
      say(message, signedOut ? [`/login?next=${here}`, "Sign in"] : ["/", "Show jobs"]);
    });
    source.onopen = () => {
      calm();
      banner.hidden = true;
    };
    source.onerror = () => {
      if (mine !== source) return;
      // Each attempt fails anew, and the three seconds count from the first.
      trouble ||= setTimeout(() => say("The service does not respond. Retrying…"), 3000);
      // Not left to the browser, which gives up at some errors and takes its own time at others.
      close();
      setTimeout(open, 2000);
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener("pagehide", close);
  return {
    open,
    /**
     * Go on with the page's own parts at another address.
     * @param {string} to
     */
    move: (to) => {
      if (to === address) return;
      address = to;
      if (!source) return;
      close();
      open();
    },
  };
})();
