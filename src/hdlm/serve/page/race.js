// Two ways to write, on one prompt and one seed: recorded one after the other, then played together.

import { stream } from "./api.js";
import { at, count, make, time } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { clock } from "./player.js";
import { Recording } from "./record.js";
import { can, fillSamplers, WAYS } from "./settings.js";
import { TextView } from "./textview.js";

const FIRST = [
  { way: "ar", width: 16, rate: 1 },
  { way: "speculation", width: 16, rate: 1 },
];
const WIDTHS = [1, 2, 4, 8, 16, 32, 64, 128],
  RATES = [0.25, 0.5, 1, 2, 4, 8];
const SPEEDS = [
  [1, "real time"],
  [0.5, "½ of real time"],
  [0.25, "¼ of real time"],
  [0.125, "⅛ of real time"],
];
const SIDES = ["Left", "Right"];

export class Race {
  constructor({ say, fail, request, changed }) {
    Object.assign(this, { say, fail, request, changed, stop: null, playing: null, records: [] });
    this.build();
  }

  get running() {
    return this.stop !== null;
  }

  /** The controls of both ways, for a model. */
  fit(model) {
    FIRST.forEach((first, k) => {
      const select = (name, label, values, chosen) => {
        const id = "lane-" + name + "-" + k,
          box = make(
            "select",
            { id },
            values.map(([value, words]) => make("option", { value }, words)),
          );
        box.value = chosen;
        box.addEventListener("change", () => this.shown(k));
        return make("div", { class: "field" }, make("label", { for: id }, label), box);
      };
      const ways = Object.entries(WAYS)
        .filter(([way]) => way !== "own")
        .map(([way, [name]]) => [way, name]);
      const possible = can(model, first.way) === true ? first.way : "block";
      at("lane-" + k).replaceChildren(
        select("way", SIDES[k] + " way", ways, possible),
        select(
          "width",
          "Width",
          WIDTHS.map((width) => [width, width]),
          first.width,
        ),
        select(
          "rate",
          "Rate",
          RATES.map((rate) => [rate, rate]),
          first.rate,
        ),
        select("sampler", "Sampler", [], ""),
        make("p", { class: "hint", id: "lane-note-" + k }),
      );
      for (const option of at("lane-way-" + k).options) {
        const why = can(model, option.value);
        option.disabled = why !== true;
        if (why !== true) option.textContent += ": " + why;
      }
      fillSamplers(at("lane-sampler-" + k), model, "own");
      this.shown(k);
    });
  }

  shown(k) {
    const { way } = this.asked(k);
    at("lane-width-" + k).disabled = !["block", "slide"].includes(way);
    at("lane-rate-" + k).disabled = ["ar", "speculation"].includes(way);
    at("lane-sampler-" + k).disabled = ["ar", "speculation"].includes(way);
    at("lane-note-" + k).textContent = WAYS[way][1];
    this.changed();
  }

  /** Before a race: what is to come, as `ahead` tells it of a way. */
  preview(ahead) {
    if (this.records.length || this.running) return;
    const both = SIDES.map((_, k) => ahead(this.asked(k))),
      tall = Math.max(...both.map((one) => one.texts[0].steps));
    this.lanes.forEach((lane, k) => {
      lane.title.textContent = this.name(k);
      lane.view.show(both[k], both[k].texts[0]);
      lane.view.draw(0);
      lane.map.show(both[k].texts[0], { tall });
      lane.map.draw(0);
    });
  }

  asked(k) {
    const value = (name) => at("lane-" + name + "-" + k).value;
    return { way: value("way"), width: Number(value("width")), rate: Number(value("rate")), sampler: value("sampler") };
  }

  /** In words: what a lane does. */
  name(k) {
    const { way, width, rate } = this.asked(k),
      words = WAYS[way][0];
    if (way === "ar" || way === "speculation") return words;
    return words + (way === "block" || way === "slide" ? " " + width : "") + (rate === 1 ? "" : ", rate " + rate);
  }

  build() {
    this.lanes = SIDES.map((side, k) => {
      const lane = {
        title: make("h2", {}),
        clock: make("span", { class: "clock" }),
        calls: make("span", { class: "calls" }),
        place: make("span", { class: "rank" }),
        text: make("div", { class: "text", role: "group", "aria-label": side + " text" }),
        canvas: make("canvas", {
          class: "map",
          tabindex: "0",
          role: "application",
          "aria-label": side + " hyperschedule: arrow keys read its levels",
        }),
        said: make("p", { class: "hint", "aria-live": "polite" }, "\u00a0"),
      };
      lane.card = make(
        "article",
        { class: "card lane-card", id: "race-" + k },
        make("div", { class: "lane-head" }, lane.title, lane.place),
        make("p", { class: "meters" }, lane.clock, lane.calls),
        lane.text,
        make("div", { class: "lane-map" }, lane.canvas, lane.said),
      );
      lane.view = new TextView(lane.text);
      lane.map = new HeatMap(lane.canvas, { said: lane.said });
      return lane;
    });
    this.note = make(
      "p",
      { class: "hint" },
      "So that neither slows the other, the two are recorded one after the other, and then played together by " +
        "the clock of each. Network calls are counted, whoever is faster here.",
    );
    this.verdict = make("p", { id: "verdict", class: "verdict", role: "status" });
    this.again = make("button", { type: "button", id: "race-again" }, "Play again");
    this.speed = make(
      "select",
      { id: "race-speed" },
      SPEEDS.map(([value, words]) => make("option", { value }, words)),
    );
    this.again.addEventListener("click", () => this.play());
    this.bar = make(
      "div",
      { class: "row race-bar" },
      this.again,
      make("label", { for: "race-speed" }, "Speed"),
      this.speed,
    );
    const legend = at("legend").cloneNode(true);
    for (const part of [legend, ...legend.querySelectorAll("[id]")]) part.removeAttribute("id");
    legend.lastElementChild.remove();
    at("race").append(
      this.note,
      this.bar,
      this.verdict,
      make(
        "div",
        { class: "two" },
        this.lanes.map((lane) => lane.card),
      ),
      legend,
    );
    this.bar.hidden = true;
  }

  async run(seed) {
    this.playing?.();
    this.stop = new AbortController();
    this.records = [];
    this.verdict.textContent = "";
    this.bar.hidden = true;
    at("race").dataset.state = "running";
    this.lanes.forEach((lane, k) => {
      lane.title.textContent = this.name(k);
      for (const part of [lane.clock, lane.calls, lane.place]) part.textContent = "";
      lane.text.replaceChildren();
      lane.card.classList.remove("first");
    });
    try {
      for (const k of [0, 1]) {
        this.say("Recording " + (k ? "the second" : "the first") + ": " + this.name(k) + ".");
        this.lanes[k].calls.textContent = "being recorded";
        const body = { ...this.request(this.asked(k)), seed };
        for await (const event of stream(body, this.stop.signal)) {
          if (event.type === "start") this.records[k] = new Recording(event, body);
          else this.records[k]?.take(event);
          if (event.type === "frame") this.lanes[k].calls.textContent = "being recorded: step " + (event.step + 1);
        }
        this.lanes[k].calls.textContent = "recorded";
      }
      this.stop = null;
      this.play(true);
    } catch (problem) {
      at("race").dataset.state = "stopped";
      if (problem.name === "AbortError") this.say("Stopped.");
      else this.fail(problem);
    } finally {
      this.stop = null;
    }
  }

  play(first = false) {
    this.playing?.();
    const texts = this.records.map((record) => record.texts[0]),
      longest = Math.max(...texts.map((text) => text.rows.at(-1).seconds));
    if (first) this.speed.value = longest < 1.5 ? 0.25 : longest < 4 ? 0.5 : 1;
    const tall = Math.max(...texts.map((text) => text.steps));
    this.bar.hidden = false;
    this.verdict.textContent = "";
    at("race").dataset.state = "playing";
    this.say("Both play.");
    this.lanes.forEach((lane, k) => {
      lane.view.show(this.records[k], texts[k]);
      lane.map.show(texts[k], { tall });
      lane.row = -1;
      lane.place.textContent = "";
      lane.card.classList.remove("first");
    });
    let now = 0;
    this.playing = clock((milliseconds) => {
      now += (milliseconds / 1000) * Number(this.speed.value);
      this.lanes.forEach((lane, k) => {
        const text = texts[k],
          row = text.rowAfter(now),
          all = text.rows.at(-1).seconds;
        lane.clock.textContent = time(Math.min(now, all));
        if (row === lane.row) return;
        lane.row = row;
        lane.view.draw(row);
        lane.map.draw(row);
        const calls = text.rows[row].calls ?? 0;
        lane.calls.textContent = count(calls) + (calls === 1 ? " network call" : " network calls");
      });
      if (now < longest) return true;
      this.playing = null;
      this.tell(texts);
      return false;
    });
  }

  /** Who was first, by how much, and whether the texts are the same. */
  tell(texts) {
    const [left, right] = texts.map((text) => text.rows.at(-1).seconds),
      first = left <= right ? 0 : 1;
    const calls = texts.map((text) => text.rows.at(-1).calls ?? 0),
      gap = Math.abs(left - right),
      ratio = Math.max(left, right) / Math.max(0.001, Math.min(left, right));
    this.say("");
    this.lanes[first].place.textContent = "first";
    this.lanes[first].card.classList.add("first");
    const tokens = texts.map((text) => text.endTokens ?? []);
    const differs = tokens[0].findIndex((token, i) => token !== tokens[1][i]),
      same = differs < 0 && tokens[0].length === tokens[1].length;
    const where = (differs < 0 ? Math.min(...tokens.map((list) => list.length)) : differs) - texts[0].prompt + 1;
    const lead = this.name(first) + " was first by " + time(gap) + " (" + ratio.toFixed(2) + " times as fast)";
    const cost = "with " + count(calls[first]) + " network calls against " + count(calls[1 - first]);
    const compared = same
      ? "The texts are the same, token for token."
      : "The texts differ from new token " + where + " on.";
    this.verdict.textContent = lead + ", " + cost + ". " + compared;
    at("race").dataset.state = "done";
  }
}
