// What replicas use over time, and what programs measured over their steps.
"use strict";

/**
 * Return lines that have places of their own as lines over common places.
 * @template T
 * @param {(T & { at: number[] })[]} replicas
 * @param {(replica: T) => [string, Value[]][]} linesOf
 * @returns {[number[], Line[]]}
 */
const joined = (replicas, linesOf) => {
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
 * What a replica used, by its moments.
 * @typedef {object} Usage
 * @property {string} task
 * @property {number[]} at seconds since the epoch
 * @property {Value[]} cpus
 * @property {Value[]} memory bytes
 * @property {Value[]} disk bytes
 * @property {Value[][]} gpus the busy share of each, 0 to 1
 * @property {Record<string, number | null>} limits by the name of the chart
 */
/** @type {Record<string, [(replica: Usage) => [string, Value[]][], (value: Value) => string]>} */
const USES = {
  cpus: [({ task, cpus }) => [[task, cpus]], plain],
  memory: [({ task, memory }) => [[task, memory]], bytes],
  disk: [({ task, disk }) => [[task, disk]], bytes],
  gpus: [({ task, gpus }) => gpus.map((busy, i) => [`${task} GPU ${i}`, busy]), share],
};
const MAX_REPLICAS = 16;

/**
 * Return the limits that a chart shows. A limit far above all values would press them flat, and is left out.
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
  for (const [use, [linesOf, says]] of Object.entries(USES)) {
    const box = need(`[data-chart="${use}"]`, HTMLElement);
    const [at, lines] = joined(replicas, linesOf);
    const figure = box.closest("figure");
    if (figure) figure.hidden = use === "gpus" && !lines.length;
    for (const line of limitsOf(use, replicas, lines)) lines.push({ ...line, values: at.map(() => line.limit) });
    if (at.length) draw(box, at, lines, { across: CLOCK_AXIS, says, fromZero: true });
    else if (!box.firstChild) box.textContent = "No data yet.";
  }
};

/**
 * Return each value with what came before it, which counts a fifth less at each step.
 * @param {Value[]} values
 */
const smoothed = (values) => {
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
 * Lines of values, as `curve_data` in `console/rendering.py` makes them for `data-curves`.
 * @typedef {object} Curves
 * @property {number[]} at
 * @property {[name: string, values: Value[], form?: Line["form"]][]} lines
 * @property {boolean} [points] whether each value stands for itself: nothing is smoothed
 * @property {string} [label] what the places count; not set: steps
 * @property {boolean} [log] whether a logarithmic axis fits
 * @property {number[]} [marks] where a program was started again
 */

// How the charts of the page are drawn; the buttons `data-drawn` change it.
const query = new URLSearchParams(location.search);
/** @type {Record<string, boolean>} */
const drawn = {
  time: query.get("axis") === "time",
  replicas: query.has("replicas"),
  smooth: false,
  log: false,
};

// What is shown of charts that count the same, by what they count: [first, last].
/** @type {Map<string, [number, number]>} */
const ranges = new Map();

const drawCurves = () => {
  for (const box of pickAll("[data-curves]", HTMLElement)) {
    /** @type {Curves} */
    const data = JSON.parse(box.dataset.curves ?? "");
    const label = data.label || "Step";
    // The edges of a band have the colour of the line before them.
    let tone = -1;
    const lines = data.lines.map(([name, values, form]) => ({
      name,
      values: drawn.smooth && !data.points ? smoothed(values) : values,
      form,
      tone: form === "edge" ? tone : ++tone,
    }));
    const isPositive = lines.every(({ values }) => values.every((v) => v == null || v > 0));
    const axis = label === "Time" ? DURATION_AXIS : { ...STEP_AXIS, label };
    draw(box, data.at, lines, {
      across: axis,
      points: data.points,
      isLog: (drawn.log || data.log) && isPositive,
      marks: data.marks,
      ...(!data.points && {
        gapless: true,
        // The cursor is in all charts at once that count the same.
        together: label,
        zoomed: (first, last) => zoom(label, first, last),
      }),
    });
    const range = !data.points && ranges.get(label);
    if (range) charts.get(box)?.setScale("x", { min: range[0], max: range[1] });
  }
  for (const button of pickAll("[data-drawn]", HTMLElement))
    button.ariaPressed = String(drawn[button.dataset.drawn ?? ""]);
};

/**
 * Show a range of all charts that count the same.
 * @param {string} label
 * @param {number} [first] not set: everything
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

// What is near is asked for anew, and so is a smooth line: the values of the page are the extremes of many.
let fetches = 0;
const fetchCurves = async () => {
  if (!document.getElementById("curves")) return;
  const mine = ++fetches;
  const address = new URL(location.href);
  const range = drawn.time ? undefined : ranges.get("Step");
  if (range) {
    address.searchParams.set("begin", String(Math.max(0, Math.floor(range[0]))));
    address.searchParams.set("end", String(Math.max(1, Math.ceil(range[1]))));
  }
  address.searchParams.delete("replicas");
  address.searchParams.delete("axis");
  if (drawn.replicas) address.searchParams.set("replicas", "apart");
  if (drawn.time) address.searchParams.set("axis", "time");
  if (drawn.smooth) address.searchParams.set("means", "true");
  const answer = await fetch(address);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("curves");
  if (!fresh || mine !== fetches) return;
  put("curves", fresh.outerHTML);
  if (page.body.dataset.events) stream.move(page.body.dataset.events);
};

document.addEventListener("click", (event) => {
  const form = closest(event, "[data-drawn]", HTMLElement)?.dataset.drawn;
  if (!form) return;
  drawn[form] = !drawn[form];
  drawCurves();
  if (form !== "log") fetchCurves();
});

// By how much of what is shown a key moves the first and the last place.
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
