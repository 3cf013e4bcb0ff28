// What was seen of a run: every text's tokens at every step, the history of each position, and the levels.

import { planned } from "./schedule.js";

/**
 * One text: `rows` holds what each step left, row 0 what it began with. `plan`: the levels to come, where they are
 * known; `drafts`: whether tokens are drafted and then verified, so that one that is replaced was never in the text.
 */
class Text {
  constructor(sample, mask, { plan, drafts }) {
    this.mask = mask;
    this.drafts = drafts;
    this.first = sample.tokens;
    this.length = this.first.length;
    this.start = sample.start ?? 0;
    this.prompt = sample.prompt_tokens ?? 0;
    this.maxLevel = sample.max_level ?? 1;
    this.planSteps = sample.steps ?? 0;
    const stays = sample.given ?? [];
    this.given = this.first.map((_, i) => (typeof stays[i] === "boolean" ? stays[i] : stays.includes(i)));
    this.plan = plan;
    this.planStart = plan?.columns ? this.length - plan.columns : this.start;
    this.rows = [{ seconds: 0, calls: 0, settled: this.prompt, first: this.length, levels: [], corrected: 0 }];
    this.places = this.first.map(() => []);
    this.end = null;
    this.endTokens = null;
  }

  see(frame) {
    while (this.rows.length <= frame.step) this.rows.push({ ...this.rows.at(-1) });
    this.rows.push({
      seconds: frame.seconds,
      calls: frame.calls,
      settled: frame.settled,
      first: frame.first ?? this.length,
      levels: frame.levels ?? [],
      corrected: this.rows.at(-1).corrected,
    });
    for (const [place, token, said = null, doubt = null] of frame.changes ?? []) {
      if (place >= this.length) continue;
      const list = this.places[place],
        before = list.at(-1)?.token ?? this.first[place];
      const other = list.findLast((change) => change.token !== this.mask),
        corrects = token !== this.mask && other !== undefined && other.token !== token;
      if (corrects) this.rows.at(-1).corrected += 1;
      const corrected = token === this.mask ? false : corrects || Boolean(other?.corrected);
      list.push({
        row: this.rows.length - 1,
        token,
        before,
        said,
        doubt,
        corrects,
        corrected,
        top: frame.top?.[place] ?? null,
      });
    }
  }

  get lastRow() {
    return this.rows.length - 1;
  }
  get steps() {
    return this.end ? this.lastRow : Math.max(this.planSteps, this.lastRow);
  }

  /** The level of a place before step `row`; of rows that are to come as planned, or null where nobody knows. */
  level(row, place) {
    if (this.given[place]) return 0;
    if (row === 0) return this.maxLevel;
    const seen = this.rows[row];
    if (!seen) return this.plan ? this.plan(row, place - this.planStart) : null;
    const k = place - seen.first;
    return k < 0 ? 0 : k < seen.levels.length ? seen.levels[k] : this.maxLevel;
  }

  /** What a place holds at a row, and how it came to. */
  at(place, row) {
    let last = null;
    for (const change of this.places[place]) {
      if (change.row > row) break;
      last = change;
    }
    return { token: last ? last.token : this.first[place], last };
  }

  /** What a place looks like at a row, in one word or two. */
  kind(place, row) {
    if (this.given[place]) return "given";
    const { token, last } = this.at(place, row),
      level = this.level(row, place) ?? 0;
    if (token === this.mask) return level === this.maxLevel ? "mask far" : "mask";
    const over = this.end !== null && row === this.lastRow;
    if (last && last.row === row && !over) return last.corrects ? "fixed fresh-fixed" : "fresh";
    if (level === this.maxLevel && !last) return "noise";
    return (level === 0 ? "settled" : "active") + (last?.corrected && !this.drafts ? " fixed" : "");
  }

  /** How many positions that were not given are final before step `row`. */
  settledAt(row) {
    const shown = this.end && row === this.lastRow && this.endTokens ? this.endTokens.length : this.length;
    let found = 0;
    for (let place = this.start; place < shown; place++)
      if (!this.given[place] && this.level(row, place) === 0) found += 1;
    return found;
  }

  /** The row that was reached after so many seconds. */
  rowAfter(seconds) {
    let low = 0,
      high = this.lastRow;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle].seconds <= seconds) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

export class Recording {
  constructor(start, body) {
    this.body = body;
    this.seed = String(start.seed ?? "");
    this.settings = start.settings ?? {};
    this.schedule = start.schedule ?? "";
    this.warnings = start.warnings ?? [];
    this.spent = start.spent ?? { seconds: 0, calls: 0 };
    this.mask = start.mask ?? null;
    this.pieces = new Map();
    this.learn(start.pieces);
    this.fill = "text" in body;
    this.usage = null;
    this.replay = null;
    this.drafts = Boolean(body.speculate) || this.settings.sampler === "speculative";
    const asked = this.drafts ? null : this.scheduleAsked(),
      drafts = this.drafts;
    this.texts = start.samples.map(
      (sample) => new Text(sample, this.mask, { plan: planned(asked, sample.max_level), drafts }),
    );
  }

  scheduleAsked() {
    if (this.body.levels) return { kind: "custom", levels: this.body.levels };
    return this.settings.hyperschedule?.kind
      ? this.settings.hyperschedule
      : { kind: this.body.hyperschedule, width: this.body.width };
  }

  learn(pieces) {
    for (const [token, piece] of Object.entries(pieces ?? {})) this.pieces.set(Number(token), piece);
  }

  take(event) {
    if (event.type === "frame") {
      this.learn(event.pieces);
      this.texts[event.index ?? 0]?.see(event);
    } else if (event.type === "end") {
      this.learn(event.pieces);
      this.usage = event.usage ?? null;
      this.replay = event.replay ?? null;
      for (const choice of event.choices ?? []) {
        const text = this.texts[choice.index ?? 0];
        Object.assign(text, { end: choice, endTokens: choice.tokens ?? null });
      }
      this.done = true;
    }
  }

  /** What is to be written, before it has begun: texts that are given, and numbers of positions at full noise. */
  static ahead(parts, schedule, maxLevel, steps) {
    const mask = -1,
      pieces = {},
      tokens = [];
    for (const part of parts) {
      if (typeof part === "number") tokens.push(...Array(part).fill(mask));
      else
        for (const word of part.match(/\s*\S+|\s+$/g) ?? []) {
          pieces[tokens.length] = word;
          tokens.push(tokens.length);
        }
    }
    const begin = schedule.kind === "fill" ? 0 : Math.max(0, tokens.indexOf(mask));
    const recording = new Recording(
      {
        pieces,
        mask,
        settings: { hyperschedule: schedule.kind === "fill" ? { kind: "flat" } : schedule },
        samples: [
          {
            tokens,
            given: tokens.map((token) => token !== mask),
            start: begin,
            steps,
            max_level: maxLevel,
            prompt_tokens: begin,
          },
        ],
      },
      {},
    );
    recording.ahead = true;
    return recording;
  }

  get seconds() {
    return Math.max(...this.texts.map((text) => text.rows.at(-1).seconds ?? 0));
  }

  piece(token) {
    return token === this.mask ? "" : (this.pieces.get(token) ?? "");
  }

  /** A text that nobody but the reader wrote: words for tokens, all of them given. */
  static byHand(words, body) {
    const found = words.match(/\s*\S+|\s+$/g) ?? [],
      pieces = Object.fromEntries(found.map((word, i) => [i, word]));
    const tokens = found.map((_, i) => i);
    const recording = new Recording(
      {
        pieces,
        mask: null,
        samples: [
          { tokens, given: tokens.map(() => true), start: 0, steps: 0, max_level: 1, prompt_tokens: tokens.length },
        ],
      },
      { ...body, text: words },
    );
    recording.take({ type: "end", choices: [{ index: 0, text: words, tokens, finish_reason: "stop" }] });
    recording.hand = true;
    return recording;
  }
}
