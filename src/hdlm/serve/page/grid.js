// The grid on which a hyperschedule is drawn: for each column, where its descent begins and where it is done.

import { make } from "./dom.js";
import { colour, Drawn } from "./schedule.js";

const PRESETS = [
  ["slide", "Slide"],
  ["block", "Block"],
  ["flat", "Flat"],
  ["middle", "Middle first"],
  ["back", "Right to left"],
  ["random", "Random"],
];
const LINES = [
  ["both", "where it descends"],
  ["begin", "where it begins"],
  ["end", "where it is done"],
];

function choice(id, label, values, chosen) {
  const select = make(
    "select",
    { id },
    values.map((value) => make("option", {}, value)),
  );
  select.value = chosen;
  return [make("label", { for: id }, label), select];
}

export class Grid {
  constructor(root, onChange) {
    this.root = root;
    this.onChange = onChange;
    this.drawn = new Drawn();
    this.column = 0;
    this.line = "both";
    this.build();
  }

  build() {
    const presets = PRESETS.map(([name, label]) => {
      const button = make("button", { type: "button", "data-preset": name }, label);
      button.addEventListener("click", () => {
        this.drawn.preset(name);
        this.changed("Drawn as: " + label.toLowerCase());
      });
      return button;
    });
    const lines = LINES.map(([value, label]) => {
      const radio = make("input", { type: "radio", name: "line", value });
      radio.checked = value === this.line;
      radio.addEventListener("change", () => {
        this.line = value;
      });
      return make("label", {}, radio, make("span", {}, label));
    });
    this.canvas = make("canvas", {
      id: "grid",
      tabindex: "0",
      role: "application",
      "aria-describedby": "grid-keys",
      "aria-label": "Grid to draw a hyperschedule: positions across, steps down",
    });
    this.said = make("p", { class: "hint", id: "grid-said", "aria-live": "polite" }, "\u00a0");
    const [columnsLabel, columns] = choice("grid-columns", "Columns", [8, 16, 32, 64], 32);
    const [rowsLabel, rows] = choice("grid-rows", "Rows", [4, 8, 16, 32], 16);
    const resize = () => {
      this.drawn.resize(Number(columns.value), Number(rows.value));
      this.column = 0;
      this.changed();
    };
    columns.addEventListener("change", resize);
    rows.addEventListener("change", resize);
    this.root.append(
      make("div", { class: "row grid-tools" }, make("span", { class: "title" }, "Begin with"), presets),
      make(
        "div",
        { class: "row grid-tools" },
        make("div", { class: "pills small", role: "radiogroup", "aria-label": "What to draw" }, lines),
        make("span", { class: "row tight" }, columnsLabel, columns, rowsLabel, rows),
      ),
      make(
        "div",
        { class: "grid-frame" },
        make("span", { class: "axis" }, "steps ↓"),
        this.canvas,
        make("span", { class: "axis across" }, "positions →"),
      ),
      this.said,
      make(
        "p",
        { class: "hint", id: "grid-keys" },
        "Drag over the grid: red is noise, blue is done. Left and right choose a column, up and " +
          "down move its descent, with Shift only its end. The columns share the new tokens; " +
          "the rate says in how many steps.",
      ),
    );
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.from = this.under(event);
      this.stroke(this.from, this.from);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.from) return;
      const to = this.under(event);
      this.stroke(this.from, to);
      this.from = to;
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"])
      this.canvas.addEventListener(name, () => {
        this.from = null;
      });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.canvas.addEventListener("focus", () => this.paint());
    this.canvas.addEventListener("blur", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect(),
      share = (x) => Math.max(0, Math.min(1, x));
    return {
      column: Math.min(
        this.drawn.columns - 1,
        Math.floor(share((event.clientX - box.left) / box.width) * this.drawn.columns),
      ),
      row: share((event.clientY - box.top) / box.height) * this.drawn.rows,
    };
  }

  /** Draw from one point to another, through all columns between them. */
  stroke(from, to) {
    const reach = Math.abs(to.column - from.column);
    for (let k = 0; k <= reach; k++) {
      const column = from.column + Math.sign(to.column - from.column) * k;
      this.move(column, from.row + (to.row - from.row) * (reach ? k / reach : 1), this.line);
    }
    this.column = to.column;
    this.changed();
  }

  move(column, row, line) {
    const { drawn } = this,
      begin = drawn.begin[column],
      end = drawn.end[column],
      long = end - begin;
    if (line === "begin") drawn.put(column, row, Math.max(end, Math.round(row) + 1));
    else if (line === "end") drawn.put(column, Math.min(begin, Math.round(row) - 1), row);
    else {
      const first = Math.max(0, Math.min(drawn.rows - long, Math.round(row - long / 2)));
      drawn.put(column, first, first + long);
    }
  }

  press(event) {
    const { drawn } = this,
      column = this.column;
    const along = { ArrowLeft: -1, ArrowRight: 1, Home: -drawn.columns, End: drawn.columns }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (along) this.column = Math.max(0, Math.min(drawn.columns - 1, column + along));
    else if (down && (event.shiftKey || this.line === "end")) this.move(column, drawn.end[column] + down, "end");
    else if (down && this.line === "begin") this.move(column, drawn.begin[column] + down, "begin");
    else if (down) {
      const long = drawn.end[column] - drawn.begin[column],
        first = Math.max(0, Math.min(drawn.rows - long, drawn.begin[column] + down));
      drawn.put(column, first, first + long);
    } else return;
    event.preventDefault();
    this.changed();
  }

  changed(said = null) {
    const { drawn, column } = this;
    this.said.textContent =
      said ??
      "Column " +
        (column + 1) +
        " of " +
        drawn.columns +
        ": begins at row " +
        drawn.begin[column] +
        ", done at row " +
        drawn.end[column] +
        " of " +
        drawn.rows;
    this.paint();
    this.onChange();
  }

  paint() {
    const { canvas, drawn } = this,
      ratio = window.devicePixelRatio || 1,
      width = Math.round(canvas.clientWidth * ratio),
      height = Math.round(canvas.clientHeight * ratio);
    if (!width) return;
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d"),
      cell = width / drawn.columns,
      tall = height / (drawn.rows + 1);
    for (let column = 0; column < drawn.columns; column++) {
      for (let row = 0; row <= drawn.rows; row++) {
        const [red, green, blue] = colour(drawn.level(row, column) / drawn.rows);
        context.fillStyle = `rgb(${red} ${green} ${blue})`;
        const x = Math.round(column * cell),
          y = Math.round(row * tall),
          gap = Math.min(cell, tall) > 8 * ratio ? ratio : 0;
        context.fillRect(x, y, Math.round((column + 1) * cell) - x - gap, Math.round((row + 1) * tall) - y - gap);
      }
    }
    for (const [rows, dash] of [
      [drawn.begin, []],
      [drawn.end, [4 * ratio, 3 * ratio]],
    ]) {
      context.beginPath();
      rows.forEach((row, column) => {
        const y = (row + 0.5) * tall;
        context[column ? "lineTo" : "moveTo"](column * cell, y);
        context.lineTo((column + 1) * cell, y);
      });
      context.setLineDash([]);
      Object.assign(context, { strokeStyle: "rgba(255, 255, 255, .85)", lineWidth: 4 * ratio });
      context.stroke();
      context.setLineDash(dash);
      Object.assign(context, { strokeStyle: "#111", lineWidth: 2 * ratio });
      context.stroke();
    }
    context.setLineDash([]);
    if (document.activeElement === canvas) {
      Object.assign(context, { strokeStyle: "#000", lineWidth: 3 * ratio });
      context.strokeRect(this.column * cell + ratio, ratio, cell - 2 * ratio, height - 2 * ratio);
      Object.assign(context, { strokeStyle: "#fff", lineWidth: ratio });
      context.strokeRect(this.column * cell + ratio, ratio, cell - 2 * ratio, height - 2 * ratio);
    }
  }
}
