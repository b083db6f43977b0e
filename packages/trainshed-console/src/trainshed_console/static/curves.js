// Charts of the resource usage of replicas over time, and of the metrics of programs over steps.
"use strict";

/**
 * Convert lines with different positions to lines with common positions.
 * @template T
 * @param {(T & { at: number[] })[]} replicas
 * @param {(replica: T) => [string, Value[]][]} linesOf
 * @returns {[number[], Line[]]}
 */
const joinLines = (replicas, linesOf) => {
  const at = [...new Set(replicas.flatMap((replica) => replica.at))].sort((a, b) => a - b);
  const places = new Map(at.map((moment, i) => [moment, i]));
  const lines = replicas.flatMap((replica) =>
    linesOf(replica).map(([name, own]) => {
      /** @type {Value[]} */
      const values = new Array(at.length).fill(undefined);
      replica.at.forEach((moment, i) => {
        values[places.get(moment) ?? 0] = own[i];
      });
      return { name, values };
    }),
  );
  return [at, lines];
};

/**
 * The resource usage of a replica over time.
 * @typedef {object} Usage
 * @property {string} task
 * @property {number[]} at seconds since the epoch
 * @property {Value[]} cpus
 * @property {Value[]} memory bytes
 * @property {Value[]} disk bytes
 * @property {Value[][]} gpus utilization of each GPU, 0 to 1
 * @property {Record<string, number | null>} limits by the name of the chart
 */
/** @type {Record<string, [(replica: Usage) => [string, Value[]][], (value: Value) => string]>} */
const RESOURCES = {
  cpus: [({ task, cpus }) => [[task, cpus]], plain],
  memory: [({ task, memory }) => [[task, memory]], bytes],
  disk: [({ task, disk }) => [[task, disk]], bytes],
  gpus: [({ task, gpus }) => gpus.map((busy, i) => [`${task} GPU ${i}`, busy]), share],
};
const MAX_REPLICAS = 16;

/**
 * Return the limits that a chart shows. It omits a limit far above all values, because it would flatten the lines.
 * @param {string} use
 * @param {Usage[]} replicas
 * @param {Line[]} lines
 * @returns {{ name: string, form: "limit", limit: number }[]}
 */
const limitsOf = (use, replicas, lines) => {
  const highest = Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const limits = new Set(replicas.map(({ limits }) => limits[use] ?? 0));
  return [...limits]
    .filter((limit) => limit > 0 && highest > limit / 10)
    .map((limit) => ({ name: limits.size > 1 ? `limit ${limit}` : "limit", form: "limit", limit }));
};

const drawUsage = () => {
  const data = pick("[data-usage-data]", HTMLElement)?.dataset.usageData;
  if (!data) return;
  /** @type {Usage[]} */
  const replicas = JSON.parse(data).slice(0, MAX_REPLICAS);
  for (const [use, [linesOf, format]] of Object.entries(RESOURCES)) {
    const box = need(`[data-chart="${use}"]`, HTMLElement);
    const [at, lines] = joinLines(replicas, linesOf);
    const figure = box.closest("figure");
    if (figure) figure.hidden = use === "gpus" && !lines.length;
    for (const line of limitsOf(use, replicas, lines)) lines.push({ ...line, values: at.map(() => line.limit) });
    if (at.length) draw(box, at, lines, { across: CLOCK_AXIS, format, fromZero: true });
    else if (!box.firstChild) box.textContent = "No data yet.";
  }
};

/**
 * Return an exponential moving average. The weight of a value decreases by one fifth with each step.
 * @param {Value[]} values
 */
const movingAverage = (values) => {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value == null) return value;
    sum = 0.8 * sum + value;
    weight = 0.8 * weight + 1;
    return sum / weight;
  });
};

/**
 * Data of the attribute `data-curves`, created by `curve_data` (`rendering.py`).
 * @typedef {object} Curves
 * @property {number[]} at
 * @property {[name: string, values: Value[], form?: Line["form"]][]} lines
 * @property {boolean} [points] whether values are separate points, which are not smoothed
 * @property {string} [label] label of the horizontal axis; default: steps
 * @property {boolean} [log] whether the axis is logarithmic
 * @property {number[]} [marks] positions of restarts of a program
 */

// Options of the charts on this page. Buttons with `data-drawn` change them.
const query = new URLSearchParams(location.search);
/** @type {Record<string, boolean>} */
const options = {
  time: query.get("axis") === "time",
  replicas: query.has("replicas"),
  smooth: false,
  log: false,
};

// The visible range of charts, [first, last], by the label of their horizontal axis.
/** @type {Map<string, [number, number]>} */
const ranges = new Map();

const drawCurves = () => {
  for (const box of pickAll("[data-curves]", HTMLElement)) {
    /** @type {Curves} */
    const data = JSON.parse(box.dataset.curves ?? "");
    const label = data.label || "Step";
    // The borders of a band have the color of the previous line.
    let tone = -1;
    const lines = data.lines.map(([name, values, form]) => ({
      name,
      values: options.smooth && !data.points ? movingAverage(values) : values,
      form,
      tone: form === "edge" ? tone : ++tone,
    }));
    const isPositive = lines.every(({ values }) => values.every((v) => v == null || v > 0));
    const axis = label === "Time" ? DURATION_AXIS : { ...STEP_AXIS, label };
    draw(box, data.at, lines, {
      across: axis,
      points: data.points,
      isLog: (options.log || data.log) && isPositive,
      marks: data.marks,
      ...(!data.points && {
        gapless: true,
        // Charts with the same horizontal axis share the cursor.
        cursorGroup: label,
        onZoom: (first, last) => zoom(label, first, last),
      }),
    });
    const range = !data.points && ranges.get(label);
    if (range) charts.get(box)?.setScale("x", { min: range[0], max: range[1] });
  }
  for (const button of pickAll("[data-drawn]", HTMLElement))
    button.ariaPressed = String(options[button.dataset.drawn ?? ""]);
};

/**
 * Show a range in all charts with the same horizontal axis.
 * @param {string} label
 * @param {number} [first] not set: show everything
 * @param {number} [last]
 */
const zoom = (label, first, last) => {
  const old = ranges.get(label);
  if (first === old?.[0] && last === old?.[1]) return;
  if (first === undefined || last === undefined) ranges.delete(label);
  else ranges.set(label, [first, last]);
  drawCurves();
  if (label === "Step") fetchCurves();
};

// Fetch the values of a range or of smooth lines, because the page contains only the extremes of many values.
let fetches = 0;
const fetchCurves = async () => {
  if (!document.getElementById("curves")) return;
  const mine = ++fetches;
  const address = new URL(location.href);
  const range = options.time ? undefined : ranges.get("Step");
  if (range) {
    address.searchParams.set("begin", String(Math.max(0, Math.floor(range[0]))));
    address.searchParams.set("end", String(Math.max(1, Math.ceil(range[1]))));
  }
  address.searchParams.delete("replicas");
  address.searchParams.delete("axis");
  if (options.replicas) address.searchParams.set("replicas", "apart");
  if (options.time) address.searchParams.set("axis", "time");
  if (options.smooth) address.searchParams.set("means", "true");
  const answer = await fetch(address);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("curves");
  if (!fresh || mine !== fetches) return;
  replacePart("curves", fresh.outerHTML);
  if (page.body.dataset.events) stream.move(page.body.dataset.events);
};

document.addEventListener("click", (event) => {
  const form = closest(event, "[data-drawn]", HTMLElement)?.dataset.drawn;
  if (!form) return;
  options[form] = !options[form];
  drawCurves();
  if (form !== "log") fetchCurves();
});

// The movement of both ends of the visible range by key, as a fraction of the range.
/** @type {Record<string, [number, number]>} */
const MOVES = {
  "+": [1 / 4, -1 / 4],
  "-": [-1 / 2, 1 / 2],
  ArrowLeft: [-1 / 4, -1 / 4],
  ArrowRight: [1 / 4, 1 / 4],
};
document.addEventListener("keydown", (event) => {
  const box = closest(event, "[data-curves]", HTMLElement);
  const chart = box && charts.get(box);
  const { min, max } = chart?.scales.x ?? {};
  const label = chart?.cursor.sync?.key;
  if (!label || min == null || max == null || min === max) return;
  const move = MOVES[event.key];
  if (!move && event.key !== "Escape") return;
  event.preventDefault();
  const far = max - min;
  if (move) zoom(label, min + move[0] * far, max + move[1] * far);
  else zoom(label);
});

drawAlways(drawUsage);
drawAlways(drawCurves);
