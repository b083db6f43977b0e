// Charts of lines over time, over steps, or over a parameter.
"use strict";

/**
 * Return a colour of the stylesheet.
 * @param {string} name such as "--ink"
 */
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @typedef {number | null | undefined} Value null and undefined: a gap */

/**
 * Return how much memory or disk that is.
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
 * Return a number with four digits.
 * @param {Value} n
 */
const plain = (n) => {
  if (n == null) return "–";
  const isFar = Math.abs(n) >= 1e5 || (n !== 0 && Math.abs(n) < 1e-3);
  return isFar ? n.toExponential(2) : String(Number(n.toPrecision(4)));
};

/**
 * Return a part of a whole in per cent.
 * @param {Value} n 0 to 1
 */
const share = (n) => (n == null ? "–" : `${Math.round(n * 100)} %`);

/**
 * What the places of a chart count.
 * @typedef {object} Axis
 * @property {string} label
 * @property {(place: number) => string} says
 * @property {uPlot.Scale} scale
 * @property {uPlot.Axis} marks where it has marks, and what they say
 */

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
const DAYS = [86400, 172800, 604800];
const STEPS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));
const POWERS = [...Array(50).keys()].map((power) => 2 ** power);

/** @type {Axis} */
const CLOCK_AXIS = {
  label: "Time",
  says: (place) => clock.format(new Date(place * 1000)),
  scale: { time: true },
  marks: {
    space: 90,
    values: (_, places) => places.map((place) => CLOCK_AXIS.says(place)),
  },
};
/** @type {Axis} */
const DURATION_AXIS = {
  label: "Time",
  says: seconds,
  scale: { time: false },
  marks: { space: 90, incrs: [...SPANS, ...DAYS], values: (_, places) => places.map(seconds) },
};
/** @type {Axis} */
const STEP_AXIS = {
  label: "Step",
  says: plain,
  scale: { time: false },
  marks: { space: 70, incrs: STEPS },
};

/**
 * Return the axis of a parameter.
 * @param {string} label
 * @param {boolean} isLog
 * @param {string[] | null} names those that its places 0, 1, 2, … stand for; null: it is a number
 * @returns {Axis}
 */
const parameterAxis = (label, isLog, names) => {
  const says = (/** @type {number} */ place) => (names ? (names[place] ?? "") : plain(place));
  return {
    label,
    says,
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
      // A logarithmic axis has marks without a text.
      values: (_, places) => places.map((place) => (place == null ? "" : says(place))),
    },
  };
};

/**
 * A line of a chart.
 * @typedef {object} Line
 * @property {string} name
 * @property {Value[]} values by the chart's places
 * @property {"points" | "steps" | "edge" | "limit" | undefined} [form] "edge": it bounds the band around the line
 *   before, and the line after it has the other edge; "limit": a dashed line without values of its own
 * @property {number} [tone] which colour of the palette it has; not set: that of its number
 */

/**
 * How a chart is drawn.
 * @typedef {object} Look
 * @property {Axis} across what its places count
 * @property {(value: Value) => string} [says]
 * @property {boolean} [points] whether each value has a dot
 * @property {boolean} [fromZero]
 * @property {boolean} [isLog]
 * @property {number[]} [marks] places of vertical lines
 * @property {boolean} [gapless] whether lines go on over gaps, and the cursor shows their nearest values
 * @property {string} [together] names the charts that share its cursor
 * @property {(first?: number, last?: number) => void} [zoomed] called with the places that somebody chose;
 *   without any: with a double click
 */

/** The charts by the elements that hold them. @type {Map<Element, uPlot>} */
const charts = new Map();

/**
 * Draw a chart in place of the one that a box holds.
 * @param {HTMLElement} box
 * @param {number[]} at the places, ascending
 * @param {Line[]} lines
 * @param {Look} look
 */
const draw = (box, at, lines, look) => {
  const { across, says = plain, zoomed, together, gapless = false } = look;
  // Also those of parts that were put anew: each hears of every movement of the mouse until it is destroyed.
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
  if (zoomed)
    hooks.setSelect = [
      (chart) => {
        const { left, width } = chart.select;
        if (width) zoomed(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
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
        // Lines that lie under others are seen when the cursor, or its name in the legend, selects them.
        focus: { prox: lines.length > 1 ? 24 : -1 },
        ...(together && { sync: { key: together } }),
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
          ...(says === bytes && { incrs: POWERS }),
          values: (_, values) => values.map((value) => (value == null ? "" : says(value))),
        },
      ],
      series: [
        { label: across.label, value: (_, place) => (place == null ? "" : across.says(place)) },
        ...lines.map((line, i) => seriesOf(lines, i, says, gapless, look.points || at.length < 12)),
      ],
    },
    [at, ...lines.map(({ values }) => values)],
    box,
  );
  charts.set(box, chart);
  if (zoomed) chart.over.addEventListener("dblclick", () => zoomed());
};

/**
 * Return a colour of the palette, from which so many per cent are taken.
 * @param {number} tone
 * @param {number} [less]
 */
const colourOf = (tone, less = 0) => {
  const colour = ink(`--c${(tone % 8) + 1}`);
  return less ? `color-mix(in oklab, ${colour}, transparent ${less}%)` : colour;
};

/**
 * Return the bands between edges.
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
 * Return how the line of a number is drawn and read out.
 * @param {Line[]} lines
 * @param {number} i
 * @param {(value: Value) => string} says
 * @param {boolean} gapless
 * @param {boolean} dotted whether each value has a dot
 * @returns {uPlot.Series}
 */
const seriesOf = (lines, i, says, gapless, dotted) => {
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
      return hasBand ? `${says(value)} (${says(low)} to ${says(high)})` : says(value);
    },
  };
  if (form === "edge") series.class = "edge";
  if (form === "points") {
    series.paths = () => null;
    series.points = { show: true, size: 6, fill: colourOf(tone) };
  }
  // A line over an equal one is dashed, so that both colours are seen.
  const text = JSON.stringify(lines[i].values);
  const below = lines.slice(0, i).filter(({ values }) => JSON.stringify(values) === text).length;
  if (below && !form) series.dash = [16 / (below + 1), (16 * below) / (below + 1)];
  if (form === "limit") {
    series.stroke = ink("--bad");
    series.dash = [6, 4];
    series.points = { show: false };
  }
  if (form === "steps") series.paths = uPlot.paths.stepped?.({ align: 1 });
  // The palette has eight colours.
  if (tone >= 8 && form !== "limit") series.dash = [4, 3];
  return series;
};

/**
 * Draw dashed lines where a program was started again.
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
 * Return the place nearest to `at` where a line has a value: lines have values at places of their own.
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
 * Draw something now, and anew whenever the page, its colours or its width change.
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
