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
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const POWERS = [...Array(50).keys()].map((n) => 2 ** n);
const draw = (box, at, lines, { value = plain, time = true, points = false, label = "", zero = false, marks = [], log = false, together = "", across } = {}) => {
  const colours = palette();
  const lasts = !time && label === "Time";
  const called = (v) => (across?.names ? across.names[v] ?? "" : lasts ? seconds(v) : plain(v));
  const range = together && zoomed.get(together);
  box.uplot?.destroy();
  const axis = { stroke: ink("--soft"), grid: { stroke: ink("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  box.uplot = new uPlot({
    width: Math.max(box.clientWidth, 200), height: 160,
    cursor: { y: false, points: { size: 6 }, ...(together ? { sync: { key: together } } : {}), ...(together || across ? { dataIdx: nearest } : {}) },
    hooks: { draw: [(u) => dashes(u, marks)], ...(together ? { setSelect: [(u) => { const { left, width } = u.select; if (width) zoom(together, u.posToVal(left, "x"), u.posToVal(left + width, "x")); }] } : {}) },
    legend: { live: true },
    bands: lines.flatMap(([, , form, tone], i) => (form === "edge" && lines[i + 1]?.[3] === tone && lines[i + 1][2] === form ? [{ series: [i + 2, i + 1], fill: `color-mix(in oklab, ${colours[tone % colours.length]}, transparent 85%)` }] : [])),
    scales: { x: { time, ...(across ? { distr: across.isLog ? 3 : 1, range: (u, low, high) => (across.isLog ? [low / 1.1, high * 1.1] : [low - (high - low) / 40, high + (high - low) / 40]) } : {}) }, y: log ? { distr: 3 } : zero ? { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } : {} },
    axes: [time ? { ...axis, size: 28, values: (u, all) => all.map((t) => clock.format(new Date(t * 1000))), space: 90 } : across ? { ...axis, size: 28, space: 70, ...(across.names ? { incrs: [1] } : {}), values: (u, all) => all.map((v) => (v == null ? "" : called(v))) } : lasts ? { ...axis, size: 28, space: 90, incrs: SPANS, values: (u, all) => all.map(seconds) } : { ...axis, size: 28, space: 70, incrs: [1, 2, 5].flatMap((n) => [...Array(12).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b) }, { ...axis, size: 68, ...(value === bytes ? { incrs: POWERS } : {}), values: (u, all) => all.map((v) => (v == null ? "" : value(v))) }],
    series: [{ label: label || (time ? "Time" : "Step"), value: (u, v) => (v == null ? "" : time ? clock.format(new Date(v * 1000)) : called(v)) },
      ...lines.map(([name, , form, tone], i) => ({ label: name, paths: form === "points" ? () => null : form === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined, stroke: form === "edge" ? `color-mix(in oklab, ${colours[tone % colours.length]}, transparent 60%)` : colours[(tone ?? i) % colours.length], width: 1.5, class: form === "edge" ? "edge" : undefined, points: { show: form === "points" || (form !== "edge" && (points || at.length < 12)), size: 6, fill: form === "points" ? colours[(tone ?? i) % colours.length] : undefined }, spanGaps: Boolean(together || across), value: (u, v, s, at) => (v == null ? "" : lines[s]?.[2] === "edge" && form !== "edge" ? `${value(v)} (${value(u.data[s + 1][at])} to ${value(u.data[s + 2][at])})` : value(v)), dash: i >= colours.length ? [4, 3] : undefined }))],
  }, [at, ...lines.map(([, values]) => values)], box);
  if (range) box.uplot.setScale("x", { min: range[0], max: range[1] });
  if (together) box.uplot.over.addEventListener("dblclick", () => zoom(together));
};
// Where a program was started again.
const dashes = ({ ctx, bbox, valToPos }, marks) => {
  ctx.save();
  ctx.strokeStyle = ink("--soft");
  ctx.setLineDash([4, 4]);
  for (const mark of marks) {
    const left = Math.round(valToPos(mark, "x", true)) + 0.5;
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath(); ctx.moveTo(left, bbox.top); ctx.lineTo(left, bbox.top + bbox.height); ctx.stroke();
  }
  ctx.restore();
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
  const mine = ++looks, address = new URL(location.href), range = !drawn.time && zoomed.get("Step");
  if (range) address.searchParams.set("begin", Math.max(0, Math.floor(range[0])));
  if (range) address.searchParams.set("end", Math.max(1, Math.ceil(range[1])));
  drawn.replicas ? address.searchParams.set("replicas", "apart") : address.searchParams.delete("replicas");
  drawn.time ? address.searchParams.set("axis", "time") : address.searchParams.delete("axis");
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
const here = new URLSearchParams(location.search);
const drawn = { time: here.get("axis") === "time", replicas: here.has("replicas"), smooth: false, log: false };
const curves = () => {
  for (const box of document.querySelectorAll("[data-curves]")) {
    const { at, lines, points, label, log: far, marks } = JSON.parse(box.dataset.curves);
    // The edges of a band have the colour of the line before them.
    let tone = -1;
    const shown = lines.map(([name, values, form]) => [name, drawn.smooth && !points ? smoothed(values) : values, form, form === "edge" ? tone : ++tone]);
    const log = (drawn.log || far) && lines.every(([, values]) => values.every((v) => v == null || v > 0));
    // The cursor is in all charts at once that count the same.
    draw(box, at, shown, { time: false, points, label, log, marks, together: points ? "" : label || "Step" });
  }
  for (const button of document.querySelectorAll("[data-drawn]")) button.ariaPressed = drawn[button.dataset.drawn];
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-drawn]");
  if (!button) return;
  drawn[button.dataset.drawn] = !drawn[button.dataset.drawn];
  curves();
  if (button.dataset.drawn !== "log" && document.getElementById("curves")) look();
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

// What the model of a search expects over one or two parameters. It is computed when somebody chooses them, and
// of the most important one when somebody has come there.
let outlook = null;
const shown = (v) => (typeof v === "number" ? plain(v) : v);
const there = ({ metric, axes, expected, low, high }, i) => {
  const width = axes[1]?.values.length ?? 1, at = [Math.floor(i / width), i % width];
  return `${metric} ${plain(expected[i])} ± ${plain(Number(((high[i] - low[i]) / 2).toPrecision(2)))} at ${axes.map(({ name, values }, n) => `${name} ${shown(values[at[n]])}`).join(", ")}`;
};
const summary = (model) => {
  const { expected, low, high, best, others, isMaximized } = model, doubts = high.map((v, i) => v - low[i]);
  const kept = Object.entries(others).map(([name, v]) => `${name} ${shown(v)}`).join(", ");
  return `The best: ${there(model, expected.indexOf((isMaximized ? Math.max : Math.min)(...expected)))}. The least sure: ${there(model, doubts.indexOf(Math.max(...doubts)))}.${kept ? ` All else as in trial ${best}, the best one: ${kept}. Dots are trials, whatever else they have.` : ""}`;
};
const band = (box, { metric, axes: [axis], expected, low, high, points }) => {
  const place = (v) => (typeof v === "number" ? v : axis.values.indexOf(v));
  const places = axis.values.map((v, i) => [place(v), expected[i], low[i], high[i]]), tried = points.map(([v, measured]) => [place(v), undefined, undefined, undefined, measured]);
  const rows = [...places, ...tried].sort((a, b) => a[0] - b[0]), column = (n) => rows.map((row) => row[n]);
  const names = typeof axis.values[0] === "string" && axis.values, form = names ? "points" : undefined;
  const lines = [["expected", column(1), form], ["at least", column(2), form ?? "edge", 0], ["at most", column(3), form ?? "edge", 0], [`${metric} of trials`, column(4), "points", 1]];
  draw(box, column(0), lines, { time: false, label: axis.name, across: { isLog: axis.isLog, names } });
  if (outlook.at != null) box.uplot.setCursor({ left: box.uplot.valToPos(place(axis.values[outlook.at]), "x"), top: 0 });
};
const maps = (box, { metric, isMaximized, axes, expected, low, high, points }) => {
  const [across, up] = axes, width = across.values.length, height = up.values.length;
  // Places lie evenly on the scale of their parameter.
  const spot = ({ values, isLog }, v) => {
    const next = values.findIndex((w) => w === v || (typeof v === "number" && w > v)), far = isLog ? Math.log : Number;
    if (values[next] === v || next < 1) return Math.max(next, 0) + 0.5;
    return next - 0.5 + (far(v) - far(values[next - 1])) / (far(values[next]) - far(values[next - 1]));
  };
  const figures = [0, 1].map(() => document.querySelector("[data-outlook] ~ template").content.firstElementChild.cloneNode(true));
  box.append(...figures);
  for (const [figure, title, values, colour, isLeast] of [[figures[0], `Expected ${metric}`, expected, "--c5", !isMaximized], [figures[1], "How unsure that is, ±", high.map((v, i) => (v - low[i]) / 2), "--c1", false]]) {
    // The best, or the least sure, is strong.
    const [strong, pale] = [Math.max(...values), Math.min(...values)].sort((a, b) => (isLeast ? a - b : b - a)), canvas = figure.querySelector("canvas");
    const swatch = (name) => Object.assign(document.createElement("span"), { className: `swatch ${name}` });
    figure.querySelector("figcaption").replaceChildren(title, swatch(colour.slice(2)), plain(strong), swatch("pale"), plain(pale));
    const texts = [up.values.at(-1), up.name, up.values[0], across.values[0], across.name, across.values.at(-1)];
    figure.querySelectorAll(".front span").forEach((el, i) => { el.textContent = shown(texts[i]); });
    const scale = devicePixelRatio, w = (canvas.width = canvas.clientWidth * scale), h = (canvas.height = canvas.clientHeight * scale), pen = canvas.getContext("2d");
    const fill = (colour, part, ...cell) => { pen.globalAlpha = part; pen.fillStyle = ink(colour); pen.fillRect(...cell); };
    values.forEach((v, i) => {
      const x = Math.floor(i / height), y = height - 1 - (i % height), left = Math.floor((x * w) / width), top = Math.floor((y * h) / height);
      const cell = [left, top, Math.ceil(((x + 1) * w) / width) - left, Math.ceil(((y + 1) * h) / height) - top];
      fill("--raised", 1, ...cell);
      fill(colour, strong === pale ? 0 : (v - pale) / (strong - pale), ...cell);
    });
    Object.assign(pen, { globalAlpha: 1, lineWidth: 1.5 * scale, fillStyle: ink("--ink"), strokeStyle: ink("--paper") });
    for (const [a, b] of points) {
      pen.beginPath();
      pen.arc((spot(across, a) * w) / width, h - (spot(up, b) * h) / height, 4 * scale, 0, 7);
      pen.fill();
      pen.stroke();
    }
    if (outlook.at == null) continue;
    pen.strokeStyle = ink("--ink");
    pen.strokeRect((Math.floor(outlook.at / height) * w) / width, ((height - 1 - (outlook.at % height)) * h) / height, w / width, h / height);
  }
};
const expects = () => {
  const form = document.querySelector("[data-outlook]"), box = document.querySelector("[data-outlook-box]");
  if (form && !outlook) coming.observe(form);
  if (!form || !outlook) return;
  const { values, model, at } = outlook, fields = form.querySelectorAll("select");
  fields.forEach((field, i) => { field.value = values[i]; });
  document.querySelector("[data-outlook-says]").textContent = !values.some(Boolean) ? "" : !model ? "It is being computed…" : model.reason || (at == null ? summary(model) : there(model, at));
  box.uplot?.destroy();
  box.uplot = null;
  box.replaceChildren();
  box.tabIndex = model?.expected?.length ? 0 : -1;
  if (model?.expected?.length) (model.axes.length > 1 ? maps : band)(box, model);
};
const compute = async () => {
  const form = document.querySelector("[data-outlook]"), mine = outlook;
  if (!form || !mine.values.some(Boolean)) return;
  const query = [...form.elements].filter(({ value }) => value).map(({ name, value }) => [name, value]);
  const answer = await fetch(`${form.dataset.outlook}?${new URLSearchParams(query)}`, { headers: { accept: "application/json" } });
  const model = await answer.json();
  mine.model = answer.ok ? model : { reason: model.error.message };
  if (mine === outlook) expects();
};
const choose = (form) => {
  outlook = { values: [...form.querySelectorAll("select")].map((field) => field.value) };
  expects();
  compute();
};
document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-outlook]");
  if (form) choose(form);
});
const coming = new IntersectionObserver((seen) => { for (const { isIntersecting, target } of seen) if (isIntersecting && !outlook) choose(target); });
// What trials have measured since counts as well, a little later.
let newer = 0;
document.addEventListener("part", ({ target }) => {
  if (target.id === "objective" && outlook) newer ||= setTimeout(() => { newer = 0; compute(); }, 3000);
});
document.addEventListener("keydown", (event) => {
  const model = event.target.matches?.("[data-outlook-box]") && outlook?.model;
  if (!model?.expected?.length) return;
  const height = model.axes[1]?.values.length ?? 1, step = { ArrowLeft: -height, ArrowRight: height, ArrowDown: height > 1 ? -1 : 0, ArrowUp: height > 1 ? 1 : 0 }[event.key];
  if (!step && event.key !== "Escape") return;
  event.preventDefault();
  const from = outlook.at ?? Math.floor(model.axes[0].values.length / 2) * height + Math.floor(height / 2), to = from + step;
  const stays = !step || to < 0 || to >= model.expected.length || (Math.abs(step) === 1 && height > 1 && Math.floor(to / height) !== Math.floor(from / height));
  outlook.at = !step ? null : stays ? from : to;
  expects();
});
document.addEventListener("pointermove", (event) => {
  const canvas = event.target.closest?.("[data-outlook-box] canvas"), model = canvas && outlook?.model;
  if (!model) return;
  const { left, top, width, height } = canvas.getBoundingClientRect(), [across, up] = model.axes.map(({ values }) => values.length);
  const place = (part, count) => Math.min(count - 1, Math.max(0, Math.floor(part * count)));
  const at = place((event.clientX - left) / width, across) * up + place(1 - (event.clientY - top) / height, up);
  document.querySelector("[data-outlook-says]").textContent = there(model, at);
});

const everything = () => { usage(); curves(); brush(); expects(); };
document.addEventListener("part", everything);
addEventListener("theme", everything);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(everything, 150); });
everything();
