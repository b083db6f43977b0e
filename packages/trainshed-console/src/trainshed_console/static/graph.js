// The graph of a pipeline job. A click selects, opens or folds a box without loading the page: the event stream of the
// new address sends the changed parts.
"use strict";

const graph = need(".graph", HTMLElement);
graph.scrollLeft = (graph.scrollWidth - graph.clientWidth) / 2;
const showAddress = () => {
  stream.move(`/events${location.pathname}${location.search}`);
  stream.open();
};
let isClicked = false;
document.addEventListener("click", (event) => {
  const link = closest(event, "a[data-graph]", HTMLAnchorElement);
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  isClicked = true;
  showAddress();
});
addEventListener("popstate", showAddress);
// On a phone, the selected task is below the graph.
document.addEventListener("part", ({ target }) => {
  if (!(target instanceof HTMLElement) || target.id !== "task" || !isClicked) return;
  isClicked = false;
  target.scrollIntoView({ block: "nearest" });
});
