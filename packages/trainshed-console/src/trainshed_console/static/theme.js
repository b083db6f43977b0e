// Light or dark, before anything is painted.
"use strict";

{
  const kept = localStorage.getItem("theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}

/** Change between light and dark, and keep that in this browser. */
const switchTheme = () => {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme
    ? dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", dataset.theme);
  dispatchEvent(new Event("theme"));
};
