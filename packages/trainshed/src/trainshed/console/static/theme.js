// Light or dark, before anything is painted.
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  window.switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    dispatchEvent(new Event("theme"));
  };
})();
