"use strict";

// Embedded pages follow this page's light and dark, which a reader may have chosen against the system's.
document.addEventListener("DOMContentLoaded", () => {
  const frames = [...document.querySelectorAll("article iframe")];
  const tell = (frame) => {
    const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
    frame.contentWindow.postMessage({ theme }, "*");
  };
  frames.forEach((frame) => frame.addEventListener("load", () => tell(frame)));
  const changed = new MutationObserver(() => frames.forEach(tell));
  changed.observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
});

// The landing page's animation: each text as its replay wrote it, a call of the network at a time.
document.addEventListener("DOMContentLoaded", () => {
  const data = document.getElementById("lanes");
  if (!data) return;
  const lanes = JSON.parse(data.textContent);
  const places = [...document.querySelectorAll(".lane")];
  const [bar, button] = [document.querySelector(".lanes-bar input"), document.querySelector(".lanes-bar button")];
  const last = Math.max(...lanes.map((lane) => lane.steps));
  bar.max = last;
  lanes.forEach((lane, n) => {
    lane.spans = lane.pieces.map((piece) => Object.assign(document.createElement("span"), { textContent: piece }));
    places[n].querySelector(".text").replaceChildren(...lane.spans);
  });

  function show(step) {
    lanes.forEach((lane, n) => {
      const now = Math.min(step, lane.steps);
      lane.spans.forEach((span, i) => {
        const when = lane.when[i];
        span.className = when === 0 ? "given" : when > now ? "mask" : when === step ? "fresh" : "";
      });
      const written = lane.when.filter((when) => when > 0 && when <= now).length;
      places[n].querySelector(".calls").textContent =
        `${now} of ${lane.steps} calls of the network, ${written} tokens`;
    });
    bar.value = step;
  }

  // All lanes take a step at a time, so that fewer calls are seen to be sooner.
  let step = 0, timer = null;
  function tick() {
    step = step > last + 12 ? 0 : step + 1;  // rests at its end, then begins again
    show(Math.min(step, last));
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(tick, 140) : null;
    button.textContent = on ? "Pause" : "Play";
  }
  button.addEventListener("click", () => play(timer === null));
  bar.addEventListener("input", () => { play(false); step = Number(bar.value); show(step); });
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  show(still ? last : 0);
  play(!still);
});
