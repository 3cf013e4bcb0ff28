// A text, token by token: what is settled, what may still change, what has just come. One token takes the focus.

export class TextView {
  /** `onPick(place, byKey)`: a token was chosen; `onHover(place)`: -1 where the pointer is on none. */
  constructor(root, { onPick = null, onHover = null } = {}) {
    Object.assign(this, { root, onPick, onHover, spans: [], focus: 0, marked: -1 });
    if (onPick) {
      root.addEventListener("click", (event) => {
        const place = this.placeOf(event.target);
        if (place >= 0 && !String(getSelection())) {
          this.take(place);
          onPick(place, false);
        }
      });
      root.addEventListener("keydown", (event) => this.press(event));
    }
    if (onHover) {
      root.addEventListener("pointerover", (event) => onHover(this.placeOf(event.target)));
      root.addEventListener("pointerleave", () => onHover(-1));
    }
  }

  placeOf(node) {
    const span = node.closest?.("[data-place]");
    return span ? Number(span.dataset.place) : -1;
  }

  show(recording, text) {
    Object.assign(this, { recording, text, marked: -1 });
    this.root.classList.toggle("fill", recording.fill);
    this.spans = text.first.map((_, place) => {
      const span = document.createElement("span");
      span.dataset.place = place;
      return span;
    });
    this.root.replaceChildren(...this.spans);
    if (this.onPick && !recording.ahead) this.take(Math.min(text.prompt, text.length - 1), false);
  }

  draw(row) {
    const { text, recording } = this,
      over = text.end && row >= text.lastRow;
    const shown = over && text.endTokens ? text.endTokens.length : text.length;
    this.spans.forEach((span, place) => {
      const token = text.at(place, row).token;
      let kind = text.kind(place, row);
      if (recording.fill && !text.given[place] && kind === "settled") kind = "settled filled";
      if (place === this.marked) kind += " marked";
      const piece = recording.piece(token);
      if (span.textContent !== piece) span.textContent = piece;
      if (span.className !== kind) span.className = kind;
      if (span.hidden !== place >= shown) span.hidden = place >= shown;
    });
  }

  mark(place) {
    this.spans[this.marked]?.classList.remove("marked");
    this.marked = place;
    this.spans[place]?.classList.add("marked");
  }

  /** Let a token be the one that the tab key reaches. */
  take(place, focus = true) {
    const old = this.spans[this.focus],
      now = this.spans[place];
    old?.removeAttribute("tabindex");
    old?.removeAttribute("role");
    if (!now) return;
    now.tabIndex = 0;
    now.setAttribute("role", "button");
    this.focus = place;
    if (focus) now.focus({ preventScroll: false });
  }

  press(event) {
    const count = this.spans.filter((span) => !span.hidden).length;
    const to =
      { ArrowLeft: this.focus - 1, ArrowRight: this.focus + 1, Home: 0, End: count - 1 }[event.key] ??
      this.beside(event.key);
    if (to !== null) {
      if (to >= 0 && to < count) {
        this.take(to);
        this.onHover?.(to);
      }
    } else if (event.key === "Enter" || event.key === " ") this.onPick(this.focus, true);
    else return;
    event.preventDefault();
  }

  /** The token above or below the one that has the focus. */
  beside(key) {
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    const from = this.spans[this.focus].getBoundingClientRect(),
      way = key === "ArrowUp" ? -1 : 1;
    let found = this.focus,
      best = Infinity;
    this.spans.forEach((span, place) => {
      const box = span.getBoundingClientRect(),
        down = (box.top - from.top) * way;
      if (!box.width || down < 8) return;
      const far = down * 20 + Math.abs(box.left + box.width / 2 - from.left - from.width / 2);
      if (far < best) [best, found] = [far, place];
    });
    return found;
  }
}
