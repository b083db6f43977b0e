// Line charts over time, steps or a parameter.
"use strict";

/**
 * Return a color of the stylesheet.
 * @param {string} name such as "--ink"
 */
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @typedef {number | null | undefined} Value null and undefined are gaps */

/**
 * Return a size in bytes as text with a unit.
 * @param {Value} n bytes
 */
const bytes = (n) => {
  if (n == null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(n) < 1024) return `${n.toFixed(n >= 100 || unit === "B" ? 0 : 1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
};

/**
 * Return a number with four significant digits.
 * @param {Value} n
 */
const plain = (n) => {
  if (n == null) return "–";
  const isFar = Math.abs(n) >= 1e5 || (n !== 0 && Math.abs(n) < 1e-3);
  return isFar ? n.toExponential(2) : String(Number(n.toPrecision(4)));
};

/**
 * Return a fraction as a percentage.
 * @param {Value} n 0 to 1
 */
const share = (n) => (n == null ? "–" : `${Math.round(n * 100)} %`);

/**
 * The horizontal axis of a chart.
 * @typedef {object} Axis
 * @property {string} label
 * @property {(place: number) => string} format the text of a position
 * @property {uPlot.Scale} scale
 * @property {uPlot.Axis} marks positions and texts of its marks
 */

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
const DAYS = [86400, 172800, 604800];
const STEPS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));
const POWERS = [...Array(50).keys()].map((power) => 2 ** power);

/** @type {Axis} */
const CLOCK_AXIS = {
  label: "Time",
  format: (place) => clock.format(new Date(place * 1000)),
  scale: { time: true },
  marks: {
    space: 90,
    values: (_, places) => places.map((place) => CLOCK_AXIS.format(place)),
  },
};
/** @type {Axis} */
const DURATION_AXIS = {
  label: "Time",
  format: seconds,
  scale: { time: false },
  marks: { space: 90, incrs: [...SPANS, ...DAYS], values: (_, places) => places.map(seconds) },
};
/** @type {Axis} */
const STEP_AXIS = {
  label: "Step",
  format: plain,
  scale: { time: false },
  marks: { space: 70, incrs: STEPS },
};

/**
 * Return the axis of a parameter.
 * @param {string} label
 * @param {boolean} isLog
 * @param {string[] | null} names values of a categorical parameter, at positions 0, 1, 2, …; null: a numeric one
 * @returns {Axis}
 */
const parameterAxis = (label, isLog, names) => {
  const format = (/** @type {number} */ place) => (names ? (names[place] ?? "") : plain(place));
  return {
    label,
    format,
    scale: {
      time: false,
      distr: isLog ? 3 : 1,
      range: (_, low, high) => {
        const space = (high - low) / 40;
        return isLog ? [low / 1.1, high * 1.1] : [low - space, high + space];
      },
    },
    marks: {
      space: 70,
      ...(names && { incrs: [1] }),
      // A logarithmic axis also has marks without text.
      values: (_, places) => places.map((place) => (place == null ? "" : format(place))),
    },
  };
};

/**
 * A line of a chart.
 * @typedef {object} Line
 * @property {string} name
 * @property {Value[]} values one for each position of the chart
 * @property {"points" | "steps" | "edge" | "limit" | undefined} [form] "edge": one border of the band around the
 *   previous line; the next line is the other border; "limit": a dashed line for a limit
 * @property {number} [tone] its color in the palette; default: the number of the line
 */

/**
 * Options of a chart.
 * @typedef {object} Look
 * @property {Axis} across its horizontal axis
 * @property {(value: Value) => string} [format] the text of a value
 * @property {boolean} [points] whether each value has a dot
 * @property {boolean} [fromZero]
 * @property {boolean} [isLog]
 * @property {number[]} [marks] positions of vertical lines
 * @property {boolean} [gapless] whether lines cross gaps and the cursor shows the nearest values
 * @property {string} [cursorGroup] charts with the same text share the cursor
 * @property {(first?: number, last?: number) => void} [onZoom] called with the selected range, or without
 *   arguments after a double click
 */

/** The charts by their elements. @type {Map<Element, uPlot>} */
const charts = new Map();

/**
 * Draw a chart, and remove the previous chart of the same element.
 * @param {HTMLElement} box
 * @param {number[]} at the positions, ascending
 * @param {Line[]} lines
 * @param {Look} look
 */
const draw = (box, at, lines, look) => {
  const { across, format = plain, onZoom, cursorGroup, gapless = false } = look;
  // Also destroy charts of replaced parts: each handles every mouse movement until it is destroyed.
  for (const [held, old] of charts)
    if (held === box || !held.isConnected) {
      old.destroy();
      charts.delete(held);
    }
  const axis = {
    stroke: ink("--soft"),
    grid: { stroke: ink("--rule"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  /** @type {uPlot.Hooks.Arrays} */
  const hooks = { draw: [(chart) => drawMarks(chart, look.marks ?? [])] };
  if (onZoom)
    hooks.setSelect = [
      (chart) => {
        const { left, width } = chart.select;
        if (width) onZoom(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
      },
    ];
  /** @type {uPlot.Scale} */
  let scale = {};
  if (look.isLog) scale = { distr: 3 };
  else if (look.fromZero) scale = { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] };
  const chart = new uPlot(
    {
      width: Math.max(box.clientWidth, 200),
      // The stylesheet sets the height with a legend of one line. A longer legend makes the box higher.
      height: Math.max(Number.parseFloat(getComputedStyle(box).minHeight) - 36, 160) || 308,
      cursor: {
        y: false,
        points: { size: 6 },
        // The cursor, or the name in the legend, highlights a line that other lines cover.
        focus: { prox: lines.length > 1 ? 24 : -1 },
        ...(cursorGroup && { sync: { key: cursorGroup } }),
        ...(gapless && { dataIdx: nearest }),
      },
      hooks,
      legend: { live: true },
      focus: { alpha: 0.2 },
      bands: bandsOf(lines),
      scales: { x: across.scale, y: scale },
      axes: [
        { ...axis, size: 28, ...across.marks },
        {
          ...axis,
          size: 68,
          ...(format === bytes && { incrs: POWERS }),
          values: (_, values) => values.map((value) => (value == null ? "" : format(value))),
        },
      ],
      series: [
        { label: across.label, value: (_, place) => (place == null ? "" : across.format(place)) },
        ...lines.map((line, i) => seriesOf(lines, i, format, gapless, look.points || at.length < 12)),
      ],
    },
    [at, ...lines.map(({ values }) => values)],
    box,
  );
  charts.set(box, chart);
  if (onZoom) chart.over.addEventListener("dblclick", () => onZoom());
};

/**
 * Return a color of the palette, with some transparency.
 * @param {number} tone
 * @param {number} [less] the transparency in percent
 */
const colourOf = (tone, less = 0) => {
  const colour = ink(`--c${(tone % 8) + 1}`);
  return less ? `color-mix(in oklab, ${colour}, transparent ${less}%)` : colour;
};

/**
 * Return the bands between lines with the form "edge".
 * @param {Line[]} lines
 * @returns {uPlot.Band[]}
 */
const bandsOf = (lines) =>
  lines.flatMap(({ form, tone = 0 }, i) => {
    const next = lines[i + 1];
    if (form !== "edge" || next?.form !== "edge" || next.tone !== tone) return [];
    return [{ series: [i + 2, i + 1], fill: colourOf(tone, 85) }];
  });

/**
 * Return the options of a line: its style, and the text of its values.
 * @param {Line[]} lines
 * @param {number} i
 * @param {(value: Value) => string} format
 * @param {boolean} gapless
 * @param {boolean} dotted whether each value has a dot
 * @returns {uPlot.Series}
 */
const seriesOf = (lines, i, format, gapless, dotted) => {
  const { name, form, tone = i } = lines[i];
  const hasBand = form !== "edge" && lines[i + 1]?.form === "edge";
  /** @type {uPlot.Series} */
  const series = {
    label: name,
    stroke: colourOf(tone, form === "edge" ? 60 : 0),
    width: 1.5,
    points: { show: form !== "edge" && dotted, size: 6 },
    spanGaps: gapless,
    value: (chart, value, n, at) => {
      if (value == null || at == null) return "";
      const [low, high] = [chart.data[n + 1]?.[at], chart.data[n + 2]?.[at]];
      return hasBand ? `${format(value)} (${format(low)} to ${format(high)})` : format(value);
    },
  };
  if (form === "edge") series.class = "edge";
  if (form === "points") {
    series.paths = () => null;
    series.points = { show: true, size: 6, fill: colourOf(tone) };
  }
  // If two lines have the same values, the upper one is dashed, so that both colors are visible.
  const text = JSON.stringify(lines[i].values);
  const below = lines.slice(0, i).filter(({ values }) => JSON.stringify(values) === text).length;
  if (below && !form) series.dash = [16 / (below + 1), (16 * below) / (below + 1)];
  if (form === "limit") {
    series.stroke = ink("--bad");
    series.dash = [6, 4];
    series.points = { show: false };
  }
  if (form === "steps") series.paths = uPlot.paths.stepped?.({ align: 1 });
  // The palette has eight colors.
  if (tone >= 8 && form !== "limit") series.dash = [4, 3];
  return series;
};

/**
 * Draw a vertical dashed line for each restart of a program.
 * @param {uPlot} chart
 * @param {number[]} marks
 */
const drawMarks = ({ ctx, bbox, valToPos }, marks) => {
  ctx.save();
  ctx.strokeStyle = ink("--soft");
  ctx.setLineDash([4, 4]);
  for (const mark of marks) {
    const left = Math.round(valToPos(mark, "x", true)) + 0.5;
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
};

/**
 * Return the position nearest to `at` at which a line has a value. Not every line has a value at each position.
 * @param {uPlot} chart
 * @param {number} series
 * @param {number} at
 */
const nearest = (chart, series, at) => {
  const values = chart.data[series];
  for (let far = 0; far < values.length; far++)
    for (const place of [at - far, at + far]) if (values[place] != null) return place;
  return at;
};

/**
 * Draw now, and again after each change of the page, its colors or its width.
 * @param {() => void} drawing
 */
const drawAlways = (drawing) => {
  drawing();
  document.addEventListener("part", drawing);
  addEventListener("theme", drawing);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawing);
  let pause = 0;
  addEventListener("resize", () => {
    clearTimeout(pause);
    pause = setTimeout(drawing, 150);
  });
};
