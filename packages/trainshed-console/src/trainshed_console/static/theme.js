// Applies the light or dark theme before the page is drawn.
"use strict";

{
  const kept = localStorage.getItem("theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}

/** Switch between light and dark, and store the choice in this browser. */
const switchTheme = () => {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme
    ? dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", dataset.theme);
  dispatchEvent(new Event("theme"));
};
