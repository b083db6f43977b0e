// A window on a log: parts are read where the reader is, and at most so many lines are in the page. Lines can be
// marked, copied and linked to.
"use strict";

/**
 * A line as `console/pages/logs.py` gives it.
 * @typedef {[at: string, task: string, severity: string, text: string, place: string, cursor: string,
 *   pieces: [text: string, classes: string][]]} LogRow
 */

/**
 * @typedef {object} LogPage
 * @property {LogRow[]} lines
 * @property {string} earlier the cursor that lines before these are asked for with; "" = there are none
 * @property {string} later
 * @property {boolean} over whether the log ends here
 * @property {boolean} more whether nothing but time has kept the service from reading further
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

// Cursors of what is read next above and below; "" = there is nothing.
let earlier = "";
let later = "";
let isFollowing = true;
let isBusy = false;
let isOver = false;
// The question for new lines, which is asked anew after each answer; null: the page shows what was read.
/** @type {AbortController | null} */
let asking = null;
// Pages that were asked for: an answer to an older question is dropped.
let requests = 0;
// Failures of the service one after the other; -1: it refused, and is not asked again.
let failures = 0;
// The last line of each replica that was shown, [attempt, number].
/** @type {Map<string, [number, number]>} */
const seen = new Map();
// Each replica has a colour of terminals that is no severity's; the first one has none.
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
  remember(place);
  return line;
};

/**
 * Take note of the place of a line. Return whether others of its replica are missing before it.
 * @param {string} place
 */
const remember = (place) => {
  const [replica, ...numbers] = place.split("/");
  const [attempt, number] = numbers.map(Number);
  const last = seen.get(replica);
  const isLater = !last || attempt > last[0] || (attempt === last[0] && number > last[1]);
  if (isLater) seen.set(replica, [attempt, number]);
  return !!last && attempt === last[0] && number > last[1] + 1;
};

const linesShown = () => pickAll(".log-line", HTMLElement, logBox);
const isAtEnd = () => logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;

/** @param {string} text */
const say = (text) => {
  logStatus.textContent = text;
};
/** Say what is shown. */
const sayShown = () => {
  fold();
  const count = linesShown().length;
  if (!count) return say(isOver ? "No line matches." : "No output yet.");
  const from = earlier ? "earlier lines above" : "from the first line";
  let state = isFollowing ? "Following." : "Not following: newer lines are below.";
  if (isOver && !asking) state = "The log is complete.";
  say(`${count.toLocaleString()} lines shown, ${from}. ${state}`);
};

/** Return what the reader looks for, as the address has it. */
const filters = () => {
  const query = new URLSearchParams();
  for (const { name, value } of [replicaField, severityField, searchField])
    if (value) query.set(name, value);
  return query;
};

/**
 * Return a page of the log; null: another one was asked for meanwhile, or there is none, and it is said why.
 * @param {Record<string, string | number>} more parameters besides the filters
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
    if (mine === requests) say("The service does not respond. Retrying…");
    return null;
  } finally {
    if (mine === requests) isBusy = false;
  }
  if (mine !== requests) return null;
  if (!answer.ok) {
    if (answer.status < 500) failures = -1;
    say(page.error.message);
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

// After a service that restarts, all that is shown comes from one reading again: no line twice, none left out.
const tryAgain = () => {
  if (failures < 0) return;
  const again = () => {
    if (isFollowing && !isOver && !asking && !isBusy) showLast();
  };
  setTimeout(again, Math.min(1000 * 2 ** failures++, 15000));
};

/**
 * Show a page in place of what is shown.
 * @param {LogPage} page
 * @param {boolean} isFirst whether nothing is above it
 */
const show = (page, isFirst) => {
  seen.clear();
  logBox.replaceChildren(...page.lines.map(showLine));
  ({ later, over: isOver } = page);
  earlier = isFirst ? "" : page.earlier;
  paintMarked();
};

const showLast = async () => {
  endStream();
  follow(true);
  isOver = false;
  const page = await fetchPage({});
  if (!page) return tryAgain();
  show(page, false);
  logBox.scrollTop = logBox.scrollHeight;
  if (page.more) say("Searching older lines…");
  sayShown();
  if (page.more && page.lines.length < 50) await showAbove();
  // Somebody may have gone elsewhere meanwhile.
  if (isFollowing && !isOver) beginStream();
};

const showFirst = async () => {
  endStream();
  follow(false);
  const page = await fetchPage({ from: BEGINNING });
  if (!page) return;
  show(page, true);
  logBox.scrollTop = 0;
  sayShown();
};

/**
 * Show the line at a place, with what is around it.
 * @param {string} place
 */
const showAround = async (place) => {
  endStream();
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
  sayShown();
  if (!line) say("The line in the address is not in this log.");
};

/** Return the first line that is not above the window. */
const topLine = () => {
  const { top } = logBox.getBoundingClientRect();
  return linesShown().find((line) => line.getBoundingClientRect().bottom > top + 1);
};

/** Show the first error after the line that is marked or on top; from the beginning, if there is none. */
const showNextError = async () => {
  const from = marked[0] || topLine()?.dataset.place;
  const query = { severity: "ERROR", limit: 1, search: "" };
  const start = { from: BEGINNING };
  let page = await fetchPage({ ...query, ...(from ? { after: from } : start) });
  if (page && from && !page.lines.length && !page.more)
    page = await fetchPage({ ...query, ...start });
  if (!page) return;
  if (!page.lines.length)
    return say(page.more ? "No error among the next 20,000 lines." : "The log has no errors.");
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
    // What is far below is read again when it is scrolled to.
    endStream();
    while (logBox.children.length > MAX_LINES) logBox.lastChild?.remove();
    follow(false);
    later = linesShown().at(-1)?.dataset.place ?? "";
  }
  paintMarked();
  sayShown();
  if (page.more && page.lines.length < 50) await showAbove();
};

const showBelow = async () => {
  if (isBusy || isFollowing || asking || !later) return;
  const page = await fetchPage({ after: later });
  if (!page) return;
  logBox.append(...page.lines.map(showLine));
  later = page.later || later;
  if (!page.lines.length && !page.more) {
    if (!isOver) await showLast();
    return;
  }
  trim(MAX_LINES);
  paintMarked();
  sayShown();
};

/**
 * Remove what is above the last lines.
 * @param {number} most
 */
const trim = (most) => {
  if (logBox.children.length <= most) return;
  while (logBox.children.length > most) logBox.firstChild?.remove();
  earlier = pick(".log-line", HTMLElement, logBox)?.dataset.place ?? "";
};

// What the service wrote while it made the environment is folded once the program has begun.
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
  const button = made('<button type="button" class="log-fold" data-fold></button>');
  button.textContent = `${folded.length} lines about the preparation of the environment`;
  button.addEventListener("click", () => {
    isUnfolded = true;
    fold();
  });
  logBox.prepend(button);
};

const ERRORS = ["ERROR", "CRITICAL", "ALERT", "EMERGENCY"];
/**
 * Return whether a line meets the severity and the text that are looked for.
 * @param {LogRow} line
 */
const isWanted = ([, , severity, text]) => {
  const isWarning = severityField.value === "WARNING" && severity === "WARNING";
  const isBad = !severityField.value || isWarning || ERRORS.includes(severity);
  return isBad && text.toLowerCase().includes(searchField.value.trim().toLowerCase());
};

/**
 * Show lines that were written meanwhile.
 * @param {LogRow[]} lines
 */
const append = (lines) => {
  const stays = isFollowing && isAtEnd();
  const gap = "… some new lines are not shown; scroll up to read all lines …";
  const isGap = lines.map(({ 4: place }) => remember(place)).includes(true);
  if (isGap) logBox.append(element("div", "log-gap", gap));
  logBox.append(...lines.filter(isWanted).map(showLine));
  trim(stays ? MAX_LINES : 2 * MAX_LINES);
  if (stays) logBox.scrollTop = logBox.scrollHeight;
  sayShown();
};

/** Have what comes after the last line read as its reader scrolls. */
const stopAsking = () => {
  asking = null;
  later = linesShown().at(-1)?.dataset.place ?? later;
};

/** Ask for new lines, one time after the other, until the log is over or nobody looks at the page. */
const beginStream = async () => {
  endStream();
  const { signal } = (asking = new AbortController());
  const headers = { accept: "application/json" };
  while (!document.hidden && !signal.aborted) {
    const places = [...seen].map(([replica, [attempt, n]]) => `${replica}/${attempt}/${n}`);
    const query = new URLSearchParams({ replica: replicaField.value, after: places.join(",") });
    const answer = await fetch(`${tools.dataset.job}/lines/new?${query}`, { headers, signal })
      .then(async (response) => response.ok && response.json())
      .catch(() => null);
    if (signal.aborted) return;
    if (!answer) {
      stopAsking();
      if (isFollowing) say("The service does not respond. Retrying…");
      return tryAgain();
    }
    isOver = answer.over;
    if (isOver) asking = null;
    append(answer.lines);
    if (isOver) return stopAsking();
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
  }
};
const endStream = () => {
  asking?.abort();
  asking = null;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden) asking?.abort();
  else if (asking) beginStream();
});

// Marked lines: from one place to another, also in the address; [] = none.
const address = new URLSearchParams(location.search);
const linked = address.get("line");
/** @type {string[]} */
let marked = linked ? [linked, address.get("to") || linked] : [];

/** @param {string} place */
const lineAt = (place) => pick(`.log-line[data-place="${CSS.escape(place)}"]`, HTMLElement, logBox);

/** Return the marked lines, if both ends of them are shown. */
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
 * Mark a line alone, or nothing if it is marked alone already.
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

// The same by keys: a line is chosen, and read out, before it is marked.
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
 * Return the line above or below one.
 * @param {HTMLElement} line
 * @param {1 | -1} by
 */
const neighbour = (line, by) => {
  const lines = pickAll(".log-line:not(.is-folded)", HTMLElement, logBox);
  return lines[lines.indexOf(line) + by];
};
/**
 * Choose the line above or below the chosen one.
 * @param {1 | -1} by
 * @param {boolean} [marks] whether all lines on the way are marked
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
      if (isFollowing !== isEnd && !isBusy && asking) {
        follow(isEnd);
        sayShown();
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

/** Show the last lines that the filters leave, and have the address and the download say the same. */
const refine = () => {
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
    refine();
  };
  typing = setTimeout(send, event.target === searchField ? 350 : 0);
});
tools.addEventListener("submit", (event) => {
  event.preventDefault();
  refine();
});

// A phone has no place beside the text for when and who.
if (matchMedia("(max-width: 48rem)").matches) {
  timesBox.checked = false;
  wrapBox.checked = true;
}
const replicas = [...replicaField.options].filter(({ value }) => value && value !== "service");
logBox.classList.toggle("one", replicas.length < 2);
applyLooks();
if (marked.length) showAround(marked[0]);
else refine();
