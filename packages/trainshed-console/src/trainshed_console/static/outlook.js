// What the model of a search expects over one or two parameters, and how unsure it is. It is computed when
// somebody chooses them, and of the most important one when somebody has come there.
"use strict";

/** @typedef {number | string} Setting of a parameter */

/**
 * @typedef {object} Parameter
 * @property {string} name
 * @property {Setting[]} values lie evenly on its scale
 * @property {boolean} isLog
 */

/**
 * What the service answers. `expected`, `low` and `high` have a value for each setting of the first parameter and,
 * within it, of the second.
 * @typedef {object} Model
 * @property {string} metric
 * @property {boolean} isMaximized
 * @property {Parameter[]} axes one or two
 * @property {number[]} expected
 * @property {number[]} low
 * @property {number[]} high
 * @property {Setting[][]} points the settings of each trial, and what it measured
 * @property {number} best its trial
 * @property {Record<string, Setting>} others settings of the best trial that are kept
 * @property {string} [reason] why there is nothing else
 */

/**
 * What is shown: the chosen parameters, "" for none; their model once it is there; and the place in it that the
 * arrow keys have come to.
 * @type {{ names: string[], model?: Model, at?: number } | null}
 */
let outlook = null;

/** @param {Setting} value */
const shown = (value) => (typeof value === "number" ? plain(value) : value);

/** @param {Model} model */
const isThere = (model) => Boolean(model.expected?.length);

/**
 * Return how many settings the second parameter has.
 * @param {Model} model
 */
const heightOf = ({ axes }) => axes[1]?.values.length ?? 1;

/**
 * Say what is expected at a place.
 * @param {Model} model
 * @param {number} at
 */
const sayPlace = (model, at) => {
  const { metric, axes, expected, low, high } = model;
  const height = heightOf(model);
  const settings = [Math.floor(at / height), at % height];
  const doubt = Number(((high[at] - low[at]) / 2).toPrecision(2));
  const place = axes.map(({ name, values }, n) => `${name} ${shown(values[settings[n]])}`);
  return `${metric} ${plain(expected[at])} ± ${plain(doubt)} at ${place.join(", ")}`;
};

/**
 * Say what is best, and what is least sure.
 * @param {Model} model
 */
const sayAll = (model) => {
  const { expected, low, high, best, others, isMaximized } = model;
  const doubts = high.map((value, i) => value - low[i]);
  const top = expected.indexOf((isMaximized ? Math.max : Math.min)(...expected));
  const leastSure = doubts.indexOf(Math.max(...doubts));
  const kept = Object.entries(others).map(([name, value]) => `${name} ${shown(value)}`);
  const says = [
    `Best prediction: ${sayPlace(model, top)}.`,
    `Most uncertain: ${sayPlace(model, leastSure)}.`,
  ];
  if (kept.length) {
    says.push(`Other parameters as in trial ${best}, the best one: ${kept.join(", ")}.`);
    says.push("Dots show all trials, whatever their other parameters.");
  }
  return says.join(" ");
};

/**
 * Draw the band of what is expected over one parameter.
 * @param {HTMLElement} box
 * @param {Model} model
 * @param {number} [at]
 */
const drawBand = (box, model, at) => {
  const { metric, axes, expected, low, high, points } = model;
  const [{ name, values, isLog }] = axes;
  const place = (/** @type {Setting} */ value) =>
    typeof value === "number" ? value : values.indexOf(value);
  /** @type {Value[][]} rows of a place, what is expected there, at least and at most, and what a trial measured */
  const rows = [
    ...values.map((value, i) => [place(value), expected[i], low[i], high[i]]),
    ...points.map(([value, result]) => [place(value), null, null, null, Number(result)]),
  ].sort(([a], [b]) => Number(a) - Number(b));
  const column = (/** @type {number} */ n) => rows.map((row) => row[n]);
  const names = typeof values[0] === "string" ? values.map(String) : null;
  const edge = names ? "points" : "edge";
  /** @type {Line[]} */
  const lines = [
    { name: "expected", values: column(1), form: names ? "points" : undefined, tone: 0 },
    { name: "at least", values: column(2), form: edge, tone: 0 },
    { name: "at most", values: column(3), form: edge, tone: 0 },
    { name: `${metric} of trials`, values: column(4), form: "points", tone: 1 },
  ];
  draw(box, column(0).map(Number), lines, {
    across: parameterAxis(name, isLog, names),
    gapless: true,
  });
  const chart = charts.get(box);
  if (at !== undefined) chart?.setCursor({ left: chart.valToPos(place(values[at]), "x"), top: 0 });
};

/**
 * Return where a setting lies, counted in settings of its parameter: the first one reaches from 0 to 1.
 * @param {Parameter} parameter
 * @param {Setting} value
 */
const placeOf = ({ values, isLog }, value) => {
  const next = values.findIndex(
    (v) => v === value || (typeof value === "number" && Number(v) > value),
  );
  if (values[next] === value || next < 1) return Math.max(next, 0) + 0.5;
  const scale = isLog ? Math.log : Number;
  const [low, high] = [scale(Number(values[next - 1])), scale(Number(values[next]))];
  return next - 0.5 + (scale(Number(value)) - low) / (high - low);
};

/**
 * Draw a map over two parameters. The best, or the least sure, is strong.
 * @param {HTMLElement} figure
 * @param {Model} model
 * @param {string} title
 * @param {number[]} values by the places of the model
 * @param {"c1" | "c5"} colour
 * @param {boolean} isLeastStrong
 * @param {number} [at]
 */
const drawMap = (figure, model, title, values, colour, isLeastStrong, at) => {
  const [across, up] = model.axes;
  const [width, height] = [across.values.length, up.values.length];
  const extremes = [Math.max(...values), Math.min(...values)];
  const [strong, pale] = isLeastStrong ? extremes.reverse() : extremes;
  const swatch = (/** @type {string} */ name) => made(`<span class="swatch ${name}"></span>`);
  const caption = need("figcaption", HTMLElement, figure);
  caption.replaceChildren(title, swatch(colour), plain(strong), swatch("pale"), plain(pale));
  const [upwards, sideways] = [up, across].map(({ name, values }) => [
    values[0],
    name,
    values.at(-1),
  ]);
  const texts = [...upwards.reverse(), ...sideways];
  pickAll(".front span", HTMLElement, figure).forEach((span, i) => {
    span.textContent = shown(texts[i] ?? "");
  });

  const canvas = need("canvas", HTMLCanvasElement, figure);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const scale = devicePixelRatio;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = canvas.clientHeight * scale;
  const x = (/** @type {number} */ place) => (place * canvas.width) / width;
  const y = (/** @type {number} */ place) => canvas.height - (place * canvas.height) / height;
  values.forEach((value, i) => {
    const column = Math.floor(i / height);
    const row = i % height;
    const [left, right] = [Math.floor(x(column)), Math.ceil(x(column + 1))];
    const [top, bottom] = [Math.floor(y(row + 1)), Math.ceil(y(row))];
    const isFlat = strong === pale;
    for (const [name, part] of /** @type {[string, number][]} */ ([
      ["--raised", 1],
      [`--${colour}`, isFlat ? 0 : (value - pale) / (strong - pale)],
    ])) {
      pen.globalAlpha = part;
      pen.fillStyle = ink(name);
      pen.fillRect(left, top, right - left, bottom - top);
    }
  });
  pen.globalAlpha = 1;
  pen.lineWidth = 1.5 * scale;
  pen.fillStyle = ink("--ink");
  pen.strokeStyle = ink("--paper");
  for (const [a, b] of model.points) {
    pen.beginPath();
    pen.arc(x(placeOf(across, a)), y(placeOf(up, b)), 4 * scale, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
  }
  if (at === undefined) return;
  const [column, row] = [Math.floor(at / height), at % height];
  pen.strokeStyle = ink("--ink");
  pen.strokeRect(x(column), y(row + 1), x(1), canvas.height / height);
};

/**
 * Draw two maps: what is expected, and how unsure that is.
 * @param {HTMLElement} box
 * @param {Model} model
 * @param {number} [at]
 */
const drawMaps = (box, model, at) => {
  const { metric, expected, low, high, isMaximized } = model;
  const form = need("[data-outlook] ~ template", HTMLTemplateElement).innerHTML;
  const figures = [made(form), made(form)];
  box.append(...figures);
  const doubts = high.map((value, i) => (value - low[i]) / 2);
  drawMap(figures[0], model, `Expected ${metric}`, expected, "c5", !isMaximized, at);
  drawMap(figures[1], model, "Uncertainty, ±", doubts, "c1", false, at);
};

const drawOutlook = () => {
  const form = pick("[data-outlook]", HTMLFormElement);
  if (form && !outlook) nearing.observe(form);
  if (!form || !outlook) return;
  const { names, model, at } = outlook;
  pickAll("select", HTMLSelectElement, form).forEach((field, i) => {
    field.value = names[i];
  });
  let says = "";
  if (names.some(Boolean)) {
    if (!model) says = "Computing…";
    else says = model.reason || (at === undefined ? sayAll(model) : sayPlace(model, at));
  }
  need("[data-outlook-says]", HTMLElement).textContent = says;
  const box = need("[data-outlook-box]", HTMLElement);
  charts.get(box)?.destroy();
  charts.delete(box);
  box.replaceChildren();
  const isDrawn = model && isThere(model);
  box.tabIndex = isDrawn ? 0 : -1;
  if (isDrawn) (model.axes.length > 1 ? drawMaps : drawBand)(box, model, at);
};

const compute = async () => {
  const form = pick("[data-outlook]", HTMLFormElement);
  const mine = outlook;
  if (!form || !mine?.names.some(Boolean)) return;
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) query.append(name, String(value));
  const headers = { accept: "application/json" };
  try {
    const answer = await fetch(`${form.dataset.outlook}?${query}`, { headers });
    const model = await answer.json();
    mine.model = answer.ok ? model : { reason: model.error.message };
  } catch {
    mine.model ??= /** @type {Model} */ ({ reason: "The service does not respond. Try again." });
  }
  if (mine === outlook) drawOutlook();
};

/** @param {HTMLFormElement} form */
const chooseParameters = (form) => {
  outlook = { names: pickAll("select", HTMLSelectElement, form).map(({ value }) => value) };
  drawOutlook();
  compute();
};
const nearing = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries)
    if (isIntersecting && !outlook && target instanceof HTMLFormElement) chooseParameters(target);
});
document.addEventListener("change", (event) => {
  const form = closest(event, "[data-outlook]", HTMLFormElement);
  if (form) chooseParameters(form);
});

// What trials have measured since counts as well, a little later.
let pending = 0;
document.addEventListener("part", (event) => {
  if (!outlook || !closest(event, "#objective", HTMLElement)) return;
  pending ||= setTimeout(() => {
    pending = 0;
    compute();
  }, 3000);
});

// Arrow keys go from setting to setting; they begin in the middle, and Escape leaves the model.
document.addEventListener("keydown", (event) => {
  const model = outlook?.model;
  if (!outlook || !model || !isThere(model)) return;
  if (!(event.target instanceof Element && event.target.matches("[data-outlook-box]"))) return;
  const height = heightOf(model);
  const isMap = height > 1;
  /** @type {Record<string, number>} */
  const steps = { ArrowLeft: -height, ArrowRight: height };
  if (isMap) Object.assign(steps, { ArrowDown: -1, ArrowUp: 1 });
  const step = steps[event.key];
  if (!step && event.key !== "Escape") return;
  event.preventDefault();
  const middle = Math.floor(model.axes[0].values.length / 2) * height + Math.floor(height / 2);
  const from = outlook.at ?? middle;
  const to = from + step;
  const column = Math.floor(from / height);
  const leaves = Math.abs(step) === 1 && isMap && Math.floor(to / height) !== column;
  if (!step) outlook.at = undefined;
  else outlook.at = to < 0 || to >= model.expected.length || leaves ? from : to;
  drawOutlook();
});

document.addEventListener("pointermove", (event) => {
  const canvas = closest(event, "[data-outlook-box] canvas", HTMLCanvasElement);
  const model = outlook?.model;
  if (!canvas || !model) return;
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const [across, up] = model.axes.map(({ values }) => values.length);
  const setting = (/** @type {number} */ part, /** @type {number} */ count) =>
    Math.min(count - 1, Math.max(0, Math.floor(part * count)));
  const column = setting((event.clientX - left) / width, across);
  const row = setting(1 - (event.clientY - top) / height, up);
  need("[data-outlook-says]", HTMLElement).textContent = sayPlace(model, column * up + row);
});

drawAlways(drawOutlook);
