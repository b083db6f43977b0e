// A window on a log: parts are read where the reader is, and at most so many lines are in the page. Lines can
// be marked, copied and linked to.
"use strict";

(() => {
  const box = document.querySelector("[data-log]");
  const tools = document.querySelector("[data-log-tools]");
  const status = document.querySelector("[data-log-status]");
  const marking = document.querySelector("[data-marked]");
  const lastButton = tools.querySelector("[data-last]");
  const MOST = 3000, PAGE = 500, AROUND = 200, FIRST = "1970-01-01T00:00:01Z";
  let earlier = "", later = "", following = true, busy = false, over = false, isOpen = false, asked = 0, failed = 0;
  const seen = new Map();
  // Each replica has a colour of terminals that is no severity's; the first one has none.
  const TINTS = ["", "ink-4", "ink-2", "ink-5", "ink-6"], tinted = new Map();

  const filters = () => {
    const form = new FormData(tools), query = new URLSearchParams();
    for (const name of ["replica", "severity", "search"]) if (form.get(name)) query.set(name, form.get(name));
    return query;
  };
  const asking = (more) => { const query = filters(); for (const [name, value] of Object.entries({ limit: PAGE, ...more })) query.set(name, value); return query; };

  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const row = ([at, task, severity, text, place, cursor, pieces]) => {
    const line = document.createElement("div");
    line.className = `log-line ${severity.toLowerCase()}`;
    line.dataset.place = cursor;
    line.toggleAttribute("data-service", task === "service");
    const moment = new Date(at);
    const time = document.createElement("time");
    time.dateTime = at;
    time.textContent = `${clock.format(moment)}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
    time.title = `${at} – click to mark this line`;
    const who = document.createElement("span");
    if (task !== "service" && !tinted.has(task)) tinted.set(task, TINTS[tinted.size % TINTS.length]);
    who.className = `log-task ${tinted.get(task) ?? ""}`.trim();
    who.textContent = task;
    const said = document.createElement("span");
    said.className = "log-text";
    if (pieces.length)
      for (const [part, classes] of pieces) {
        const span = document.createElement("span");
        span.className = classes;
        span.textContent = part;
        said.append(span);
      }
    else said.textContent = text;
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
    fold();
    const count = box.querySelectorAll(".log-line").length;
    if (!count) tell(over ? "No line matches." : "Nothing was written yet.");
    else tell(`${count.toLocaleString()} lines shown${earlier ? ", earlier ones above" : ", from the first line on"}. ${over && !isOpen ? "The log is complete." : following ? "Following." : "Not following: more is written below."}`);
  };

  // A page of the log; null: another one was asked for meanwhile, or there is none, which is told.
  const get = async (query) => {
    const mine = ++asked;
    let answer, page;
    try {
      answer = await fetch(`${tools.dataset.job}/lines?${query}`, { headers: { accept: "application/json" } });
      page = await answer.json();
    } catch {
      if (mine === asked) tell("The service does not answer; trying again.");
      return null;
    }
    if (mine !== asked) return null;
    if (!answer.ok) { if (answer.status < 500) failed = -1; tell(page.error.message); return null; }
    failed = 0;
    return page;
  };

  const press = () => lastButton.setAttribute("aria-pressed", String(following));
  // After a service that restarts, all that is shown comes from one reading again: no line twice, none left out.
  const again = () => { if (failed >= 0) setTimeout(() => { if (following && !over && !isOpen && !busy) last(); }, Math.min(1000 * 2 ** failed++, 15000)); };

  const show = (page, top) => {
    box.replaceChildren(rows(page.lines));
    ({ later, over } = page);
    earlier = top ? "" : page.earlier;
    paint();
  };

  const last = async () => {
    close();
    following = true; press(); busy = true;
    seen.clear();
    const page = await get(asking({}));
    busy = false;
    if (!page) return again();
    show(page, false);
    box.scrollTop = box.scrollHeight;
    if (page.more) tell("Looking further back…");
    told();
    if (page.more && page.lines.length < 50) await above();
    if (!over) open();
  };

  const first = async () => {
    close();
    following = false; press(); busy = true;
    const page = await get(asking({ from: FIRST }));
    busy = false;
    if (!page) return;
    seen.clear();
    show(page, true);
    box.scrollTop = 0;
    told();
  };

  // The line at a place, with what is around it.
  const around = async (place) => {
    close();
    following = false; press(); busy = true;
    const before = await get(asking({ before: place, limit: AROUND }));
    const from = before && (before.lines.length ? { after: before.lines.at(-1)[5] } : { from: FIRST });
    const page = from && (await get(asking(from)));
    busy = false;
    if (!page) return;
    seen.clear();
    show({ ...page, lines: [...before.lines, ...page.lines], earlier: before.earlier }, !before.earlier);
    const found = lineAt(place);
    if (found) box.scrollTop = found.offsetTop - box.clientHeight / 3;
    told();
    if (!found) tell("The line that the address names is not in this log.");
  };

  // The first error after the line that is marked or on top; from the beginning, if there is none.
  const nextError = async () => {
    const top = box.getBoundingClientRect().top;
    const from = marked[0] || [...box.querySelectorAll(".log-line")].find((line) => line.getBoundingClientRect().bottom > top + 1)?.dataset.place;
    const query = { severity: "ERROR", limit: 1, search: "" };
    let page = await get(asking({ ...query, ...(from ? { after: from } : { from: FIRST }) }));
    if (page && from && !page.lines.length && !page.more) page = await get(asking({ ...query, from: FIRST }));
    if (!page) return;
    if (!page.lines.length) return tell(page.more ? "No error among the next 20,000 lines." : "No line is an error.");
    const place = page.lines[0][5];
    tools.severity.value = tools.search.value = "";
    marked = [place, place];
    write();
    await around(place);
  };

  // What the service wrote while it made the environment, once the program has begun.
  let unfolded = false;
  const fold = () => {
    box.querySelector("[data-fold]")?.remove();
    const all = [...box.querySelectorAll(".log-line")], begins = all.findIndex((line) => !line.hasAttribute("data-service"));
    const built = unfolded || begins < 4 || filters().size || address.get("line") ? [] : all.slice(0, begins);
    for (const line of box.querySelectorAll(".is-folded")) if (!built.includes(line)) line.classList.remove("is-folded");
    if (!built.length) return;
    for (const line of built) line.classList.add("is-folded");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "log-fold";
    button.dataset.fold = "";
    button.textContent = `${built.length} lines of how the environment was made`;
    button.addEventListener("click", () => { unfolded = true; fold(); });
    box.prepend(button);
  };

  const above = async () => {
    if (busy || !earlier) return;
    busy = true;
    const page = await get(asking({ before: earlier }));
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
    paint();
    told();
    if (page.more && page.lines.length < 50) await above();
  };

  const below = async () => {
    if (busy || following || isOpen || !later) return;
    busy = true;
    const page = await get(asking({ after: later }));
    busy = false;
    if (!page) return;
    box.append(rows(page.lines));
    later = page.later || later;
    if (!page.lines.length && !page.more) { if (!over) last(); return; }
    trim(MOST);
    paint();
    told();
  };

  const trim = (most) => { if (box.children.length <= most) return; while (box.children.length > most) box.firstChild.remove(); earlier = box.querySelector(".log-line")?.dataset.place || ""; };

  const open = () => {
    const query = filters();
    const places = [...seen].map(([replica, [attempt, n]]) => `0/${replica}/${attempt}/${n}`).join(",");
    if (places) query.set("after", places);
    query.set("lines", "true");
    isOpen = true;
    stream.add(`/events${tools.dataset.job}/logs?${query}`, {
      lines: ({ lines, skipped }) => {
        const stay = following && atEnd();
        if (skipped) box.append(gap("… more was written than can be shown; scroll up to read it all …"));
        box.append(rows(lines));
        if (stay) { trim(MOST); box.scrollTop = box.scrollHeight; } else trim(2 * MOST);
        told();
      },
      over: () => { close(); over = true; told(); },
      broken: () => { isOpen = false; if (following) tell("The service does not answer; trying again."); again(); },
      resume: open,
    });
  };
  const close = () => { if (isOpen) { isOpen = false; stream.add(); } };

  // Marked lines: from one place to another, also in the address.
  const address = new URLSearchParams(location.search);
  let marked = address.get("line") ? [address.get("line"), address.get("to") || address.get("line")] : [];
  const lineAt = (place) => box.querySelector(`.log-line[data-place="${CSS.escape(place)}"]`);
  const between = () => {
    const all = [...box.querySelectorAll(".log-line")], ends = marked.map((place) => all.findIndex((line) => line.dataset.place === place));
    return !marked.length || ends.includes(-1) ? [] : all.slice(Math.min(...ends), Math.max(...ends) + 1);
  };
  const paint = () => {
    for (const line of box.querySelectorAll(".is-marked")) line.classList.remove("is-marked");
    const found = between();
    for (const line of found) line.classList.add("is-marked");
    marking.hidden = !found.length;
    marking.querySelector("[data-count]").textContent = `${found.length.toLocaleString()} ${found.length === 1 ? "line" : "lines"} marked`;
  };
  const write = () => {
    const query = filters();
    if (marked.length) { query.set("line", marked[0]); if (marked[1] !== marked[0]) query.set("to", marked[1]); }
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  };
  const mark = (places) => { marked = places; paint(); write(); };
  box.addEventListener("click", (e) => {
    const line = e.target.closest("time")?.closest(".log-line");
    if (!line) return;
    const place = line.dataset.place;
    mark(e.shiftKey && marked.length ? [marked[0], place] : marked[0] === place && marked[1] === place ? [] : [place, place]);
    getSelection()?.removeAllRanges();
  });
  const done = (button, text) => { const old = button.dataset.label; button.textContent = text; setTimeout(() => { button.textContent = old; }, 1600); };
  marking.addEventListener("click", async (e) => {
    const button = e.target.closest("button");
    if (!button) return;
    if ("unmark" in button.dataset) return mark([]);
    const words = (line) => `${tools.times.checked ? `${line.querySelector("time").dateTime} ` : ""}${line.querySelector(".log-text").textContent}`;
    const text = "link" in button.dataset ? location.href : between().map(words).join("\n");
    done(button, (await copied(text)) ? "Copied" : "Not allowed");
  });

  // The same by keys: a line is chosen, and read out, before it is marked.
  const said = document.querySelector("[data-log-said]");
  let chosen = "";
  const choose = (line) => {
    box.querySelector(".is-chosen")?.classList.remove("is-chosen");
    chosen = line.dataset.place;
    line.classList.add("is-chosen");
    line.scrollIntoView({ block: "nearest" });
    said.textContent = [line.querySelector("time"), line.querySelector(".log-task"), line.querySelector(".log-text")].map((part) => part.textContent).join(" ");
  };
  const step = async (by, more) => {
    const from = chosen && lineAt(chosen);
    const top = box.getBoundingClientRect().top;
    const next = (from) => { do from = by > 0 ? from.nextElementSibling : from.previousElementSibling; while (from && !from.matches(".log-line:not(.is-folded)")); return from; };
    let line = from ? next(from) : [...box.querySelectorAll(".log-line")].find((each) => each.getBoundingClientRect().bottom > top + 1);
    if (!line && from) { await (by > 0 ? below() : above()); line = next(from); }
    if (!line) return;
    choose(line);
    if (more) mark([marked[0] || (from || line).dataset.place, chosen]);
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog")) return;
    const does = {
      j: () => step(1), k: () => step(-1), J: () => step(1, true), K: () => step(-1, true),
      m: () => chosen && mark(marked[0] === chosen && marked[1] === chosen ? [] : [chosen, chosen]),
      Escape: () => mark([]),
    }[e.key];
    if (does) { e.preventDefault(); does(); }
  });

  let ticking = false;
  box.addEventListener("scroll", () => {
    if (ticking) return;
    ticking = true;
    requestAnimationFrame(() => {
      ticking = false;
      const end = atEnd();
      if (following !== end && !busy && isOpen) { following = end; press(); told(); }
      if (box.scrollTop < 300) above();
      if (end) below();
    });
  }, { passive: true });
  lastButton.addEventListener("click", last);
  tools.querySelector("[data-next-error]").addEventListener("click", nextError);
  tools.querySelector("[data-first]").addEventListener("click", first);
  const refine = () => {
    failed = 0;
    write();
    const query = filters();
    tools.querySelector("[data-download]").href = `${tools.dataset.job}/log.txt${query.size ? `?${query}` : ""}`;
    return last();
  };
  const looks = () => {
    box.classList.toggle("no-times", !tools.times.checked);
    box.classList.toggle("wrap", tools.wrap.checked);
  };
  let typing = 0;
  tools.addEventListener("input", (e) => {
    if (e.target.type === "checkbox") return looks();
    clearTimeout(typing);
    typing = setTimeout(() => { marked = []; refine(); }, e.target.name === "search" ? 350 : 0);
  });
  tools.addEventListener("submit", (e) => { e.preventDefault(); refine(); });
  // A phone has no place beside the text for when and who.
  if (matchMedia("(max-width: 48rem)").matches) { tools.times.checked = false; tools.wrap.checked = true; }
  box.classList.toggle("one", [...tools.replica.options].filter(({ value }) => value && value !== "service").length < 2);
  looks();
  if (marked.length) around(marked[0]);
  else refine();
})();
