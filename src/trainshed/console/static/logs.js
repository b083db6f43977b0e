// A window on a log: parts are read where the reader is, and at most so many lines are in the page.
"use strict";

(() => {
  const box = document.querySelector("[data-log]");
  const tools = document.querySelector("[data-log-tools]");
  const status = document.querySelector("[data-log-status]");
  const lastButton = tools.querySelector("[data-last]");
  const MOST = 3000, PAGE = 500;
  let earlier = "", later = "", following = true, busy = false, over = false, source = null, asked = 0;
  const seen = new Map();

  const filters = () => {
    const form = new FormData(tools), query = new URLSearchParams();
    for (const name of ["replica", "severity", "search"]) if (form.get(name)) query.set(name, form.get(name));
    return query;
  };

  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const row = ([at, task, severity, text, place, cursor]) => {
    const line = document.createElement("div");
    line.className = `log-line ${severity.toLowerCase()}`;
    line.dataset.place = cursor;
    const time = document.createElement("time");
    const moment = new Date(at);
    time.dateTime = at;
    time.textContent = `${clock.format(moment)}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
    time.title = at;
    const who = document.createElement("span");
    who.className = "log-task";
    who.textContent = task;
    const said = document.createElement("span");
    said.className = "log-text";
    said.textContent = text;
    line.append(time, who, said);
    const [, replica, attempt, n] = place.split("/");
    const old = seen.get(replica);
    if (!old || Number(attempt) > old[0] || (Number(attempt) === old[0] && Number(n) > old[1])) seen.set(replica, [Number(attempt), Number(n)]);
    return line;
  };
  const rows = (lines) => { const all = document.createDocumentFragment(); all.append(...lines.map(row)); return all; };
  const gap = (text) => { const line = document.createElement("div"); line.className = "log-gap"; line.textContent = text; return line; };
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const tell = (text) => { status.textContent = text; };
  const told = () => {
    const count = box.querySelectorAll(".log-line").length;
    if (!count) tell(over ? "No line matches." : "Nothing was written yet.");
    else tell(`${count.toLocaleString()} lines shown${earlier ? ", earlier ones above" : ", from the first line on"}. ${over && !source ? "The log is complete." : following ? "Following." : "Not following: more is written below."}`);
  };

  const get = async (query) => {
    const mine = ++asked;
    const answer = await fetch(`${tools.dataset.job}/lines?${query}`, { headers: { accept: "application/json" } });
    if (mine !== asked) return null;
    if (!answer.ok) { tell((await answer.json()).error.message); return null; }
    return answer.json();
  };

  const press = () => lastButton.setAttribute("aria-pressed", String(following));

  const last = async () => {
    close();
    following = true; press(); busy = true;
    seen.clear();
    const query = filters();
    query.set("limit", PAGE);
    const page = await get(query);
    busy = false;
    if (!page) return;
    box.replaceChildren(rows(page.lines));
    ({ earlier, later, over } = page);
    box.scrollTop = box.scrollHeight;
    if (page.more) tell("Looking further back…");
    told();
    if (page.more && page.lines.length < 50) await above();
    if (!over) open();
  };

  const first = async () => {
    close();
    following = false; press(); busy = true;
    const query = filters();
    query.set("limit", PAGE);
    query.set("from", "1970-01-01T00:00:01Z");
    const page = await get(query);
    busy = false;
    if (!page) return;
    seen.clear();
    box.replaceChildren(rows(page.lines));
    earlier = ""; later = page.later; over = page.over;
    box.scrollTop = 0;
    told();
  };

  const above = async () => {
    if (busy || !earlier) return;
    busy = true;
    const query = filters();
    query.set("before", earlier);
    query.set("limit", PAGE);
    const page = await get(query);
    busy = false;
    if (!page) return;
    const before = box.scrollHeight;
    box.prepend(rows(page.lines));
    box.scrollTop += box.scrollHeight - before;
    earlier = page.earlier;
    if (box.children.length > MOST) {
      // What is far below is read again when it is scrolled to.
      close();
      while (box.children.length > MOST) box.lastChild.remove();
      following = false; press();
      later = [...box.querySelectorAll(".log-line")].at(-1)?.dataset.place || "";
    }
    told();
    if (page.more && page.lines.length < 50) await above();
  };

  const below = async () => {
    if (busy || following || source) return;
    if (!later) return;
    busy = true;
    const query = filters();
    query.set("after", later);
    query.set("limit", PAGE);
    const page = await get(query);
    busy = false;
    if (!page) return;
    box.append(rows(page.lines));
    later = page.later || later;
    if (!page.lines.length && !page.more) { if (!over) last(); return; }
    while (box.children.length > MOST) { box.firstChild.remove(); earlier = box.querySelector(".log-line")?.dataset.place || ""; }
    told();
  };

  const open = () => {
    const query = filters();
    const places = [...seen].map(([replica, [attempt, n]]) => `0/${replica}/${attempt}/${n}`).join(",");
    if (places) query.set("after", places);
    source = new EventSource(`${tools.dataset.job}/follow?${query}`);
    source.addEventListener("lines", (e) => {
      const { lines, skipped } = JSON.parse(e.data);
      const stay = following && atEnd();
      if (skipped) box.append(gap("… more was written than can be shown; scroll up to read it all …"));
      box.append(rows(lines));
      if (stay) {
        while (box.children.length > MOST) { box.firstChild.remove(); earlier = box.querySelector(".log-line")?.dataset.place || ""; }
        box.scrollTop = box.scrollHeight;
      } else while (box.children.length > 2 * MOST) { box.firstChild.remove(); }
      told();
    });
    source.addEventListener("over", () => { close(); over = true; told(); });
    source.onerror = () => { if (source) { close(); setTimeout(() => { if (following && !over) last(); }, 3000); } };
  };
  const close = () => { source?.close(); source = null; };

  let ticking = false;
  box.addEventListener("scroll", () => {
    if (ticking) return;
    ticking = true;
    requestAnimationFrame(() => {
      ticking = false;
      const end = atEnd();
      if (following !== end && !busy && source) { following = end; press(); told(); }
      if (box.scrollTop < 300) above();
      if (end) below();
    });
  }, { passive: true });
  lastButton.addEventListener("click", last);
  tools.querySelector("[data-first]").addEventListener("click", first);
  const refine = () => {
    const query = filters();
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    tools.querySelector("[data-download]").href = `${tools.dataset.job}/log.txt${query.size ? `?${query}` : ""}`;
    last();
  };
  const looks = () => {
    box.classList.toggle("no-times", !tools.times.checked);
    box.classList.toggle("wrap", tools.wrap.checked);
  };
  let typing = 0;
  tools.addEventListener("input", (e) => {
    if (e.target.type === "checkbox") return looks();
    clearTimeout(typing);
    typing = setTimeout(refine, e.target.name === "search" ? 350 : 0);
  });
  tools.addEventListener("submit", (e) => { e.preventDefault(); refine(); });
  addEventListener("pagehide", close);
  looks();
  refine();
})();
