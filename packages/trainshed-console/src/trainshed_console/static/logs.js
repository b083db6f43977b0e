// Shows a part of a log: the page loads lines near the scroll position and contains a limited number of them.
// Users can select lines, copy them, and copy a link to them.
"use strict";

/**
 * A line from `pages/logs.py`.
 * @typedef {[at: string, task: string, severity: string, text: string, place: string, cursor: string,
 *   pieces: [text: string, classes: string][]]} LogRow
 */

/**
 * @typedef {object} LogPage
 * @property {LogRow[]} lines
 * @property {string} earlier the cursor for earlier lines; "" = none exist
 * @property {string} later
 * @property {boolean} over whether the log is complete
 * @property {boolean} more whether the service stopped at its time limit
 */

const logBox = need("[data-log]", HTMLElement);
const tools = need("[data-log-tools]", HTMLFormElement);
const logStatus = need("[data-log-status]", HTMLElement);
const marking = need("[data-marked]", HTMLElement);
const followButton = need("[data-last]", HTMLButtonElement, tools);
const timesBox = need("[name=times]", HTMLInputElement, tools);
const wrapBox = need("[name=wrap]", HTMLInputElement, tools);
const replicaField = need("[name=replica]", HTMLSelectElement, tools);
const severityField = need("[name=severity]", HTMLSelectElement, tools);
const searchField = need("[name=search]", HTMLInputElement, tools);

const MAX_LINES = 3000;
const PAGE_LINES = 500;
const AROUND_LINES = 200;
// Milliseconds between two requests for new lines.
const POLL_INTERVAL = 500;
const BEGINNING = "1970-01-01T00:00:01Z";

// Cursors for loading lines above and below; "" = no more lines.
let earlier = "";
let later = "";
let isFollowing = true;
let isBusy = false;
let isComplete = false;
// Aborts the requests for new lines; null: the page does not request new lines.
/** @type {AbortController | null} */
let polling = null;
// Number of requests for pages. Responses to older requests are ignored.
let requests = 0;
// Number of consecutive failures; -1: the service rejected the request, so the page does not retry.
let failures = 0;
// The last shown line of each replica, [attempt, number].
/** @type {Map<string, [number, number]>} */
const lastPlaces = new Map();
// Colors of replicas, different from those of severities. The first replica has none.
const TINTS = ["", "ink-4", "ink-2", "ink-5", "ink-6"];
/** @type {Map<string, string>} */
const tints = new Map();

/**
 * Return an element with a class and a text.
 * @param {"div" | "span"} tag
 * @param {string} className
 * @param {string} text
 */
const element = (tag, className, text) =>
  Object.assign(document.createElement(tag), { className, textContent: text });

/** @param {LogRow} line */
const showLine = ([at, task, severity, text, place, cursor, pieces]) => {
  const line = element("div", `log-line ${severity.toLowerCase()}`, "");
  line.dataset.place = cursor;
  line.toggleAttribute("data-service", task === "service");
  const moment = new Date(at);
  const time = document.createElement("time");
  time.dateTime = at;
  const ms = String(moment.getMilliseconds()).padStart(3, "0");
  time.textContent = `${clock.format(moment)}.${ms}`;
  time.title = `${at} – click to select this line`;
  if (task !== "service" && !tints.has(task)) tints.set(task, TINTS[tints.size % TINTS.length]);
  const who = element("span", `log-task ${tints.get(task) ?? ""}`.trim(), task);
  const words = element("span", "log-text", pieces.length ? "" : text);
  words.append(...pieces.map(([part, classes]) => element("span", classes, part)));
  line.append(time, who, words);
  recordPlace(place);
  return line;
};

/**
 * Record the position of a line. Return whether lines of the same replica before it are missing.
 * @param {string} place
 */
const recordPlace = (place) => {
  const [replica, ...numbers] = place.split("/");
  const [attempt, number] = numbers.map(Number);
  const last = lastPlaces.get(replica);
  const isLater = !last || attempt > last[0] || (attempt === last[0] && number > last[1]);
  if (isLater) lastPlaces.set(replica, [attempt, number]);
  return !!last && attempt === last[0] && number > last[1] + 1;
};

const linesShown = () => pickAll(".log-line", HTMLElement, logBox);
const isAtEnd = () => logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;

/** @param {string} text */
const showStatus = (text) => {
  logStatus.textContent = text;
};
/** Show the number of lines and the state of the log. */
const showSummary = () => {
  fold();
  const count = linesShown().length;
  if (!count) return showStatus(isComplete ? "No line matches." : "No output yet.");
  const from = earlier ? "earlier lines above" : "from the first line";
  let state = isFollowing ? "Following." : "Not following: newer lines are below.";
  if (isComplete && !polling) state = "The log is complete.";
  showStatus(`${count.toLocaleString()} lines shown, ${from}. ${state}`);
};

/** Return the filters as parameters of the address. */
const filters = () => {
  const query = new URLSearchParams();
  for (const { name, value } of [replicaField, severityField, searchField])
    if (value) query.set(name, value);
  return query;
};

/**
 * Return a page of the log, or null after a failure or a newer request. Failures are shown.
 * @param {Record<string, string | number>} more parameters in addition to the filters
 * @returns {Promise<LogPage | null>}
 */
const fetchPage = async (more) => {
  const mine = ++requests;
  const query = filters();
  for (const [name, value] of Object.entries({ limit: PAGE_LINES, ...more }))
    query.set(name, String(value));
  isBusy = true;
  let answer, page;
  try {
    const headers = { accept: "application/json" };
    answer = await fetch(`${tools.dataset.job}/lines?${query}`, { headers });
    page = await answer.json();
  } catch {
    if (mine === requests) showStatus("The service does not respond. Retrying…");
    return null;
  } finally {
    if (mine === requests) isBusy = false;
  }
  if (mine !== requests) return null;
  if (!answer.ok) {
    if (answer.status < 500) failures = -1;
    showStatus(page.error.message);
    return null;
  }
  failures = 0;
  return page;
};

/** @param {boolean} follows */
const follow = (follows) => {
  isFollowing = follows;
  followButton.ariaPressed = String(follows);
};

// After a restart of the service, read all shown lines again, so that none is missing or repeated.
const retryLater = () => {
  if (failures < 0) return;
  const again = () => {
    if (isFollowing && !isComplete && !polling && !isBusy) showLast();
  };
  setTimeout(again, Math.min(1000 * 2 ** failures++, 15000));
};

/**
 * Replace the shown lines with a page.
 * @param {LogPage} page
 * @param {boolean} isFirst whether it starts with the first line
 */
const show = (page, isFirst) => {
  lastPlaces.clear();
  logBox.replaceChildren(...page.lines.map(showLine));
  ({ later, over: isComplete } = page);
  earlier = isFirst ? "" : page.earlier;
  paintMarked();
};

const showLast = async () => {
  abortPolling();
  follow(true);
  isComplete = false;
  const page = await fetchPage({});
  if (!page) return retryLater();
  show(page, false);
  logBox.scrollTop = logBox.scrollHeight;
  if (page.more) showStatus("Searching older lines…");
  showSummary();
  if (page.more && page.lines.length < 50) await showAbove();
  // The user may have scrolled elsewhere in the meantime.
  if (isFollowing && !isComplete) startPolling();
};

const showFirst = async () => {
  abortPolling();
  follow(false);
  const page = await fetchPage({ from: BEGINNING });
  if (!page) return;
  show(page, true);
  logBox.scrollTop = 0;
  showSummary();
};

/**
 * Show the line at a position, with the lines around it.
 * @param {string} place
 */
const showAround = async (place) => {
  abortPolling();
  follow(false);
  const before = await fetchPage({ before: place, limit: AROUND_LINES });
  if (!before) return;
  const last = before.lines.at(-1);
  const page = await fetchPage(last ? { after: last[5] } : { from: BEGINNING });
  if (!page) return;
  const lines = [...before.lines, ...page.lines];
  show({ ...page, lines, earlier: before.earlier }, !before.earlier);
  const line = lineAt(place);
  if (line) logBox.scrollTop = line.offsetTop - logBox.clientHeight / 3;
  showSummary();
  if (!line) showStatus("The line in the address is not in this log.");
};

/** Return the first visible line. */
const topLine = () => {
  const { top } = logBox.getBoundingClientRect();
  return linesShown().find((line) => line.getBoundingClientRect().bottom > top + 1);
};

/** Show the next error after the selected line or the first visible line, or else the first error of the log. */
const showNextError = async () => {
  const from = marked[0] || topLine()?.dataset.place;
  const query = { severity: "ERROR", limit: 1, search: "" };
  const start = { from: BEGINNING };
  let page = await fetchPage({ ...query, ...(from ? { after: from } : start) });
  if (page && from && !page.lines.length && !page.more)
    page = await fetchPage({ ...query, ...start });
  if (!page) return;
  if (!page.lines.length)
    return showStatus(page.more ? "No error among the next 20,000 lines." : "The log has no errors.");
  const place = page.lines[0][5];
  severityField.value = searchField.value = "";
  marked = [place, place];
  writeAddress();
  await showAround(place);
};

const showAbove = async () => {
  if (isBusy || !earlier) return;
  const page = await fetchPage({ before: earlier });
  if (!page) return;
  const height = logBox.scrollHeight;
  logBox.prepend(...page.lines.map(showLine));
  logBox.scrollTop += logBox.scrollHeight - height;
  earlier = page.earlier;
  if (logBox.children.length > MAX_LINES) {
    // Lines far below are read again when the user scrolls there.
    abortPolling();
    while (logBox.children.length > MAX_LINES) logBox.lastChild?.remove();
    follow(false);
    later = linesShown().at(-1)?.dataset.place ?? "";
  }
  paintMarked();
  showSummary();
  if (page.more && page.lines.length < 50) await showAbove();
};

const showBelow = async () => {
  if (isBusy || isFollowing || polling || !later) return;
  const page = await fetchPage({ after: later });
  if (!page) return;
  logBox.append(...page.lines.map(showLine));
  later = page.later || later;
  if (!page.lines.length && !page.more) {
    if (!isComplete) await showLast();
    return;
  }
  trim(MAX_LINES);
  paintMarked();
  showSummary();
};

/**
 * Keep only the last lines.
 * @param {number} most
 */
const trim = (most) => {
  if (logBox.children.length <= most) return;
  while (logBox.children.length > most) logBox.firstChild?.remove();
  earlier = pick(".log-line", HTMLElement, logBox)?.dataset.place ?? "";
};

// Hides the lines about the preparation of the environment after the start of the program.
let isUnfolded = false;
const fold = () => {
  logBox.querySelector("[data-fold]")?.remove();
  const lines = linesShown();
  const begins = lines.findIndex((line) => !line.hasAttribute("data-service"));
  const isWhole = isUnfolded || begins < 4 || filters().size || address.get("line");
  const folded = isWhole ? [] : lines.slice(0, begins);
  for (const line of pickAll(".is-folded", HTMLElement, logBox)) line.classList.remove("is-folded");
  for (const line of folded) line.classList.add("is-folded");
  if (!folded.length) return;
  const button = fromHtml('<button type="button" class="log-fold" data-fold></button>');
  button.textContent = `${folded.length} lines about the preparation of the environment`;
  button.addEventListener("click", () => {
    isUnfolded = true;
    fold();
  });
  logBox.prepend(button);
};

const ERRORS = ["ERROR", "CRITICAL", "ALERT", "EMERGENCY"];
/**
 * Return whether a line matches the filters for severity and text.
 * @param {LogRow} line
 */
const matchesFilters = ([, , severity, text]) => {
  const isWarning = severityField.value === "WARNING" && severity === "WARNING";
  const isBad = !severityField.value || isWarning || ERRORS.includes(severity);
  return isBad && text.toLowerCase().includes(searchField.value.trim().toLowerCase());
};

/**
 * Show new lines.
 * @param {LogRow[]} lines
 */
const append = (lines) => {
  const stays = isFollowing && isAtEnd();
  const gap = "… some new lines are not shown; scroll up to read all lines …";
  const isGap = lines.map(({ 4: place }) => recordPlace(place)).includes(true);
  if (isGap) logBox.append(element("div", "log-gap", gap));
  logBox.append(...lines.filter(matchesFilters).map(showLine));
  trim(stays ? MAX_LINES : 2 * MAX_LINES);
  if (stays) logBox.scrollTop = logBox.scrollHeight;
  showSummary();
};

/** Stop requesting new lines. Later lines are loaded when the user scrolls. */
const stopPolling = () => {
  polling = null;
  later = linesShown().at(-1)?.dataset.place ?? later;
};

/** Request new lines repeatedly, until the log is complete or the page is hidden. */
const startPolling = async () => {
  abortPolling();
  const { signal } = (polling = new AbortController());
  const headers = { accept: "application/json" };
  while (!document.hidden && !signal.aborted) {
    const places = [...lastPlaces].map(([replica, [attempt, n]]) => `${replica}/${attempt}/${n}`);
    const query = new URLSearchParams({ replica: replicaField.value, after: places.join(",") });
    const answer = await fetch(`${tools.dataset.job}/lines/new?${query}`, { headers, signal })
      .then(async (response) => response.ok && response.json())
      .catch(() => null);
    if (signal.aborted) return;
    if (!answer) {
      stopPolling();
      if (isFollowing) showStatus("The service does not respond. Retrying…");
      return retryLater();
    }
    isComplete = answer.over;
    if (isComplete) polling = null;
    append(answer.lines);
    if (isComplete) return stopPolling();
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
  }
};
const abortPolling = () => {
  polling?.abort();
  polling = null;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden) polling?.abort();
  else if (polling) startPolling();
});

// Selected lines, [first, last], also in the address; [] = none.
const address = new URLSearchParams(location.search);
const linked = address.get("line");
/** @type {string[]} */
let marked = linked ? [linked, address.get("to") || linked] : [];

/** @param {string} place */
const lineAt = (place) => pick(`.log-line[data-place="${CSS.escape(place)}"]`, HTMLElement, logBox);

/** Return the selected lines, if both ends are shown. */
const markedLines = () => {
  const lines = linesShown();
  const ends = marked.map((place) => lines.findIndex((line) => line.dataset.place === place));
  if (!ends.length || ends.includes(-1)) return [];
  return lines.slice(Math.min(...ends), Math.max(...ends) + 1);
};
const paintMarked = () => {
  for (const line of pickAll(".is-marked", HTMLElement, logBox)) line.classList.remove("is-marked");
  const lines = markedLines();
  for (const line of lines) line.classList.add("is-marked");
  marking.hidden = !lines.length;
  const words = `${lines.length.toLocaleString()} ${lines.length === 1 ? "line" : "lines"} selected`;
  need("[data-count]", HTMLElement, marking).textContent = words;
};
const writeAddress = () => {
  const query = filters();
  if (marked.length) query.set("line", marked[0]);
  if (marked[1] !== marked[0]) query.set("to", marked[1]);
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
};
/** @param {string[]} places */
const mark = (places) => {
  marked = places;
  paintMarked();
  writeAddress();
};
/**
 * Select only this line, or nothing if it is the only selected line.
 * @param {string} place
 */
const toggle = (place) => {
  const isAlone = marked[0] === place && marked[1] === place;
  mark(isAlone ? [] : [place, place]);
};
logBox.addEventListener("click", (event) => {
  const place = closest(event, "time", HTMLElement)?.closest("div")?.dataset.place;
  if (!place) return;
  if (event.shiftKey && marked.length) mark([marked[0], place]);
  else toggle(place);
  getSelection()?.removeAllRanges();
});
marking.addEventListener("click", (event) => {
  const button = closest(event, "button", HTMLButtonElement);
  if (!button) return;
  if ("unmark" in button.dataset) return mark([]);
  const words = (/** @type {HTMLElement} */ line) => {
    const time = timesBox.checked ? `${need("time", HTMLTimeElement, line).dateTime} ` : "";
    return time + need(".log-text", HTMLElement, line).textContent;
  };
  const isLink = "link" in button.dataset;
  copyBy(button, isLink ? location.href : markedLines().map(words).join("\n"));
});

// Selection by keys: a screen reader reads each line that the keys reach.
const readOut = need("[data-log-said]", HTMLElement);
let chosen = "";
/** @param {HTMLElement} line */
const choose = (line) => {
  logBox.querySelector(".is-chosen")?.classList.remove("is-chosen");
  chosen = line.dataset.place ?? "";
  line.classList.add("is-chosen");
  line.scrollIntoView({ block: "nearest" });
  const parts = pickAll("time, .log-task, .log-text", HTMLElement, line);
  readOut.textContent = parts.map((part) => part.textContent).join(" ");
};
/**
 * Return the line above or below a line.
 * @param {HTMLElement} line
 * @param {1 | -1} by
 */
const neighbour = (line, by) => {
  const lines = pickAll(".log-line:not(.is-folded)", HTMLElement, logBox);
  return lines[lines.indexOf(line) + by];
};
/**
 * Move to the line above or below the current one.
 * @param {1 | -1} by
 * @param {boolean} [marks] whether to extend the selection
 */
const step = async (by, marks = false) => {
  const from = chosen && lineAt(chosen);
  let line = from ? neighbour(from, by) : topLine();
  if (!line && from) {
    await (by > 0 ? showBelow() : showAbove());
    line = neighbour(from, by);
  }
  if (!line) return;
  choose(line);
  if (marks) mark([marked[0] || (from || line).dataset.place || "", chosen]);
};
/** @type {Record<string, () => void>} */
const LOG_KEYS = {
  j: () => step(1),
  k: () => step(-1),
  J: () => step(1, true),
  K: () => step(-1, true),
  m: () => chosen && mark(marked[0] === chosen ? [] : [chosen, chosen]),
  Escape: () => mark([]),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (closest(event, "input, textarea, select, dialog", HTMLElement)) return;
  if (!Object.hasOwn(LOG_KEYS, event.key)) return;
  event.preventDefault();
  LOG_KEYS[event.key]();
});

let isTicking = false;
logBox.addEventListener(
  "scroll",
  () => {
    if (isTicking) return;
    isTicking = true;
    requestAnimationFrame(() => {
      isTicking = false;
      const isEnd = isAtEnd();
      if (isFollowing !== isEnd && !isBusy && polling) {
        follow(isEnd);
        showSummary();
      }
      if (logBox.scrollTop < 300) showAbove();
      if (isEnd) showBelow();
    });
  },
  { passive: true },
);

followButton.addEventListener("click", showLast);
need("[data-next-error]", HTMLElement, tools).addEventListener("click", showNextError);
need("[data-first]", HTMLElement, tools).addEventListener("click", showFirst);

/** Show the last lines that match the filters, and use the filters in the address and the download. */
const applyFilters = () => {
  failures = 0;
  writeAddress();
  const query = filters();
  const download = need("[data-download]", HTMLAnchorElement, tools);
  download.href = `${tools.dataset.job}/log.txt${query.size ? `?${query}` : ""}`;
  return showLast();
};
const applyLooks = () => {
  logBox.classList.toggle("no-times", !timesBox.checked);
  logBox.classList.toggle("wrap", wrapBox.checked);
};
let typing = 0;
tools.addEventListener("input", (event) => {
  if (event.target === timesBox || event.target === wrapBox) return applyLooks();
  clearTimeout(typing);
  const send = () => {
    marked = [];
    applyFilters();
  };
  typing = setTimeout(send, event.target === searchField ? 350 : 0);
});
tools.addEventListener("submit", (event) => {
  event.preventDefault();
  applyFilters();
});

// A phone has no space for time and replica next to the text.
if (matchMedia("(max-width: 48rem)").matches) {
  timesBox.checked = false;
  wrapBox.checked = true;
}
const replicas = [...replicaField.options].filter(({ value }) => value && value !== "service");
logBox.classList.toggle("one", replicas.length < 2);
applyLooks();
if (marked.length) showAround(marked[0]);
else applyFilters();
