// The predictions of a search's model over one or two parameters, with their uncertainty. The service computes
// them when the user chooses parameters, and first for the most important one, when the form becomes visible.
"use strict";

/** @typedef {number | string} Setting of a parameter */

/**
 * @typedef {object} Parameter
 * @property {string} name
 * @property {Setting[]} values evenly spaced on its scale
 * @property {boolean} isLog
 */

/**
 * The response of the service. `expected`, `low` and `high` have a value for each setting of the first parameter
 * and, within it, of the second.
 * @typedef {object} Model
 * @property {string} metric
 * @property {boolean} isMaximized
 * @property {Parameter[]} axes one or two
 * @property {number[]} expected
 * @property {number[]} low
 * @property {number[]} high
 * @property {Setting[][]} points the settings and the result of each trial
 * @property {number} best number of the best trial
 * @property {Record<string, Setting>} others settings of the other parameters: those of the best trial
 * @property {string} [reason] why no predictions exist
 */

/**
 * The state of the page: the chosen parameters, "" for none; their model after the response; and the position that
 * the user selected with arrow keys.
 * @type {{ names: string[], model?: Model, at?: number } | null}
 */
let outlook = null;

/** @param {Setting} value */
const shown = (value) => (typeof value === "number" ? plain(value) : value);

/** @param {Model} model */
const hasPredictions = (model) => Boolean(model.expected?.length);

/**
 * Return the number of settings of the second parameter.
 * @param {Model} model
 */
const heightOf = ({ axes }) => axes[1]?.values.length ?? 1;

/**
 * Return the prediction at a position as text.
 * @param {Model} model
 * @param {number} at
 */
const describePlace = (model, at) => {
  const { metric, axes, expected, low, high } = model;
  const height = heightOf(model);
  const settings = [Math.floor(at / height), at % height];
  const doubt = Number(((high[at] - low[at]) / 2).toPrecision(2));
  const place = axes.map(({ name, values }, n) => `${name} ${shown(values[settings[n]])}`);
  return `${metric} ${plain(expected[at])} ± ${plain(doubt)} at ${place.join(", ")}`;
};

/**
 * Return the best and the most uncertain prediction as text.
 * @param {Model} model
 */
const describeModel = (model) => {
  const { expected, low, high, best, others, isMaximized } = model;
  const doubts = high.map((value, i) => value - low[i]);
  const top = expected.indexOf((isMaximized ? Math.max : Math.min)(...expected));
  const leastSure = doubts.indexOf(Math.max(...doubts));
  const kept = Object.entries(others).map(([name, value]) => `${name} ${shown(value)}`);
  const sentences = [
    `Best prediction: ${describePlace(model, top)}.`,
    `Most uncertain: ${describePlace(model, leastSure)}.`,
  ];
  if (kept.length) {
    sentences.push(`Other parameters as in trial ${best}, the best one: ${kept.join(", ")}.`);
    sentences.push("Dots show all trials, whatever their other parameters.");
  }
  return sentences.join(" ");
};

/**
 * Draw the predictions over one parameter as a band.
 * @param {HTMLElement} box
 * @param {Model} model
 * @param {number} [at]
 */
const drawBand = (box, model, at) => {
  const { metric, axes, expected, low, high, points } = model;
  const [{ name, values, isLog }] = axes;
  const place = (/** @type {Setting} */ value) =>
    typeof value === "number" ? value : values.indexOf(value);
  /** @type {Value[][]} rows with position, prediction, lower and upper bound, and the result of a trial */
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
 * Return the position of a setting on the map. Each setting is one unit wide; the first one is at 0 to 1.
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
 * Draw a map over two parameters. The best, or the most uncertain, values have the strongest color.
 * @param {HTMLElement} figure
 * @param {Model} model
 * @param {string} title
 * @param {number[]} values one for each position of the model
 * @param {"c1" | "c5"} colour
 * @param {boolean} isLeastStrong
 * @param {number} [at]
 */
const drawMap = (figure, model, title, values, colour, isLeastStrong, at) => {
  const [across, up] = model.axes;
  const [width, height] = [across.values.length, up.values.length];
  const extremes = [Math.max(...values), Math.min(...values)];
  const [strong, pale] = isLeastStrong ? extremes.reverse() : extremes;
  const swatch = (/** @type {string} */ name) => fromHtml(`<span class="swatch ${name}"></span>`);
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
 * Draw two maps: the predictions, and their uncertainty.
 * @param {HTMLElement} box
 * @param {Model} model
 * @param {number} [at]
 */
const drawMaps = (box, model, at) => {
  const { metric, expected, low, high, isMaximized } = model;
  const form = need("[data-outlook] ~ template", HTMLTemplateElement).innerHTML;
  const figures = [fromHtml(form), fromHtml(form)];
  box.append(...figures);
  const doubts = high.map((value, i) => (value - low[i]) / 2);
  drawMap(figures[0], model, `Expected ${metric}`, expected, "c5", !isMaximized, at);
  drawMap(figures[1], model, "Uncertainty, ±", doubts, "c1", false, at);
};

const drawOutlook = () => {
  const form = pick("[data-outlook]", HTMLFormElement);
  if (form && !outlook) visibility.observe(form);
  if (!form || !outlook) return;
  const { names, model, at } = outlook;
  pickAll("select", HTMLSelectElement, form).forEach((field, i) => {
    field.value = names[i];
  });
  let text = "";
  if (names.some(Boolean)) {
    if (!model) text = "Computing…";
    else text = model.reason || (at === undefined ? describeModel(model) : describePlace(model, at));
  }
  need("[data-outlook-says]", HTMLElement).textContent = text;
  const box = need("[data-outlook-box]", HTMLElement);
  charts.get(box)?.destroy();
  charts.delete(box);
  box.replaceChildren();
  const isDrawn = model && hasPredictions(model);
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
const visibility = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries)
    if (isIntersecting && !outlook && target instanceof HTMLFormElement) chooseParameters(target);
});
document.addEventListener("change", (event) => {
  const form = closest(event, "[data-outlook]", HTMLFormElement);
  if (form) chooseParameters(form);
});

// New results of trials change the model. Compute it again after a delay.
let pending = 0;
document.addEventListener("part", (event) => {
  if (!outlook || !closest(event, "#objective", HTMLElement)) return;
  pending ||= setTimeout(() => {
    pending = 0;
    compute();
  }, 3000);
});

// Arrow keys move from setting to setting, starting in the middle. Escape removes the position.
document.addEventListener("keydown", (event) => {
  const model = outlook?.model;
  if (!outlook || !model || !hasPredictions(model)) return;
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
  need("[data-outlook-says]", HTMLElement).textContent = describePlace(model, column * up + row);
});

drawAlways(drawOutlook);
