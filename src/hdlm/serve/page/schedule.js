// Hyperschedules as numbers: the levels that are to come, levels drawn by hand, and the colours of levels.

const STOPS = [
  [49, 54, 149],
  [116, 173, 209],
  [255, 255, 191],
  [244, 109, 67],
  [165, 0, 38],
];

/** The colour of a noise level, as a share of the highest: [red, green, blue]. */
export function colour(share) {
  const x = Math.max(0, Math.min(1, share)) * (STOPS.length - 1),
    k = Math.min(Math.floor(x), STOPS.length - 2),
    f = x - k;
  return STOPS[k].map((value, i) => Math.round(value + f * (STOPS[k + 1][i] - value)));
}

/** The level of position i before step `row`, by a schedule as `settings` tell it; null where that is not known ahead.
 *  `columns`, of what was drawn: so many positions, the last of the text. */
export function planned(schedule, maxLevel) {
  if (!schedule) return null;
  if (schedule.levels) {
    const level = (row, i) => schedule.levels[Math.min(row, schedule.levels.length - 1)]?.[i] ?? 0;
    return Object.assign(level, { columns: schedule.levels[0].length });
  }
  const width = schedule.width ?? schedule.length;
  const entry = {
    quench: (i) => i,
    ar: (i) => i,
    flat: () => 0,
    block: (i) => Math.floor(i / width) * maxLevel,
    slide: (i) => Math.floor((i * maxLevel) / width),
  }[schedule.kind];
  return entry ? (row, i) => Math.max(0, Math.min(maxLevel, entry(i) + maxLevel - row)) : null;
}

/** Levels and steps of a kind of schedule, as hdlm.theory.hyperschedule has them. */
export function measured(kind, length, width, rate) {
  const wide = { ar: 1, quench: 1, flat: length, block: width, slide: width }[kind];
  const maxLevel = kind === "ar" || kind === "quench" ? 1 : Math.max(1, Math.floor(wide / rate + 0.5));
  const steps = {
    ar: length,
    quench: length,
    flat: maxLevel,
    block: Math.ceil(length / wide) * maxLevel,
    slide: Math.floor(((length - 1) * maxLevel) / wide) + maxLevel,
  }[kind];
  return { schedule: { kind, length, width: wide }, maxLevel, steps };
}

/** What is drawn: for each column the row at which it begins its descent and the one at which it is done. */
export class Drawn {
  constructor(columns = 32, rows = 16) {
    this.columns = columns;
    this.rows = rows;
    this.begin = [];
    this.end = [];
    this.preset("slide");
  }

  /** Put a column's descent; what is out of reach is moved to the nearest that is not. */
  put(column, begin, end) {
    const first = Math.max(0, Math.min(this.rows - 1, Math.round(begin)));
    this.begin[column] = first;
    this.end[column] = Math.max(first + 1, Math.min(this.rows, Math.round(end)));
  }

  preset(name) {
    const { columns, rows } = this,
      share = (column) => (columns > 1 ? column / (columns - 1) : 0);
    const span = Math.max(1, Math.round(rows / 4)),
      late = rows - span;
    const order = [...Array(columns).keys()];
    for (let i = order.length - 1; i > 0; i--) {
      const other = Math.floor(Math.random() * (i + 1));
      [order[i], order[other]] = [order[other], order[i]];
    }
    const begins = {
      flat: () => 0,
      block: (column) => Math.floor(share(column) * 3.999) * span,
      slide: (column) => share(column) * late,
      random: (column) => share(order[column]) * late,
      middle: (column) => Math.abs(share(column) - 0.5) * 2 * late,
      back: (column) => (1 - share(column)) * late,
    };
    for (let column = 0; column < columns; column++) {
      const begin = begins[name](column);
      this.put(column, begin, name === "flat" ? rows : begin + span);
    }
  }

  resize(columns, rows) {
    const before = { begin: this.begin, end: this.end, columns: this.columns, rows: this.rows };
    Object.assign(this, { columns, rows, begin: [], end: [] });
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * before.columns) / columns),
        scale = rows / before.rows;
      this.put(column, before.begin[from] * scale, before.end[from] * scale);
    }
  }

  /** The level of a column before a row, of `rows` levels. */
  level(row, column) {
    return descent(row, this.begin[column], this.end[column], this.rows);
  }

  /** Where each of `length` tokens begins and ends, in about length / rate steps (the highest level is as many). */
  spread(length, rate) {
    const steps = Math.max(1, Math.round(length / rate)),
      begin = [],
      end = [];
    for (let i = 0; i < length; i++) {
      const column = Math.floor((i * this.columns) / length);
      const first = Math.min(steps - 1, Math.round((this.begin[column] / this.rows) * steps));
      begin.push(first);
      end.push(Math.max(first + 1, Math.round((this.end[column] / this.rows) * steps)));
    }
    return { steps, begin, end };
  }
}

/** The level before `row` of what falls evenly from `top` between two rows. */
export function descent(row, begin, end, top) {
  if (row <= begin) return top;
  return row >= end ? 0 : Math.ceil((top * (end - row)) / (end - begin));
}

/** The matrix [steps + 1][length] that the server takes. */
export function levelsOf({ steps, begin, end }) {
  return Array.from({ length: steps + 1 }, (_, row) => begin.map((first, i) => descent(row, first, end[i], steps)));
}
