// Updates parts of an open page with the messages of one event stream.
"use strict";

/**
 * Return a duration as text: "7s", "3m 05s", "2h 10m", "1d 04h".
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

/** Formats a time of day. */
const clock = new Intl.DateTimeFormat([], {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

/**
 * Update all ages and durations on the page to the current time.
 * @param {ParentNode} [root]
 */
const updateAges = (root = document) => {
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

const SCROLLS = ".log, .table-frame, .code, .story, .graph";
const FOCUSED = "a, button, select, input, [tabindex]";

/**
 * Return a key of a control that is unique in its part and stays the same in a new version of the part.
 * @param {Element} control
 */
const controlKey = (control) =>
  control.getAttribute("href") ||
  control.getAttribute("name") ||
  control.ariaLabel ||
  control.textContent;

// New HTML of parts with an open menu, by ID. It replaces the part when the user closes the menu.
/** @type {Map<string, string>} */
const pendingParts = new Map();

/**
 * Replace a part with a new version. Keep open details, scroll positions, checked boxes and the focus.
 * @param {string} id
 * @param {string} html
 */
const replacePart = (id, html) => {
  const old = document.getElementById(id);
  if (!old || !html) return;
  pendingParts.delete(id);
  const fresh = fromHtml(html);
  if (old.isEqualNode(fresh)) return;
  const used = old.querySelector("details.menu[open], :popover-open");
  if (used) {
    pendingParts.set(id, html);
    used.addEventListener("toggle", () => replacePart(id, pendingParts.get(id) ?? ""), { once: true });
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
  const focused = focus && controlKey(focus);
  old.replaceWith(fresh);
  pickAll(SCROLLS, HTMLElement, fresh).forEach((box, i) => {
    if (scrolled[i]) [box.scrollLeft, box.scrollTop] = scrolled[i];
  });
  if (focused)
    pickAll(FOCUSED, HTMLElement, fresh)
      .find((control) => controlKey(control) === focused)
      ?.focus();
  updateAges(fresh.parentElement ?? document);
  fresh.dispatchEvent(new CustomEvent("part", { bubbles: true }));
};

/**
 * The current contents of a list.
 * @typedef {object} Listing
 * @property {string[]} wanted IDs of its first rows, in order
 * @property {boolean} whole whether the list has no other rows
 * @property {Record<string, string>} parts HTML of rows by ID
 */

/**
 * Return the rows of a list.
 * @param {HTMLElement} list
 */
const rowsOf = (list) => pickAll("[data-row][id]", HTMLElement, list.closest("table") ?? list);

/**
 * Return the rows to remove, because their items were deleted or no longer match. If the list is not
 * whole, rows below the last wanted row remain: scrolling loaded them, and the service does not report on them.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const staleRows = (list, { wanted, whole }) => {
  const rows = rowsOf(list);
  const last = whole ? rows.length : rows.findLastIndex((row) => wanted.includes(row.id));
  return rows.filter((row, at) => at <= last && !wanted.includes(row.id));
};

/**
 * Add the new rows of a listing, each before the next wanted row.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const addRows = (list, { wanted, parts }) => {
  for (const [at, id] of [...wanted.entries()].reverse()) {
    if (document.getElementById(id) || !parts[id]) continue;
    const row = fromHtml(parts[id]);
    const next = wanted.slice(at + 1).find((other) => document.getElementById(other));
    if (next) document.getElementById(next)?.before(row);
    else if (at === 0) list.prepend(row);
    else list.append(row);
    list.querySelector(":scope > .none")?.remove();
  }
  updateAges(list);
};

// Listings by the ID of their list, until the user presses a button. Added and removed rows move other rows, which
// would disturb a user of the list.
/** @type {Map<string, Listing>} */
const pendingListings = new Map();

/**
 * Add and remove rows, so that a list matches its listing.
 * @param {HTMLElement} list
 * @param {Listing} listing
 */
const applyListing = (list, listing) => {
  const rows = rowsOf(list);
  // If no shown row is among the first rows, the service never sent the rows in between. Load them all.
  const { wanted, whole } = listing;
  if (!whole && wanted.length && rows.length && !rows.some(({ id }) => wanted.includes(id)))
    return location.reload();
  const leaving = staleRows(list, listing);
  for (const row of leaving) row.remove();
  addRows(list, listing);
  pendingListings.delete(list.id);
  if (!listing.whole) list.dispatchEvent(new Event("rows", { bubbles: true }));
  // The page has a special text for an empty list.
  if (leaving.length && !rowsOf(list).length) location.reload();
};

/**
 * Apply a new listing, or offer a button for it if the user is using a row of the list.
 * @param {string} id
 * @param {Listing} listing
 */
const receiveListing = (id, listing) => {
  const list = document.getElementById(id);
  if (!list) return;
  listing = { ...listing, parts: { ...pendingListings.get(id)?.parts, ...listing.parts } };
  const fresh = listing.wanted.filter((row) => !document.getElementById(row));
  const leaving = staleRows(list, listing);
  const button = pick(`[data-arrivals="${id}"]`, HTMLElement);
  const isUsed = rowsOf(list).some((row) => row.matches(":hover, :focus-within, .is-selected"));
  const moves = (fresh.length && scrollY < 40) || leaving.length;
  if (!button || !moves || !isUsed) {
    applyListing(list, listing);
    if (button) button.hidden = true;
    return;
  }
  pendingListings.set(id, listing);
  for (const row of rowsOf(list)) row.classList.toggle("is-gone", leaving.includes(row));
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
  const listing = list && pendingListings.get(list.id);
  if (!listing) return;
  applyListing(list, listing);
  button.hidden = true;
});

/** The event stream of the page, open while the page is visible. */
const stream = (() => {
  const banner = need("[data-live]", HTMLElement);
  let address = document.body.dataset.events;
  /** @type {EventSource | null} */
  let source = null;
  /** @type {number | undefined} */
  let trouble;
  let ended = false;

  /**
   * Show a message with an optional link.
   * @param {string} text
   * @param {[address: string, text: string]} [link]
   */
  const showMessage = (text, link) => {
    banner.textContent = text;
    if (link) {
      const way = document.createElement("a");
      [way.href, way.textContent] = link;
      banner.append(" ", way);
    }
    banner.hidden = false;
  };
  const clearTrouble = () => {
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
      // The service was upgraded. Its messages fit other styles and scripts.
      if (build !== document.body.dataset.build) return location.reload();
      /** @type {[string, string[]][]} */
      const listings = Object.entries(lists);
      if (document.querySelector(".empty") && listings.some(([, ids]) => ids.length))
        return location.reload();
      for (const [id, wanted] of listings) receiveListing(id, { wanted, parts, whole: whole.includes(id) });
      for (const { parts: rows } of pendingListings.values()) Object.assign(rows, parts);
      for (const id in parts) replacePart(id, parts[id]);
    });
    source.addEventListener("gone", ({ data }) => {
      const { message, signedOut } = JSON.parse(data);
      ended = true;
      clearTrouble();
      close();
      const here = encodeURIComponent(location.pathname + location.search);
      showMessage(message, signedOut ? [`/login?next=${here}`, "Sign in"] : ["/", "Show jobs"]);
    });
    source.onopen = () => {
      clearTrouble();
      banner.hidden = true;
    };
    source.onerror = () => {
      if (mine !== source) return;
      // Further attempts may fail. Show the message three seconds after the first failure.
      trouble ||= setTimeout(() => showMessage("The service does not respond. Retrying…"), 3000);
      // Retry here, because browsers stop after some errors and wait for different times after others.
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
     * Continue with the event stream of another address.
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
