"use strict";
{
  const pairs = [...document.querySelectorAll(".row .pair:not(.alone)")];
  const buttons = [...document.querySelectorAll(".wipe-all")];

  const addSlider = (pair) => {
    const slider = document.createElement("input");
    slider.type = "range";
    slider.min = 0;
    slider.max = 100;
    slider.value = 50;
    slider.className = "wipe";
    slider.setAttribute("aria-label", `Original against reconstruction, client ${pair.dataset.client}`);
    const move = () => {
      pair.style.setProperty("--cut", `${slider.value}%`);
      slider.setAttribute("aria-valuetext", `${slider.value}% original`);
    };
    slider.addEventListener("input", move);
    pair.append(slider);
    move();
  };

  const compare = (wiping) => {
    for (const pair of pairs) if (!pair.querySelector(".wipe")) addSlider(pair);
    document.documentElement.classList.toggle("wiping", wiping);
    for (const button of buttons) button.setAttribute("aria-pressed", String(wiping));
  };

  for (const button of buttons) {
    button.hidden = !pairs.length;
    button.addEventListener("click", () => compare(button.getAttribute("aria-pressed") !== "true"));
  }
}
