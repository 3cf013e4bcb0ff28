// Plays a recording again, step by step or by its own clock.

/** Call `tick(milliseconds since the last call)` until it answers false. Returns what stops it. */
export function clock(tick) {
  let last = performance.now(),
    going = true;
  const turn = (now) => {
    if (!going) return;
    const passed = Math.max(0, now - last);
    last = now;
    if (tick(passed)) requestAnimationFrame(turn);
    else going = false;
  };
  requestAnimationFrame(turn);
  return () => {
    going = false;
  };
}

export class Player {
  /** `draw(row)`: show a row of the text that plays. */
  constructor({ button, slider, where, speed, draw }) {
    Object.assign(this, {
      button,
      slider,
      where,
      speed,
      drawRow: draw,
      row: 0,
      stop: null,
      text: null,
      follows: false,
      live: false,
    });
    button.addEventListener("click", () => this.toggle());
    slider.addEventListener("input", () => this.hold(Number(slider.value)));
  }

  /** `live`: the text is being written; its newest step is shown until the reader takes over. */
  show(text, row, { live = false } = {}) {
    this.pause();
    Object.assign(this, { text, live, follows: live });
    this.go(row);
  }

  /** The text has another step, or (not `live`) its last. */
  grow(live) {
    this.live = live;
    const newest = this.follows;
    this.follows &&= live;
    this.go(newest ? this.text.lastRow : this.row);
  }

  /** Stay at a row, until the reader lets it go on. */
  hold(row) {
    this.follows = false;
    this.pause();
    this.go(row);
  }

  go(row) {
    this.row = Math.max(0, Math.min(this.text.lastRow, row));
    Object.assign(this.slider, { max: this.text.steps, value: this.row });
    this.slider.setAttribute("aria-valuetext", "step " + this.row + " of " + this.text.steps);
    this.where.textContent = "step " + this.row + " / " + this.text.steps;
    this.label();
    this.drawRow(this.row);
  }

  label() {
    this.button.textContent =
      this.stop || this.follows
        ? "Pause"
        : this.text && this.row >= this.text.lastRow && !this.live
          ? "Play again"
          : "Play";
  }

  pause() {
    this.stop?.();
    this.stop = null;
    this.label();
  }

  toggle() {
    if (this.stop || this.follows) {
      this.hold(this.row);
      return;
    }
    if (this.row >= this.text.lastRow) {
      if (this.live) {
        this.follows = true;
        this.go(this.text.lastRow);
        return;
      }
      this.row = 0;
    }
    const gap = Math.max(25, Math.min(160, 8000 / this.text.lastRow));
    let passed = this.row;
    this.stop = clock((milliseconds) => {
      passed += (milliseconds / gap) * Number(this.speed.value);
      const over = passed >= this.text.lastRow;
      if (over) this.stop = null;
      this.follows = over && this.live;
      if (over || Math.floor(passed) !== this.row) this.go(Math.floor(passed));
      return !over;
    });
    this.go(this.row);
  }
}
