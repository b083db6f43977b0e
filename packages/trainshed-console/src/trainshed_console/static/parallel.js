// Parallel coordinates: a selected range on an axis fades the lines outside of it.
"use strict";

// Coordinates of the drawing, from the upper end of the axes down.
const [TOP, BOTTOM, HEIGHT] = [10, 250, 260];
const MIN_DRAG = 4;
const QUARTER = 60;
const PRESS = 24;

// Selected ranges, [upper end, lower end], by the position of the axis.
/** @type {Map<string, [number, number]>} */
const selectedRanges = new Map();

/**
 * Return whether a line passes through all selected ranges.
 * @param {Element} line
 */
const isInRanges = (line) => {
  const points = (line.getAttribute("points") ?? "").split(" ").map((point) => point.split(","));
  const places = new Map(points.map(([axis, place]) => [axis, Number(place)]));
  return [...selectedRanges].every(([axis, [top, end]]) => {
    const place = places.get(axis);
    return place !== undefined && place >= top - 1 && place <= end + 1;
  });
};

const drawRanges = () => {
  for (const field of pickAll(".parallel .field", SVGSVGElement)) {
    for (const grab of pickAll(".grab", SVGRectElement, field)) {
      const [top, end] = selectedRanges.get(grab.dataset.axis ?? "") ?? [0, 0];
      grab.nextElementSibling?.setAttribute("y", String(top));
      grab.nextElementSibling?.setAttribute("height", String(end - top));
    }
    const lines = pickAll(".trial", SVGPolylineElement, field);
    for (const line of lines) line.classList.toggle("out", !isInRanges(line));
    const kept = lines.filter((line) => !line.classList.contains("out"));
    const words = pick("[data-brushed]", HTMLElement, field.closest("section") ?? document);
    if (words) words.textContent = selectedRanges.size ? `${kept.length} of ${lines.length}` : "";
  }
};

document.addEventListener("pointerdown", (event) => {
  const grab = closest(event, ".parallel .grab", SVGRectElement);
  const box = grab?.ownerSVGElement?.getBoundingClientRect();
  const axis = grab?.dataset.axis;
  if (!grab || !box || axis === undefined) return;
  const place = (/** @type {PointerEvent} */ { clientY }) =>
    Math.min(BOTTOM, Math.max(TOP, ((clientY - box.top) / box.height) * HEIGHT));
  const from = place(event);
  const drag = (/** @type {PointerEvent} */ moved) => {
    const to = place(moved);
    if (Math.abs(to - from) < MIN_DRAG) selectedRanges.delete(axis);
    else selectedRanges.set(axis, [Math.min(from, to), Math.max(from, to)]);
    drawRanges();
  };
  const drop = (/** @type {PointerEvent} */ moved) => {
    drag(moved);
    grab.removeEventListener("pointermove", drag);
  };
  grab.setPointerCapture(event.pointerId);
  grab.addEventListener("pointermove", drag);
  grab.addEventListener("pointerup", drop, { once: true });
});

// The first key press selects the upper or lower quarter. Further ones move the range. Escape removes it.
document.addEventListener("keydown", (event) => {
  const axis = closest(event, ".parallel .grab", SVGRectElement)?.dataset.axis;
  const step = { ArrowUp: -PRESS, ArrowDown: PRESS, Escape: 0 }[event.key];
  if (axis === undefined || step === undefined) return;
  event.preventDefault();
  const quarter = step < 0 ? [TOP, TOP + QUARTER] : [BOTTOM - QUARTER, BOTTOM];
  const [top, end] = selectedRanges.get(axis)?.map((place) => place + step) ?? quarter;
  if (!step) selectedRanges.delete(axis);
  else if (top >= TOP && end <= BOTTOM) selectedRanges.set(axis, [top, end]);
  drawRanges();
});

drawAlways(drawRanges);
