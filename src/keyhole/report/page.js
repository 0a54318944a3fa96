"use strict";
{
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => theme.setAttribute("aria-pressed", String(dark()));
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
  document.getElementById("print").addEventListener("click", () => window.print());
  for (const each of document.querySelectorAll(".buttons button, .tools")) each.hidden = false;

  // A browser prints only pictures that it has loaded.
  addEventListener("beforeprint", () => {
    for (const image of document.images) image.loading = "eager";
  });
}
