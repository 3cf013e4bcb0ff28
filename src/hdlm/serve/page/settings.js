// The controls: what they say, what the model cannot do and why, and the request that they make.

import { at, make } from "./dom.js";
import { levelsOf } from "./schedule.js";

export const WAYS = {
  ar: ["Autoregression", "One token after the other, left to right. Nothing is taken back."],
  speculation: [
    "Speculation",
    "The very text of autoregression with this seed, drafted ahead and verified, in fewer network calls.",
  ],
  block: ["Block", "A block at a time: all its positions come out of the noise together, then the next block."],
  slide: ["Slide", "A window slides over the text: nearly clean at its left end, nearly noise at its right."],
  flat: ["Flat", "All positions at once, from noise to clean, in any order that the sampler likes."],
  drawn: [
    "Drawn",
    "A hyperschedule of your own: draw when each position begins its descent from noise and when it is done.",
  ],
  own: ["As trained", "The hyperschedule that this model was trained on."],
};

const SAMPLERS = {
  posterior: "The process's own law between two noise levels. Exact.",
  "tau-leaping": "The same law, from scores.",
  original: "Unmask, and never touch again.",
  certain: "Settles first where the network is surest of its likeliest token.",
  bounded: "The surest positions first, as many a step as can be drawn independently at a bounded price.",
  "left-to-right": "Settles the leftmost position first, seeing the masks behind it.",
  confidence: "Settles first what was drawn with the most probability. As at a lower temperature.",
  remask: "Sends written tokens back to MASK now and then, so that it can correct itself.",
  acs: "Draws written tokens anew now and then, so that it corrects itself.",
  "acs-paper": "As acs, from outputs as they were trained. Far stronger at equal eta.",
  euler: "First order in the noise of a step.",
};
const UNMASKED = ["posterior", "tau-leaping", "euler"];
/** Why a model does not have a sampler. */
function lacking(name, masks) {
  if (masks === false && !UNMASKED.includes(name)) return "needs MASK";
  return name.startsWith("acs") ? "needs noise that alters tokens" : "not for this kind of noise";
}
const WITH_ETA = ["acs", "acs-paper", "remask"];
const THRESHOLDS = {
  certain: "Settle every token at once whose likeliest candidate has more than this probability.",
  confidence: "Settle every token at once that was drawn with more than this probability.",
  bounded: "The price of drawing several at once that a step may have, in nats (0.1).",
};
const ONE_BY_ONE = ["ar", "speculation"];
const WIDTH_NOTES = {
  ar: "One token at a time.",
  speculation: "One token at a time, drafted ahead.",
  flat: "All tokens at a time.",
  drawn: "As it is drawn.",
  own: "The model's own.",
};
const RATE_NOTES = {
  ar: "One token per step.",
  speculation: "As many as the drafts are right.",
  own: "The model's own.",
};
const WIDTHS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
const RATES = [0.25, 0.33, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16];
/** The field of the page that a field of a request comes from. */
export const FIELDS = {
  prompt: "prompt",
  text: "prompt",
  max_tokens: "length",
  temperature: "temperature",
  top_p: "top-p",
  top_k: "top-k",
  seed: "seed",
  sampler: "sampler",
  eta: "eta",
  threshold: "threshold",
  width: "width",
  rate: "rate",
  n: "count",
  model: "model",
  levels: "grid",
  ignore_eos: "ignore-eos",
};

/** A field as a number, null where it is empty; what is none goes to the server, which says so. */
function number(id) {
  const words = at(id).value.trim();
  if (words === "") return null;
  return Number.isNaN(Number(words)) ? words : Number(words);
}
export const chosenWay = () => document.querySelector("input[name=way]:checked").value;
export const hasGap = () => /\[\[gap(:[^\]]*)?\]\]/.test(at("prompt").value);

/** What can be had of a model, by name: true, or why not. */
export function can(model, way) {
  const told = model?.hdlm ?? {};
  if (way === "speculation" && told.speculation === false)
    return "speculation needs a network that predicts the next token, and MASK to draft with";
  return true;
}

function trained(model, way) {
  const list = model?.hdlm?.trained_on;
  const word = { ar: "next token", speculation: "next token", block: "block", slide: "slide", flat: "flat" }[way];
  return (
    !list?.length ||
    !word ||
    list.some((name) => name.startsWith(word) || (word === "next token" && /quench|block 1$|slide 1$/.test(name)))
  );
}

/** A slider over a list of values. */
function ladder(id, values, value) {
  const slider = at(id),
    list = [...new Set([...values, value])].sort((a, b) => a - b);
  Object.assign(slider, { min: 0, max: list.length - 1, step: 1 });
  slider.value = list.indexOf(value);
  slider.values = list;
}
const rung = (id) => at(id).values[Number(at(id).value)];

export function fillSamplers(select, model, whose = "the model's own") {
  const told = model?.hdlm?.samplers,
    own = model?.hdlm?.sampling?.sampler;
  select.replaceChildren(
    make("option", { value: "" }, whose + (own ? " (" + own + ")" : "")),
    ...Object.keys(SAMPLERS).map((name) => {
      const lacks = Boolean(told) && !told.includes(name);
      const option = make("option", { value: name }, name + (lacks ? ": " + lacking(name, model.hdlm.masks) : ""));
      option.disabled = lacks;
      return option;
    }),
  );
  select.value = "";
}

/** Fit all controls to a model. */
export function fit(model, limits) {
  const told = model.hdlm ?? {},
    own = told.hyperschedule ?? {},
    context = told.context ?? 512;
  const kind = { quench: "ar", ar: "ar", block: "block", slide: "slide", flat: "flat" }[own.kind];
  at("own-way").hidden = kind !== undefined || !own.kind;
  for (const radio of document.querySelectorAll("input[name=way]")) {
    const allowed = can(model, radio.value);
    radio.disabled = allowed !== true;
    radio.parentElement.title = allowed === true ? "" : "Not for this model: " + allowed;
    radio.checked = radio.value === (kind ?? (own.kind ? "own" : "block"));
  }
  ladder(
    "width",
    WIDTHS.filter((width) => width <= context),
    own.width ?? Math.min(16, context),
  );
  ladder("rate", RATES, own.rate ?? 1);
  const most = Math.min(limits?.max_tokens ?? context, context);
  Object.assign(at("length"), { max: Math.max(8, most - (most % 8)) });
  at("length").value = Math.min(96, Math.max(8, 0.6 * most)); // with room for a prompt
  at("temperature").value = told.sampling?.temperature ?? 1;
  at("top-p").value = told.sampling?.top_p ?? 1;
  at("top-k").value = told.sampling?.top_k ?? "";
  at("eta").value = told.sampling?.eta ?? 0.05;
  [...at("count").options].forEach((option) => {
    option.disabled = Number(option.value) > (limits?.max_samples ?? 4);
  });
  fillSamplers(at("sampler"), model);
  fitGaps(told.gaps, context);
  show(model, "write");
}

/** What can be done with gaps, and why not more. */
function fitGaps(gaps, context) {
  const none = gaps === null,
    open = gaps?.open !== false && !none,
    widest = gaps?.widest ?? context,
    why = none
      ? "No gaps here: this model does not see what stands right of one."
      : [
          open ? "" : "A gap needs a number of tokens: for any length this model would have to predict the next token.",
          widest < context ? "A gap and what stands right of it must fit into " + widest + " tokens." : "",
        ]
          .filter(Boolean)
          .join(" ");
  at("make-gap").disabled = at("rewrite").disabled = none;
  at("gap-note").textContent = at("rewrite-note").textContent = why;
  at("gap-note").hidden = at("rewrite-note").hidden = !why;
  at("gap-length").querySelector("[value=open]").disabled = at("rewrite-open").disabled = !open;
}

/** Let the controls say what they are at, and hide what the chosen way does not have. */
export function show(model, view) {
  const way = chosenWay(),
    racing = view === "race",
    gaps = hasGap() && !racing;
  const single = !gaps && ONE_BY_ONE.includes(way);
  showWay(model, way, gaps);
  showSampler(at("sampler").value || model?.hdlm?.sampling?.sampler, single, racing);
  const fixed = ["ways", "width-field", "rate-field", "sampler-field", "count-field", "gap-tools"];
  for (const name of fixed) at(name).hidden = racing;
  at("lanes").hidden = !racing;
  at("prompt-note").hidden = racing;
  at("eos-field").hidden = gaps;
  const drawn = racing ? [0, 1].some((k) => at("lane-way-" + k)?.value === "drawn") : way === "drawn" && !gaps;
  at("drawing").hidden = !drawn;
  at("length").disabled = gaps;
  at("length-note").textContent = gaps
    ? "The gaps say how long they are."
    : "New tokens at most. A text may end before.";
  at("rate").disabled = single || (!gaps && way === "own");
  at("rate-note").textContent =
    (gaps ? null : RATE_NOTES[way]) ?? "Tokens per step. Above 1 is a quick draft, below 1 thinks hard.";
  for (const id of ["width", "rate"]) at(id + "-shown").value = at(id).disabled ? "" : rung(id);
  for (const id of ["length", "temperature", "top-p", "eta"]) at(id + "-shown").value = at(id).value;
}

function showWay(model, way, gaps) {
  const closed = [...document.querySelectorAll("input[name=way]")].map((radio) => can(model, radio.value));
  const refused = closed.filter((why) => why !== true),
    words = [WAYS[way][1]];
  if (!trained(model, way)) words.push("This model was not trained so: expect little.");
  if (refused.length) words.push("Not for this model: " + refused.join("; ") + ".");
  at("ways").disabled = gaps;
  at("way-note").textContent = gaps
    ? "With gaps in the prompt all of them are filled together, whatever the hyperschedule; the rate counts."
    : words.join(" ");
  at("width").disabled = gaps || !["block", "slide"].includes(way);
  at("width-note").textContent = gaps
    ? "Gaps have no width."
    : (WIDTH_NOTES[way] ?? "How many tokens are worked on at a time.");
}

/** `single`: one token after the other; `racing`: each way has a sampler of its own. */
function showSampler(sampler, single, racing) {
  at("sampler").disabled = single;
  at("sampler-note").textContent = single
    ? "Autoregression has one way to draw."
    : (SAMPLERS[sampler] ?? "How a step goes from one noise level to the next.");
  at("eta-field").hidden = !racing && (single || !WITH_ETA.includes(sampler));
  at("eta-note").textContent = racing
    ? "For samplers that take tokens back: acs, remask."
    : "How readily tokens are taken back and drawn anew.";
  at("threshold-field").hidden = !racing && (single || !(sampler in THRESHOLDS));
  at("threshold-note").textContent = racing
    ? "For samplers that have one: certain, bounded, confidence."
    : (THRESHOLDS[sampler] ?? "");
}

/** The way that the page's own controls ask for. */
export function asked() {
  return { way: chosenWay(), width: rung("width"), rate: rung("rate"), sampler: at("sampler").value };
}

/** How to draw, of any request. */
function drawing(model, { way, sampler }, fill) {
  const single = !fill && ONE_BY_ONE.includes(way),
    named = sampler || model?.hdlm?.sampling?.sampler;
  const body = { model: model.id, temperature: number("temperature"), top_p: number("top-p"), top_k: number("top-k") };
  if (at("seed").value.trim()) body.seed = at("seed").value.trim();
  if (!single && sampler) body.sampler = sampler;
  if (!single && WITH_ETA.includes(named)) body.eta = number("eta");
  if (!single && named in THRESHOLDS) body.threshold = number("threshold");
  return body;
}

/** A request to write behind a prompt, in one of the ways. */
export function writing(model, how, grid) {
  const length = number("length"),
    body = { ...drawing(model, how, false), prompt: at("prompt").value, max_tokens: length };
  if (at("ignore-eos").checked) body.ignore_eos = true;
  if (how.way === "speculation") body.speculate = true;
  else if (how.way === "drawn") {
    Object.assign(body, { hyperschedule: "custom", levels: levelsOf(grid.drawn.spread(length, how.rate)) });
  } else if (how.way !== "own") body.hyperschedule = how.way;
  if (how.way === "block" || how.way === "slide") body.width = how.width;
  if (["block", "slide", "flat"].includes(how.way)) body.rate = how.rate;
  return body;
}

/** A request to fill the gaps of a text. */
export function filling(model, text) {
  const how = asked();
  return { ...drawing(model, how, true), text, rate: how.rate };
}
