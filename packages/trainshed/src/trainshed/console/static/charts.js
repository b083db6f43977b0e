// Charts of what replicas use, and of what programs measured.
"use strict";

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const palette = () => ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"].map((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const bytes = (n) => {
  if (n == null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) { if (Math.abs(n) < 1024) return `${n >= 100 || unit === "B" ? n.toFixed(0) : n.toFixed(1)} ${unit}`; n /= 1024; }
  return `${n.toFixed(1)} TiB`;
};
const plain = (n) => (n == null ? "–" : Math.abs(n) >= 1e5 || (n && Math.abs(n) < 1e-3) ? n.toExponential(2) : String(Number(n.toPrecision(4))));
const share = (n) => (n == null ? "–" : `${Math.round(n * 100)} %`);

// One chart of several lines over common places. `lines`: [name, values].
const POWERS = [...Array(50).keys()].map((n) => 2 ** n);
const draw = (box, at, lines, { value = plain, time = true, points = false, label = "", zero = false, log = false, together = "" } = {}) => {
  const colours = palette();
  const range = together && zoomed.get(together);
  box.uplot?.destroy();
  const axis = { stroke: ink("--soft"), grid: { stroke: ink("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  box.uplot = new uPlot({
    width: Math.max(box.clientWidth, 200), height: 160,
    cursor: { y: false, points: { size: 6 }, ...(together ? { sync: { key: together }, dataIdx: nearest } : {}) },
    hooks: together ? { setSelect: [(u) => { const { left, width } = u.select; if (width) zoom(together, u.posToVal(left, "x"), u.posToVal(left + width, "x")); }] } : {},
    legend: { live: true },
    scales: { x: { time }, y: log ? { distr: 3 } : zero ? { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } : {} },
    axes: [time ? { ...axis, size: 28, values: (u, all) => all.map((t) => clock.format(new Date(t * 1000))), space: 90 } : { ...axis, size: 28, space: 70, incrs: [1, 2, 5].flatMap((n) => [...Array(12).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b) }, { ...axis, size: 68, ...(value === bytes ? { incrs: POWERS } : {}), values: (u, all) => all.map((v) => (v == null ? "" : value(v))) }],
    series: [{ label: label || (time ? "Time" : "Step"), value: (u, v) => (v == null ? "" : time ? clock.format(new Date(v * 1000)) : plain(v)) },
      ...lines.map(([name, , form], i) => ({ label: name, paths: form === "points" ? () => null : form === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined, stroke: colours[i % colours.length], width: 1.5, points: { show: form === "points" || points || at.length < 12, size: 6, fill: form === "points" ? colours[i % colours.length] : undefined }, spanGaps: Boolean(together), value: (u, v) => (v == null ? "" : value(v)), dash: i >= colours.length ? [4, 3] : undefined }))],
  }, [at, ...lines.map(([, values]) => values)], box);
  if (range) box.uplot.setScale("x", { min: range[0], max: range[1] });
  if (together) box.uplot.over.addEventListener("dblclick", () => zoom(together));
};
// Lines have values at places of their own: the cursor shows the nearest of each.
const nearest = (u, series, at) => {
  const values = u.data[series];
  for (let far = 0; far < values.length; far++)
    for (const place of [at - far, at + far]) if (values[place] != null) return place;
  return at;
};

// What is shown of charts that count the same, by what they count: [first, last]. What is near is asked for
// anew, and so is a smooth line: the values of the page are the extremes of many.
const zoomed = new Map();
const zoom = (label, first, last) => {
  if (String(zoomed.get(label)) === String(first == null ? undefined : [first, last])) return;
  first == null ? zoomed.delete(label) : zoomed.set(label, [first, last]);
  curves();
  if (label === "Step" && document.getElementById("curves")) look();
};
let looks = 0;
const look = async () => {
  const mine = ++looks, address = new URL(location.href), range = zoomed.get("Step");
  if (range) address.searchParams.set("begin", Math.max(0, Math.floor(range[0])));
  if (range) address.searchParams.set("end", Math.max(1, Math.ceil(range[1])));
  if (drawn.smooth) address.searchParams.set("means", "true");
  const answer = await fetch(address);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("curves");
  if (!fresh || mine !== looks) return;
  put("curves", fresh.outerHTML);
  if (page.body.dataset.events) stream.move(page.body.dataset.events);
};

const joined = (replicas, pick) => {
  const at = [...new Set(replicas.flatMap((r) => r.at))].sort((a, b) => a - b);
  const place = new Map(at.map((t, i) => [t, i]));
  const lines = replicas.flatMap((r) => pick(r).map(([name, values]) => {
    const all = new Array(at.length).fill(undefined);
    r.at.forEach((t, i) => { all[place.get(t)] = values[i]; });
    return [name, all];
  }));
  return [at, lines];
};

const MOST_LINES = 16;
const usage = () => {
  const data = document.querySelector("[data-usage-data]");
  if (!data) return;
  const replicas = JSON.parse(data.dataset.usageData).slice(0, MOST_LINES);
  const kinds = {
    cpus: [(r) => [[r.task, r.cpus]], plain],
    memory: [(r) => [[r.task, r.memory]], bytes],
    disk: [(r) => [[r.task, r.disk]], bytes],
    gpus: [(r) => r.gpus.map((g, i) => [`${r.task} GPU ${i}`, g]), share],
  };
  for (const [name, [pick, value]] of Object.entries(kinds)) {
    const box = document.querySelector(`[data-chart="${name}"]`);
    const [at, lines] = joined(replicas, pick);
    box.closest("figure").hidden = name === "gpus" && !lines.length;
    if (at.length) draw(box, at, lines, { value, zero: true });
    else if (!box.firstChild) box.textContent = "Nothing was recorded yet.";
  }
};

// Each value with what came before it, which counts a fifth less at each step.
const smoothed = (values) => {
  let sum = 0, weight = 0;
  return values.map((v) => { if (v == null) return v; sum = 0.8 * sum + v; weight = 0.8 * weight + 1; return sum / weight; });
};

// Lines of values over steps: <div data-curves='{"at": […], "lines": [[name, […]], …]}'>. The buttons
// [data-drawn] say how those of a page are drawn.
const drawn = { smooth: false, log: false };
const curves = () => {
  for (const box of document.querySelectorAll("[data-curves]")) {
    const { at, lines, points, label, log: far } = JSON.parse(box.dataset.curves);
    const shown = drawn.smooth && !points ? lines.map(([name, values]) => [name, smoothed(values)]) : lines;
    const log = (drawn.log || far) && lines.every(([, values]) => values.every((v) => v == null || v > 0));
    // The cursor is in all charts at once that count the same.
    draw(box, at, shown, { time: false, points, label, log, together: points ? "" : label || "Step" });
  }
  for (const button of document.querySelectorAll("[data-drawn]")) button.ariaPressed = drawn[button.dataset.drawn];
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-drawn]");
  if (!button) return;
  drawn[button.dataset.drawn] = !drawn[button.dataset.drawn];
  curves();
  if (button.dataset.drawn === "smooth" && document.getElementById("curves")) look();
});
document.addEventListener("keydown", (event) => {
  const u = event.target.closest?.("[data-curves]")?.uplot, { min, max } = u?.scales.x ?? {}, far = max - min;
  const [first, last] = { "+": [far / 4, -far / 4], "-": [-far / 2, far / 2], ArrowLeft: [-far / 4, -far / 4], ArrowRight: [far / 4, far / 4], Escape: [] }[event.key] ?? [];
  if (!far || !u.cursor.sync?.key || !["+", "-", "ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
  event.preventDefault();
  zoom(u.cursor.sync.key, first && min + first, last && max + last);
});

// Ranges of axes in parallel coordinates, by the axis's place: lines that leave one are faded.
const ranges = new Map();
const brush = () => {
  for (const field of document.querySelectorAll(".parallel .field")) {
    for (const grab of field.querySelectorAll(".grab")) {
      const range = ranges.get(grab.dataset.axis);
      grab.nextElementSibling.setAttribute("y", range ? range[0] : 0);
      grab.nextElementSibling.setAttribute("height", range ? range[1] - range[0] : 0);
    }
    let kept = 0;
    const lines = field.querySelectorAll(".trial");
    for (const line of lines) {
      const at = new Map(line.getAttribute("points").split(" ").map((point) => point.split(",")));
      const passes = [...ranges].every(([axis, [top, end]]) => at.has(axis) && at.get(axis) >= top - 1 && at.get(axis) <= end + 1);
      line.classList.toggle("out", !passes);
      kept += passes;
    }
    field.closest("section").querySelector("[data-brushed]").textContent = ranges.size ? `${kept} of ${lines.length}` : "";
  }
};
document.addEventListener("pointerdown", (event) => {
  const grab = event.target.closest(".parallel .grab");
  if (!grab) return;
  const box = grab.ownerSVGElement.getBoundingClientRect();
  const place = (e) => Math.min(250, Math.max(10, ((e.clientY - box.top) / box.height) * 260));
  const from = place(event);
  const drag = (e) => {
    const to = place(e);
    if (Math.abs(to - from) < 4) ranges.delete(grab.dataset.axis);
    else ranges.set(grab.dataset.axis, [Math.min(from, to), Math.max(from, to)]);
    brush();
  };
  grab.setPointerCapture(event.pointerId);
  grab.addEventListener("pointermove", drag);
  grab.addEventListener("pointerup", (e) => { drag(e); grab.removeEventListener("pointermove", drag); }, { once: true });
});
document.addEventListener("keydown", (event) => {
  const axis = event.target.closest?.(".parallel .grab")?.dataset.axis;
  const step = { ArrowUp: -24, ArrowDown: 24, Escape: 0 }[event.key];
  if (axis === undefined || step === undefined) return;
  event.preventDefault();
  // The first press takes the upper or the lower quarter, each further one moves it; Escape lets go.
  const [top, end] = ranges.get(axis) ?? (step < 0 ? [34, 94] : [166, 226]);
  if (!step) ranges.delete(axis);
  else if (top + step >= 10 && end + step <= 250) ranges.set(axis, [top + step, end + step]);
  brush();
});

const everything = () => { usage(); curves(); brush(); };
document.addEventListener("part", everything);
addEventListener("theme", everything);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(everything, 150); });
everything();
