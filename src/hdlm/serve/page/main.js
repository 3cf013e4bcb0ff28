// The page: models and settings, the two views, and what starts and stops them.

import { keep, key, models } from "./api.js";
import { at, make } from "./dom.js";
import { putGap } from "./editing.js";
import { Grid } from "./grid.js";
import { Race } from "./race.js";
import { Recording } from "./record.js";
import { levelsOf, measured } from "./schedule.js";
import { asked, FIELDS, filling, fit, hasGap, show, writing } from "./settings.js";
import { Writer } from "./writer.js";

let served = { data: [], limits: {} },
  view = "write";
const model = () => served.data.find((one) => one.id === at("model").value) ?? served.data[0];
const say = (words) => {
  at("status").textContent = words;
};
const refresh = () => {
  if (!model()) return;
  show(model(), view);
  at("compose").classList.toggle("racing", view === "race");
  if (view === "write") writer.preview(ahead(asked()));
  else race.preview(ahead);
};

/** What is to be written by the settings, before it is. */
function ahead(how) {
  const { way, width, rate } = how,
    own = model().hdlm?.hyperschedule,
    length = Number(at("length").value),
    words = at("prompt").value;
  if (hasGap() && view === "write") {
    const parts = words.split(/\[\[gap(?::(\d+)[^\]]*)?\]\]/).map((part, i) => (i % 2 ? Number(part ?? 8) : part));
    const missing = parts.reduce((sum, part) => sum + (typeof part === "number" ? part : 0), 0),
      { maxLevel, steps } = measured("flat", missing, missing, rate);
    return Recording.ahead(parts, { kind: "fill" }, maxLevel, steps);
  }
  if (way === "drawn") {
    const drawn = grid.drawn.spread(length, rate);
    return Recording.ahead([words, length], { kind: "custom", levels: levelsOf(drawn) }, drawn.steps, drawn.steps);
  }
  const kind = { speculation: "ar", own: own?.levels ? "flat" : own?.kind }[way] ?? way;
  const { schedule, maxLevel, steps } = measured(kind, length, width, rate);
  return Recording.ahead([words, length], schedule, maxLevel, steps);
}

function clear() {
  at("error").hidden = true;
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
}

/** Show what went wrong, beside the button and at the field that it is about. */
function fail(problem) {
  if (problem.status === 401) {
    askForKey(key() ? "The server does not know this key." : "");
    return;
  }
  const field = at(FIELDS[problem.param] ?? ""),
    label = field && document.querySelector(`label[for="${field.id}"]`);
  const parts = [make("p", {}, problem.message)];
  if (field) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", "error");
    const name = label?.firstChild.textContent.trim() ?? problem.param,
      go = make("button", { type: "button", class: "quiet" }, "Go to: " + name);
    go.addEventListener("click", () => {
      if (at("more").contains(field)) at("more").open = true;
      field.focus();
    });
    if (at("more").contains(field)) at("more").open = true;
    parts.push(go);
  }
  at("error").replaceChildren(...parts);
  at("error").hidden = false;
  at("error").scrollIntoView({ block: "nearest" });
  say("");
}

function askForKey(words) {
  at("key-card").hidden = false;
  at("go").disabled = true;
  say(words);
  at("key").focus();
}

async function load() {
  try {
    served = await models();
  } catch (problem) {
    at("go").disabled = true;
    fail(problem);
    return;
  }
  at("key-card").hidden = true;
  at("go").disabled = false;
  clear();
  say("");
  at("model").replaceChildren(...served.data.map((one) => make("option", { value: one.id }, one.id)));
  take();
}

function take() {
  if (!model()) return;
  fit(model(), served.limits);
  race.fit(model());
  refresh();
  at("go").disabled = model().hdlm?.tokenizer === false;
  if (at("go").disabled)
    fail({
      message: "This model has no tokenizer: it takes and gives token ids, and this page wants text.",
      param: "model",
    });
}

const grid = new Grid(at("drawing"), refresh);
const writer = new Writer({ say, fail, rewrite: (text) => started(() => writer.run(filling(model(), text))) });
const race = new Race({ say, fail, request: (how) => ({ ...writing(model(), how, grid), n: 1 }), changed: refresh });

/** Run something that can be stopped; the buttons follow. */
async function started(runs) {
  clear();
  const focused = document.activeElement === at("go");
  at("stop").hidden = false;
  if (focused) at("stop").focus({ preventScroll: true });
  at("go").hidden = true;
  try {
    return await runs();
  } finally {
    const back = document.activeElement === at("stop");
    at("go").hidden = false;
    if (back) at("go").focus({ preventScroll: true });
    at("stop").hidden = true;
  }
}

async function go() {
  if (writer.running || race.running || at("go").disabled) return;
  if (view === "race") {
    if (hasGap()) {
      fail({ message: "A race writes behind a prompt: take the gaps out of it.", param: "prompt" });
      return;
    }
    const seed = at("seed").value.trim() || String(crypto.getRandomValues(new Uint32Array(1))[0]);
    reveal(at("race"));
    await started(() => race.run(seed));
    return;
  }
  say(hasGap() && /\[\[gap(:\d+-\d+)?\]\]/.test(at("prompt").value) ? "Trying lengths." : "Writing.");
  const body = hasGap() ? filling(model(), at("prompt").value) : writing(model(), asked(), grid);
  const many = Number(at("count").value);
  at("stage").hidden = false;
  reveal(at("text-card"));
  await started(() => writer.run(many > 1 ? { ...body, n: many } : body));
}

/** On a small screen the text is below the controls: go there. */
function reveal(element) {
  if (innerWidth <= 860)
    element.scrollIntoView({
      block: "start",
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
    });
}

function turn(to) {
  view = to;
  at("tab-write").setAttribute("aria-pressed", String(to === "write"));
  at("tab-race").setAttribute("aria-pressed", String(to === "race"));
  at("go").textContent = to === "race" ? "Race" : "Write";
  at("stage").hidden = to === "race";
  at("race").hidden = to !== "race";
  clear();
  say("");
  refresh();
}

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light" : "Dark";
  at("theme").setAttribute("aria-label", "Show the page in " + (theme === "dark" ? "light" : "dark") + " colours");
  writer?.draw();
}

let chosen = null;
try {
  chosen = localStorage.getItem("hdlm-theme");
} catch {
  /* then as the system has it */
}
const dark = matchMedia("(prefers-color-scheme: dark)");
dress(chosen ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => {
  if (!chosen) dress(dark.matches ? "dark" : "light");
});
at("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("hdlm-theme", chosen);
  } catch {
    /* it lasts as long as the page */
  }
  dress(chosen);
});

at("go").addEventListener("click", go);
at("stop").addEventListener("click", () => {
  (writer.stop ?? race.stop)?.abort();
});
at("tab-write").addEventListener("click", () => turn("write"));
at("tab-race").addEventListener("click", () => turn("race"));
at("model").addEventListener("change", take);
at("code-close").addEventListener("click", () => at("code").close());
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(at("key").value.trim());
  at("key").value = "";
  load();
});
at("make-gap").addEventListener("click", () => {
  const wanted = at("gap-length").value;
  putGap(at("prompt"), wanted === "same" ? "same" : wanted === "open" ? null : Number(wanted));
  refresh();
});
at("compose").addEventListener("input", refresh);
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!at("editor").hidden && at("editor").contains(document.activeElement)) at("rewrite").click();
    else go();
  }
});
load();
