// The hyperschedule as a picture: steps down, positions across. What is still to come is faint.

import { colour } from "./schedule.js";

export class HeatMap {
  /** `said`: an element that tells what is under the pointer; `onRow`: what to do with a row that was chosen. */
  constructor(canvas, { said = null, onRow = null, onPlace = null } = {}) {
    Object.assign(this, { canvas, said, onRow, onPlace, text: null, row: 0, marked: -1, cursor: null, tall: 0 });
    this.picture = document.createElement("canvas");
    canvas.addEventListener("pointermove", (event) => this.tell(this.under(event)));
    canvas.addEventListener("pointerleave", () => {
      this.tell(null);
    });
    canvas.addEventListener("click", (event) => {
      const at = this.under(event);
      if (at && onRow) onRow(at.row);
    });
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.tell(null);
      this.paint();
    });
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  /** `tall`: so many steps are shown at least, for pictures that are to be compared. */
  show(text, { tall = 0 } = {}) {
    this.text = text;
    this.tall = tall;
    this.known = -1;
    this.height = 0;
    this.cursor = null;
  }

  get total() {
    return this.text.length - this.text.start;
  }

  /** Bring the picture up to date and mark a step, and a place where one is chosen. */
  draw(row, marked = -1) {
    this.row = row;
    this.marked = marked;
    if (!this.text || this.total < 1) return;
    const height = Math.max(this.text.steps, this.tall) + 1;
    if (height !== this.height || this.picture.width !== this.total) {
      this.picture.width = this.total;
      this.picture.height = this.height = height;
      this.known = -1;
    }
    const context = this.picture.getContext("2d"),
      last = this.text.lastRow;
    if (this.known < 0) {
      for (let y = last + 1; y < height; y++) this.fill(context, y);
    }
    for (let y = this.known + 1; y <= last; y++) this.fill(context, y);
    this.known = last;
    this.paint();
  }

  fill(context, y) {
    const image = context.createImageData(this.total, 1);
    for (let x = 0; x < this.total; x++) {
      const level = y > this.text.steps ? null : this.text.level(y, x + this.text.start);
      if (level === null) continue;
      const [red, green, blue] = colour(level / this.text.maxLevel);
      image.data.set([red, green, blue, 255], 4 * x);
    }
    context.putImageData(image, 0, y);
  }

  paint() {
    const { canvas, picture } = this,
      ratio = window.devicePixelRatio || 1;
    if (!this.text || !canvas.clientWidth || !this.height) return;
    const width = Math.round(canvas.clientWidth * ratio),
      height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = picture.width > width || picture.height > height;
    const done = this.row + 1,
      split = Math.round((done / this.height) * height);
    context.drawImage(picture, 0, 0, picture.width, done, 0, 0, width, split);
    if (done < this.height) {
      context.globalAlpha = 0.25;
      context.drawImage(picture, 0, done, picture.width, this.height - done, 0, split, width, height - split);
      context.globalAlpha = 1;
    }
    const line = (x, y, w, h) => {
      context.fillStyle = "rgba(0, 0, 0, .8)";
      context.fillRect(x - ratio, y - ratio, w + 2 * ratio, h + 2 * ratio);
      context.fillStyle = "#fff";
      context.fillRect(x, y, w, h);
    };
    line(0, ((this.row + 0.5) / this.height) * height - ratio / 2, width, ratio);
    if (this.marked >= this.text.start)
      line(((this.marked - this.text.start + 0.5) / this.total) * width - ratio / 2, 0, ratio, height);
    if (this.cursor) {
      const w = Math.max(5 * ratio, width / this.total),
        h = Math.max(5 * ratio, height / this.height);
      context.lineWidth = 2 * ratio;
      for (const [style, more] of [
        ["#000", ratio * 2],
        ["#fff", 0],
      ]) {
        context.strokeStyle = style;
        const x = ((this.cursor.place - this.text.start + 0.5) / this.total) * width,
          y = ((this.cursor.row + 0.5) / this.height) * height;
        context.strokeRect(x - w / 2 - more, y - h / 2 - more, w + 2 * more, h + 2 * more);
      }
    }
  }

  under(event) {
    if (!this.text || !this.height) return null;
    const box = this.canvas.getBoundingClientRect(),
      inside = (x) => Math.max(0, Math.min(0.9999, x));
    return {
      place: this.text.start + Math.floor(inside((event.clientX - box.left) / box.width) * this.total),
      row: Math.floor(inside((event.clientY - box.top) / box.height) * this.height),
    };
  }

  tell(at) {
    if (!this.said) return;
    if (!at) {
      this.said.textContent = "\u00a0";
      return;
    }
    const level = at.row > this.text.steps ? null : this.text.level(at.row, at.place);
    const when = at.row > this.text.lastRow ? (this.text.end ? "not needed" : "to come") : "";
    this.said.textContent =
      "position " +
      at.place +
      ", step " +
      at.row +
      ": " +
      (level === null ? when || "not known" : "level " + level + " of " + this.text.maxLevel + (when && ", " + when));
  }

  press(event) {
    if (!this.text) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const at = this.cursor ?? { place: this.text.start, row: this.row };
    if (moves[event.key]) {
      const [dx, dy] = moves[event.key],
        stride = event.shiftKey ? 8 : 1;
      this.cursor = {
        place: Math.max(this.text.start, Math.min(this.text.length - 1, at.place + dx * stride)),
        row: Math.max(0, Math.min(this.height - 1, at.row + dy * stride)),
      };
      this.tell(this.cursor);
      this.paint();
    } else if (event.key === "Enter" && this.onRow) this.onRow(at.row);
    else return;
    event.preventDefault();
  }
}
