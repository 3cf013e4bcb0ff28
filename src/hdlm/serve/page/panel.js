// What is known of one token: its history, and what the network thought of instead.

import { make } from "./dom.js";

const percent = (share) =>
  share === null || share === undefined ? "" : (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "%";

/** A piece of text to be read by itself: spaces have names. */
const shown = (piece) => (piece.trim() ? piece : piece.includes("\n") ? "line break" : piece ? "space" : "nothing");

export class Panel {
  constructor(root, { onClose, onMove }) {
    Object.assign(this, { root, onClose, place: -1 });
    root.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        onMove(event.key === "ArrowLeft" ? -1 : 1);
        event.preventDefault();
      }
    });
  }

  get open() {
    return !this.root.hidden;
  }

  close() {
    if (!this.open) return;
    this.root.hidden = true;
    this.place = -1;
    this.onClose();
  }

  show(recording, text, place, row) {
    const name = (token) => (token === recording.mask ? "MASK" : shown(recording.piece(token))),
      state = text.at(place, row),
      level = text.level(row, place);
    this.place = place;
    const close = make("button", { type: "button", class: "quiet", "aria-label": "Close" }, "Close");
    close.addEventListener("click", () => this.close());
    const title = make("h2", { id: "panel-title" }, make("span", { class: "token" }, name(state.token).trim()));
    const facts =
      "Position " +
      place +
      (text.given[place] ? ", given" : level === null ? "" : ", noise level " + level + " of " + text.maxLevel);
    const parts = [make("div", { class: "panel-head" }, title, close), make("p", { class: "hint facts" }, facts)];
    const seen = text.places[place].filter((change) => change.row <= row);
    if (!text.given[place])
      parts.push(make("div", {}, this.history(seen, name)), make("div", {}, this.alternatives(seen, state, name)));
    this.root.replaceChildren(...parts);
    this.root.hidden = false;
  }

  history(seen, name) {
    const rows = seen.map((change) =>
      make(
        "tr",
        {},
        make("td", { class: "number" }, change.row),
        make("td", {}, make("span", { class: "token" }, name(change.before))),
        make("td", {}, make("span", { class: "token" }, name(change.token))),
        make("td", { class: "number" }, percent(change.said)),
        make("td", { class: "number" }, percent(change.doubt)),
      ),
    );
    if (!rows.length) return [make("p", {}, "Nothing was written here yet.")];
    const head = ["Step", "It was", "It became", "Confidence", "Doubt"].map((word) =>
      make("th", { scope: "col" }, word),
    );
    const doubts = seen.some((change) => change.doubt !== null);
    return [
      make("h3", {}, "History"),
      make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)),
      make(
        "p",
        { class: "hint" },
        "Confidence: the probability that this token was drawn with." +
          (doubts ? " Doubt: what the network still gave the token that it took back." : ""),
      ),
    ];
  }

  alternatives(seen, state, name) {
    const asked = seen.findLast((change) => change.top?.length);
    if (!asked) return [];
    const bars = asked.top.map(([token, share]) => {
      const bar = make("i", { class: "bar", "aria-hidden": "true" });
      bar.style.width = Math.max(0.5, 100 * share) + "%";
      const chosen = token === state.token;
      return make(
        "li",
        { class: chosen ? "chosen" : "" },
        make("span", { class: "token" }, name(token)),
        make("span", { class: "track" }, bar),
        make("span", { class: "number" }, percent(share)),
        chosen ? make("span", { class: "hidden" }, "taken") : null,
      );
    });
    return [
      make("h3", {}, "What could have stood here"),
      make("ol", { class: "bars" }, bars),
      make("p", { class: "hint" }, "By the network itself in step " + asked.row + ", whatever the temperature."),
    ];
  }
}
