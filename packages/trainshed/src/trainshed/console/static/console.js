// What all pages do: times that go on, keys, copying, and parts that change while they are looked at.
"use strict";

const seconds = (n) => {
  n = Math.max(0, n);
  if (n < 10) return `${n.toFixed(0)}s`;
  for (const [unit, size, below, small] of [["d", 86400, 3600, "h"], ["h", 3600, 60, "m"], ["m", 60, 1, "s"]])
    if (n >= size) return `${Math.floor(n / size)}${unit} ${String(Math.floor((n % size) / below)).padStart(2, "0")}${small}`;
  return `${Math.floor(n)}s`;
};

const ages = (root = document) => {
  const now = Date.now() / 1000;
  for (const el of root.querySelectorAll("[data-age]")) {
    const at = Number(el.dataset.age);
    el.textContent = at ? seconds(now - at).replace(/ .*/, "") + (el.dataset.suffix || "") : "–";
    el.title = at ? new Date(at * 1000).toLocaleString() : "";
  }
  for (const el of root.querySelectorAll("[data-since]")) {
    const at = Date.parse(el.dataset.since) / 1000;
    el.textContent = at ? seconds(now - at) : "–";
  }
  for (const el of root.querySelectorAll("[data-clock]")) {
    const at = new Date(el.dataset.clock);
    el.textContent = at.toLocaleTimeString([], { hourCycle: "h23" });
    el.title = at.toLocaleString();
    el.removeAttribute("data-clock");
  }
};

const made = (html) => {
  const box = document.createElement("template");
  box.innerHTML = html;
  return box.content.firstElementChild;
};

const SCROLLS = ".log, .table-frame, .code, .story";
const wayOf = (el) => el.getAttribute("href") || el.name || el.ariaLabel || el.textContent;
const put = (id, html) => {
  const old = document.getElementById(id);
  const fresh = made(html);
  if (!fresh || !old || old.isEqualNode(fresh)) return;
  // What somebody is about to use stays as it is until he is done.
  if (old.querySelector("details.menu[open], :popover-open")) return;
  const kept = [...old.querySelectorAll("details")].map((d) => d.open);
  [...fresh.querySelectorAll("details")].forEach((d, i) => { if (i in kept) d.open = kept[i]; });
  const scrolled = [...old.querySelectorAll(SCROLLS)].map((el) => [el.scrollLeft, el.scrollTop]);
  for (const box of old.querySelectorAll("[name=job]:checked")) for (const same of fresh.querySelectorAll("[name=job]")) same.checked ||= same.value === box.value;
  if (old.classList.contains("is-selected")) fresh.classList.add("is-selected");
  const focused = old.contains(document.activeElement) && document.activeElement;
  const way = focused && wayOf(focused);
  old.replaceWith(fresh);
  [...fresh.querySelectorAll(SCROLLS)].forEach((el, i) => { if (scrolled[i]) [el.scrollLeft, el.scrollTop] = scrolled[i]; });
  if (way) [...fresh.querySelectorAll("a, button, select, input, [tabindex]")].find((el) => wayOf(el) === way)?.focus();
  ages(fresh.parentElement);
  fresh.dispatchEvent(new CustomEvent("part", { bubbles: true }));
};

const order = (id, wanted, parts) => {
  const list = document.getElementById(id);
  if (!list) return;
  // New ones come first; those that were loaded by scrolling stay.
  for (const name of [...wanted].reverse())
    if (!document.getElementById(name) && parts[name]) {
      const place = wanted.slice(wanted.indexOf(name) + 1).map((n) => document.getElementById(n)).find(Boolean);
      const fresh = made(parts[name]);
      place ? place.before(fresh) : wanted.indexOf(name) === 0 ? list.prepend(fresh) : list.append(fresh);
      list.querySelector(":scope > .none")?.remove();
    }
  ages(list);
};

// Rows that were deleted, or do not meet the filter any more. Those below the last wanted one were loaded by
// scrolling: nothing is told of them, unless the list has no more than is told.
const members = (list) => [...(list.closest("table") || list).querySelectorAll("[data-row][id]")];
const gone = (list, wanted, whole) => {
  const all = members(list);
  const last = whole ? all.length : all.findLastIndex((row) => wanted.includes(row.id));
  return all.filter((row, at) => at <= last && !wanted.includes(row.id));
};

// Rows that come or go move the others. Who is about to use one of those is asked first.
const held = new Map();
const isUsed = (list) => members(list).some((row) => row.matches(":hover, :focus-within, .is-selected"));
const settle = (id, { wanted, parts, whole }) => {
  const list = document.getElementById(id), lost = gone(list, wanted, whole);
  for (const row of lost) row.remove();
  order(id, wanted, parts);
  held.delete(id);
  if (lost.length && !members(list).length) location.reload();
};
const arrive = (id, wanted, parts, whole) => {
  const list = document.getElementById(id);
  if (!list) return;
  const told = { wanted, whole, parts: { ...held.get(id)?.parts, ...parts } };
  const fresh = wanted.filter((name) => !document.getElementById(name)), lost = gone(list, wanted, whole);
  const button = document.querySelector(`[data-arrivals="${id}"]`);
  const moves = (fresh.length && scrollY < 40) || lost.length;
  if (!button || !moves || !members(list).length || !isUsed(list)) {
    settle(id, told);
    if (button) button.hidden = true;
    return;
  }
  held.set(id, told);
  for (const row of members(list)) row.classList.toggle("is-gone", lost.includes(row));
  const news = [fresh.length && `Show ${fresh.length} new`, lost.length && `Remove ${lost.length} that left this list`];
  button.textContent = news.filter(Boolean).join(", ");
  button.hidden = false;
};
document.addEventListener("click", (e) => {
  const button = e.target.closest("[data-arrivals]");
  const kept = button && held.get(button.dataset.arrivals);
  if (!kept) return;
  settle(button.dataset.arrivals, kept);
  button.hidden = true;
});

// The one event stream of a page, which is open while the page is looked at. What a page adds to it, as the
// lines of a log, comes from another address with handlers of its own.
const stream = (() => {
  const banner = document.querySelector("[data-live]");
  let address = document.body.dataset.events, added = null, source = null, trouble = 0, ended = false;
  const say = (text, link) => {
    banner.textContent = text;
    if (link) { const way = document.createElement("a"); [way.href, way.textContent] = link; banner.append(" ", way); }
    banner.hidden = false;
  };
  const close = () => { source?.close(); source = null; };
  const open = () => {
    const from = added?.address || address;
    if (!from || !window.EventSource || source || ended || document.hidden) return;
    const mine = (source = new EventSource(from));
    source.addEventListener("parts", (e) => {
      const { parts, lists, whole, first, build } = JSON.parse(e.data);
      // The service was changed meanwhile: what it sends belongs to other styles and scripts.
      if (build !== document.body.dataset.build) return location.reload();
      if (!first && document.querySelector(".empty") && Object.values(lists).some((ids) => ids.length)) return location.reload();
      for (const [id, ids] of Object.entries(lists)) arrive(id, ids, parts, whole.includes(id));
      for (const [id, html] of Object.entries(parts)) put(id, html);
    });
    source.addEventListener("gone", (e) => {
      const { message, signedOut } = JSON.parse(e.data);
      ended = true;
      clearTimeout(trouble);
      close();
      say(message, signedOut ? [`/login?next=${encodeURIComponent(location.pathname + location.search)}`, "Sign in"] : ["/", "To the jobs"]);
    });
    for (const name of ["lines", "over"]) source.addEventListener(name, (e) => added?.[name](JSON.parse(e.data)));
    source.onopen = () => { clearTimeout(trouble); trouble = 0; banner.hidden = true; };
    source.onerror = () => {
      if (mine !== source) return;
      // Each attempt fails anew, and what is told counts from the first.
      trouble ||= setTimeout(() => say("The service does not answer; trying again."), 3000);
      // Not left to the browser, which gives up at some errors and takes its own time at others.
      close();
      const broken = added?.broken;
      if (broken) { added = null; open(); broken(); }
      else setTimeout(open, 2000);
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (added) added.resume();
    else open();
  });
  addEventListener("pagehide", close);
  return {
    open,
    // Of this page at another address.
    move: (to) => { address = to; if (!added && source) { close(); open(); } },
    // More than the page's own parts: handlers `lines` and `over`; `broken` when it does not come any more,
    // `resume` when the page is looked at again. Without an address the page's own parts alone.
    add: (from, handlers) => { close(); added = from ? { address: from, ...handlers } : null; open(); },
  };
})();

const rows = () => [...document.querySelectorAll("[data-row]")];
const select = (step) => {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((r) => r.classList.contains("is-selected"));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  all[at]?.classList.remove("is-selected");
  next.classList.add("is-selected");
  next.querySelector("a")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};

let prefix = 0;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog[open], [contenteditable]")) {
    if (e.key === "Escape" && e.target.closest("input")) e.target.blur();
    return;
  }
  const behind = Date.now() - prefix < 1200;
  prefix = 0;
  if (behind) {
    const link = document.querySelector(`[data-keys="g ${CSS.escape(e.key)}"]`);
    if (link) { e.preventDefault(); link.click(); }
    return;
  }
  const does = {
    "/": () => { const s = document.querySelector("[data-search]"); s?.focus(); s?.select(); },
    j: () => select(1),
    k: () => select(-1),
    g: () => { prefix = Date.now(); },
    c: () => document.querySelector('[data-keys="c"]')?.click(),
    t: () => switchTheme(),
    "?": () => document.getElementById("help")?.showModal(),
  }[e.key];
  if (does) { e.preventDefault(); does(); }
});

// Browsers lend the clipboard to pages of TLS or of this machine; elsewhere a selection does it.
const copied = async (text) => {
  try { await navigator.clipboard.writeText(text); return true; }
  catch {
    const box = document.createElement("textarea"), focused = document.activeElement;
    box.value = text; document.body.append(box); box.select();
    const done = document.execCommand("copy");
    box.remove(); focused?.focus();
    return done;
  }
};

document.addEventListener("click", async (e) => {
  if (e.target.closest("[data-theme-switch]")) switchTheme();
  if (e.target.closest("[data-help]")) document.getElementById("help").showModal();
  const copy = e.target.closest("[data-copy]");
  if (copy) {
    copy.textContent = (await copied(copy.parentElement.querySelector("code").textContent)) ? "Copied" : "Not allowed";
    setTimeout(() => { copy.textContent = "Copy"; }, 1600);
  }
  const address = e.target.closest("[data-copy-address]");
  if (address) address.textContent = (await copied(location.href)) ? "Copied" : "Not allowed";
  for (const menu of document.querySelectorAll("details.menu[open]"))
    if (!menu.contains(e.target)) menu.open = false;
});

const sent = new Map();
// Back from where it led.
addEventListener("pageshow", () => sent.clear());
document.addEventListener("submit", (e) => {
  // A double click on what submits a job is meant once, also where the answer takes its time and the form was
  // put anew meanwhile.
  if (e.target.method !== "post") return;
  const last = sent.get(e.target.action);
  if (Date.now() - (last || 0) < 10000) e.preventDefault();
  else sent.set(e.target.action, Date.now());
});

document.addEventListener("change", (e) => e.target.closest("form[data-now]")?.requestSubmit());

// A file of this machine is put into a field, where it can be read before it is sent.
document.addEventListener("change", async ({ target }) => {
  if (!target.dataset.into || !target.files.length) return;
  const field = target.form.elements[target.dataset.into];
  field.value = await target.files[0].text();
  field.dispatchEvent(new Event("input", { bubbles: true }));
});

// A click anywhere on a row opens it.
document.addEventListener("click", (e) => {
  const row = e.target.closest("tr[data-row]");
  if (!row || e.target.closest("a, button, input, label, summary") || String(getSelection())) return;
  row.querySelector("th a")?.click();
});

let typing = 0;
document.addEventListener("input", (e) => {
  // Other fields of the form are sent when somebody asks for it.
  const form = e.target.matches("[data-search]") && e.target.closest('form[role="search"]');
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => form.requestSubmit(), 500);
});

// What was left empty does not stand in the address.
document.addEventListener("formdata", (e) => {
  if (e.target.method !== "get") return;
  const filled = [...e.formData].filter(([, value]) => value !== "");
  for (const name of [...e.formData.keys()]) e.formData.delete(name);
  for (const [name, value] of filled) e.formData.append(name, value);
});

// Rows that were loaded by scrolling are kept up to date as well.
const MOST_ROWS = 300;
document.addEventListener("htmx:afterSwap", () => {
  ages();
  const list = document.querySelector("[data-rows]"), count = list?.closest("table").querySelectorAll("[data-row]").length;
  const address = document.body.dataset.events;
  if (address && count) stream.move(`${address}${address.includes("?") ? "&" : "?"}rows=${Math.min(count, MOST_ROWS)}`);
});
// Lines by severity, of all jobs that a search has come to so far.
document.addEventListener("htmx:afterSwap", () => {
  const boxes = document.querySelectorAll("[data-histogram] > div"), sums = {};
  for (const hits of document.querySelectorAll("[data-counts]"))
    for (const [level, count] of Object.entries(JSON.parse(hits.dataset.counts))) sums[level] = (sums[level] || 0) + count;
  const all = Object.values(sums).reduce((a, b) => a + b, 0);
  for (const box of boxes) {
    const bar = box.querySelector("[class^=level-]"), count = sums[bar.getAttribute("class").slice(6)] || 0;
    box.querySelector("dd").textContent = count;
    bar.setAttribute("width", all ? (100 * count) / all : 0);
  }
});
// Views of the list of jobs: addresses that this browser keeps by the names that somebody gave them.
const views = (box) => {
  const saved = JSON.parse(localStorage.getItem("views") || "{}");
  const keep = () => { localStorage.setItem("views", JSON.stringify(saved)); views(box); };
  const button = (text, name, does) => { const b = made('<button class="link" type="button"></button>'); b.textContent = text; b.ariaLabel = name; b.onclick = does; return b; };
  const tags = Object.entries(saved).flatMap(([name, address]) => {
    const link = made('<a class="tag"></a>');
    [link.textContent, link.href] = [name, address];
    if (address === location.search) link.ariaCurrent = "true";
    return [link, button("×", `Forget ${name}`, () => { delete saved[name]; keep(); })];
  });
  if (location.search && !Object.values(saved).includes(location.search))
    tags.push(button("Save this view", "Save this view", () => { const name = prompt("Name of this view"); if (name) { saved[name] = location.search; keep(); } }));
  box.replaceChildren(...tags);
  box.hidden = !tags.length;
};
document.querySelectorAll("[data-views]").forEach(views);
// From a job's page to what it is compared with.
const markedJob = document.querySelector(`[name="job"][value="${CSS.escape(new URLSearchParams(location.search).get("mark") || "")}"]`);
if (markedJob) markedJob.checked = true;
ages();
setInterval(ages, 1000);
// On a phone both may be wider than it.
for (const el of document.querySelectorAll(".bar nav, .tabs")) {
  const here = el.querySelector("[aria-current]");
  if (here) el.scrollLeft = here.offsetLeft - el.offsetLeft - (el.clientWidth - here.offsetWidth) / 2;
}
stream.open();
const search = document.querySelector('form[role="search"] [data-search]');
if (search?.value) { search.focus(); search.setSelectionRange(search.value.length, search.value.length); }
