"use strict";
{
  // One tip for all: it stays while the pointer is on it, and Escape closes it.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.querySelector("main").append(tip);
  let owner = null;
  let closing = 0;

  const textOf = (element) => {
    const key = element.dataset.term || (element.getAttribute("href") || "").replace("#term-", "");
    const about = key && document.getElementById(`about-${key}`);
    return about ? about.textContent : element.dataset.tip;
  };

  const close = () => {
    clearTimeout(closing);
    tip.hidden = true;
    if (owner && !owner.classList.contains("term")) owner.removeAttribute("aria-describedby");
    owner = null;
  };

  const open = (element) => {
    clearTimeout(closing);
    if (owner === element) return;
    close();
    const text = textOf(element);
    if (!text) return;
    owner = element;
    tip.textContent = text;
    if (!element.classList.contains("term")) element.setAttribute("aria-describedby", "tip");
    tip.hidden = false;
    place();
  };

  const place = () => {
    if (!owner) return;
    const box = owner.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const edge = document.documentElement.clientWidth - own.width - 8;
    const below = box.bottom + 6 + own.height < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(box.left, edge))}px`;
    tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - own.height - 6)}px`;
  };

  const closeSoon = () => {
    clearTimeout(closing);
    closing = setTimeout(close, 150);
  };

  for (const head of document.querySelectorAll("th[title]")) {
    head.dataset.tip = head.title;
    head.removeAttribute("title");
    head.tabIndex = 0;
  }
  for (const element of document.querySelectorAll(".term, [data-tip]")) {
    element.addEventListener("pointerenter", () => open(element));
    element.addEventListener("pointerleave", closeSoon);
    element.addEventListener("focus", () => open(element));
    element.addEventListener("blur", close);
  }
  tip.addEventListener("pointerenter", () => clearTimeout(closing));
  tip.addEventListener("pointerleave", closeSoon);
  addEventListener("keydown", (event) => event.key === "Escape" && close());
  addEventListener("scroll", place, { passive: true, capture: true });
  addEventListener("resize", place);
}
