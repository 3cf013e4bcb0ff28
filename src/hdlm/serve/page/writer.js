// The stage: a text while it is written, then to be looked at, edited and shared.

import { page, stream } from "./api.js";
import { curl, python, replayPage } from "./code.js";
import { at, confirm, copy, count, make, save, time } from "./dom.js";
import { gap, tokensIn, wholeWords } from "./editing.js";
import { HeatMap } from "./heatmap.js";
import { Panel } from "./panel.js";
import { Player } from "./player.js";
import { Recording } from "./record.js";
import { TextView } from "./textview.js";

const ALTERNATIVES = 8,
  REMEMBERED = 20;

export class Writer {
  /** `say(words)`: tell the reader politely; `fail(error)`: what went wrong; `rewrite(text)`: the request for a gap. */
  constructor({ say, fail, rewrite }) {
    Object.assign(this, {
      say,
      fail,
      rewriting: rewrite,
      recording: null,
      number: 0,
      earlier: [],
      stop: null,
      waits: false,
    });
    this.map = new HeatMap(at("map"), { said: at("map-said"), onRow: (row) => this.player.hold(row) });
    this.view = new TextView(at("text"), {
      onPick: (place, byKey) => this.pick(place, byKey),
      onHover: (place) => this.hover(place),
    });
    this.panel = new Panel(at("panel"), {
      onClose: () => {
        this.view.mark(-1);
        this.view.spans[this.view.focus]?.focus();
        this.draw();
      },
      onMove: (way) => this.pickBeside(way),
    });
    this.player = new Player({
      button: at("play"),
      slider: at("step"),
      where: at("where"),
      speed: at("speed"),
      draw: () => this.draw(),
    });
    const press = (id, does) => at(id).addEventListener("click", does);
    press("edit-text", () => this.edit());
    press("edit-done", () => this.doneEditing());
    press("rewrite", () => this.rewrite());
    press("undo", () => this.undo());
    press("keep-seed", () => {
      at("seed").value = at("seed").value === this.recording.seed ? "" : this.recording.seed;
      this.stats();
    });
    press("as-prompt", () => {
      at("prompt").value = this.text.end.text;
      at("prompt").dispatchEvent(new Event("input", { bubbles: true }));
      at("prompt").focus();
    });
    const offer = async (id, title, words) => {
      if (await copy(words, title)) {
        confirm(at(id), "Copied");
        this.say(title + " is copied.");
      }
    };
    press("copy-text", () => offer("copy-text", "The text", this.text.end.text));
    press("copy-python", () => offer("copy-python", "Python", python(this.recording)));
    press("copy-curl", () => offer("copy-curl", "curl", curl(this.recording)));
    press("save-replay", () => this.saveReplay());
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.panel.open && !at("code").open) this.panel.close();
    });
  }

  get text() {
    return this.recording?.texts[this.number];
  }
  get running() {
    return this.stop !== null;
  }

  /** Write by a request, and show it as it comes. True where it came to its end. */
  async run(body) {
    const began = performance.now(),
      stop = new AbortController();
    this.stop = stop;
    at("stage").dataset.state = "waiting";
    let fresh = null,
      told = 0;
    try {
      for await (const event of stream({ ...body, top: ALTERNATIVES, replay: true }, stop.signal)) {
        if (event.type === "start") {
          fresh = new Recording(event, body);
          this.remember();
          this.show(fresh, { live: true });
        } else fresh?.take(event);
        if (event.type === "frame" && performance.now() - told > 2500) {
          told = performance.now();
          if (told - began > 2000) this.say("Writing: " + this.progress());
        }
        if (!this.waits) {
          this.waits = true;
          requestAnimationFrame(() => {
            this.waits = false;
            this.follow();
          });
        }
      }
      this.say(this.summary());
      return true;
    } catch (problem) {
      if (problem.name !== "AbortError") this.fail(problem);
      else this.say(fresh ? "Stopped at step " + this.text.lastRow + "." : "Stopped.");
      return false;
    } finally {
      this.stop = null;
      if (fresh) this.follow();
      this.offer();
    }
  }

  progress() {
    return this.text.rows.at(-1).settled + " of " + this.text.length + " tokens settled.";
  }

  summary() {
    const { recording } = this,
      corrected = recording.texts.reduce((sum, text) => sum + text.rows.at(-1).corrected, 0);
    const words = [time(recording.seconds), count(this.calls()) + " network calls"];
    if (corrected) words.push(count(corrected) + (recording.drafts ? " drafted tokens replaced" : " tokens corrected"));
    return "Done in " + words.join(", ") + ".";
  }

  calls() {
    return this.recording.usage?.network_calls ?? this.text.rows.at(-1).calls ?? 0;
  }

  remember() {
    if (!this.recording?.done) return;
    this.earlier.push(this.recording);
    if (this.earlier.length > REMEMBERED) this.earlier.shift();
  }

  show(recording, { live = false, number = 0 } = {}) {
    Object.assign(this, { recording, number: Math.min(number, recording.texts.length - 1) });
    at("stage").hidden = false;
    at("stage").classList.remove("preview", "editing");
    at("editor").hidden = true;
    at("text").hidden = false;
    at("legend-filled").hidden = !recording.fill || Boolean(recording.hand);
    at("panel").hidden = true;
    this.map.canvas.parentElement.classList.toggle("plain", Boolean(recording.hand));
    this.tabs();
    this.view.show(recording, this.text);
    this.map.show(this.text);
    this.player.show(this.text, live ? 0 : this.text.lastRow, { live });
    this.offer();
  }

  /** Before anything is written: what is to come. */
  preview(recording) {
    if (this.recording && !this.recording.ahead) return;
    this.show(recording);
    at("stage").classList.add("preview");
    this.draw();
  }

  tabs() {
    const { texts } = this.recording;
    at("texts").hidden = texts.length < 2;
    at("texts").replaceChildren(
      ...texts.map((_, number) => {
        const tab = make(
          "button",
          { type: "button", "aria-pressed": String(number === this.number) },
          "Text " + (number + 1),
        );
        tab.addEventListener("click", () => this.show(this.recording, { live: this.running, number }));
        return tab;
      }),
    );
  }

  follow() {
    if (this.text) this.player.grow(this.running);
  }

  draw() {
    if (!this.text) return;
    this.view.draw(this.player.row);
    this.map.draw(this.player.row, this.view.marked);
    this.stats();
    if (this.panel.open) this.panel.show(this.recording, this.text, this.panel.place, this.player.row);
  }

  stats() {
    const { text, recording, player } = this,
      row = text.rows[player.row];
    const tokens = text.settledAt(player.row),
      { drafts } = recording;
    const facts =
      recording.hand || recording.ahead
        ? []
        : [
            ["Clock", time(row.seconds ?? 0)],
            ["Network calls", count(row.calls ?? 0)],
            [recording.fill ? "Filled" : "New tokens", count(tokens)],
            ...(recording.spent.calls
              ? [["Length found in", `${time(recording.spent.seconds)}, ${count(recording.spent.calls)} calls`]]
              : []),
            ["Tokens per call", row.calls ? (tokens / row.calls).toFixed(2) : "–"],
            [drafts ? "Drafts replaced" : "Corrected", count(row.corrected)],
            ["Seed", recording.seed],
          ];
    at("stats").replaceChildren(
      ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
    );
    at("keep-seed").textContent =
      recording.seed && at("seed").value.trim() === recording.seed ? "Let the seed go" : "Keep this seed";
    at("keep-seed").hidden = Boolean(recording.hand);
    at("warnings").hidden = !recording.warnings.length;
    at("warnings").replaceChildren(...recording.warnings.map((warning) => make("li", {}, warning)));
  }

  /** Offer what can be done with what is there. */
  offer() {
    const whole = Boolean(this.recording?.done) && !this.running;
    for (const id of ["edit-text", "as-prompt", "copy-text"]) at(id).disabled = !whole;
    for (const id of ["copy-python", "copy-curl"]) at(id).disabled = !whole || Boolean(this.recording.hand);
    at("save-replay").disabled = !whole || !this.recording.replay;
    at("undo").disabled = this.running || !this.earlier.length;
    at("stage").dataset.state = this.running ? "running" : whole ? "done" : "stopped";
  }

  hover(place) {
    if (this.panel.open) return;
    this.map.draw(this.player.row, place);
  }

  pick(place, byKey) {
    if (this.recording.ahead) return;
    this.player.hold(this.player.row);
    this.view.mark(place);
    this.panel.show(this.recording, this.text, place, this.player.row);
    this.map.draw(this.player.row, place);
    if (byKey) this.panel.root.focus();
    const small = getComputedStyle(this.panel.root).position === "fixed",
      span = this.view.spans[place].getBoundingClientRect();
    if (!small) this.panel.root.scrollIntoView({ block: "nearest" });
    else if (span.bottom > innerHeight * 0.34 || span.top < 0) scrollBy({ top: span.top - innerHeight * 0.2 });
  }

  pickBeside(way) {
    const to = this.panel.place + way,
      span = this.view.spans[to];
    if (!span || span.hidden) return;
    this.view.take(to, false);
    this.pick(to, true);
  }

  edit() {
    this.player.hold(this.text.lastRow);
    this.panel.close();
    at("edit").value = this.text.end.text;
    this.openEditor();
    at("edit").style.height = "auto";
    at("edit").style.height = Math.max(180, at("edit").scrollHeight + 4) + "px";
    at("edit").focus();
    at("edit-text").disabled = true;
    this.say("The text can be edited now. Mark a stretch to have it rewritten.");
  }

  openEditor() {
    at("stage").classList.add("editing");
    at("text").hidden = true;
    at("editor").hidden = false;
  }

  /** Leave the editor; a text that was changed by hand is the text from now on. */
  doneEditing() {
    const words = at("edit").value;
    if (words !== this.text.end.text) {
      this.remember();
      this.show(Recording.byHand(words, this.recording.body));
    } else this.show(this.recording, { number: this.number });
    at("edit-text").focus();
  }

  async rewrite() {
    const area = at("edit"),
      words = area.value,
      [from, to] = wholeWords(words, area.selectionStart, area.selectionEnd);
    if (from === to) {
      this.say("Mark a stretch of the text first.");
      area.focus();
      return;
    }
    const open = at("rewrite-open").checked,
      tokens = open ? null : tokensIn(this.recording, this.text, words, from, to);
    this.say(open ? "Trying lengths from 1 to 32 tokens." : "Rewriting " + tokens + " tokens.");
    const before = this.recording,
      written = await this.rewriting(words.slice(0, from) + gap(tokens) + words.slice(to));
    if (written || this.recording !== before) return;
    this.openEditor();
    area.setSelectionRange(from, to);
  }

  undo() {
    const before = this.earlier.pop();
    if (!before) return;
    this.show(before);
    this.say("Back to the text before.");
  }

  async saveReplay() {
    try {
      const whole = replayPage(await page("/page/replay.html"), this.recording.replay);
      const name = (this.recording.body.model ?? "text")
        .split("/")
        .at(-1)
        .replace(/[^\w.-]+/g, "-");
      save("replay-" + name + "-" + this.recording.seed + ".html", whole, "text/html");
      this.say("The replay is saved: one file, to be opened anywhere.");
    } catch (problem) {
      this.fail(problem);
    }
  }
}
