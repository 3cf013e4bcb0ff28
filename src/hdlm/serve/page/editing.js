// Gaps: made of marked stretches of the prompt, and of a finished text that is to be changed.

/** Half a word is not a stretch: a marked range, grown to whole words, without spaces at its ends. */
export function wholeWords(text, from, to) {
  const inWord = (i) => i >= 0 && i < text.length && /[\p{L}\p{N}'’]/u.test(text[i]);
  while (from < to && /\s/.test(text[from])) from += 1;
  while (to > from && /\s/.test(text[to - 1])) to -= 1;
  if (from === to) return [from, to];
  while (inWord(from - 1) && inWord(from)) from -= 1;
  while (inWord(to) && inWord(to - 1)) to += 1;
  return [from, to];
}

/** About how many tokens a text has of which the model has not told. */
export function guess(text) {
  const words = text.match(/[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu) ?? [];
  return Math.max(
    1,
    words.reduce((sum, word) => sum + Math.ceil(word.length / 7), 0),
  );
}

/** How many of a text's own tokens lie in a stretch, in a version of it that may have been edited elsewhere. */
export function tokensIn(recording, text, edited, from, to) {
  const pieces = (text.endTokens ?? text.first).map((token) => recording.piece(token)),
    whole = pieces.join("");
  if (recording.hand || whole.trim() !== text.end?.text.trim()) return guess(edited.slice(from, to));
  let ahead = 0,
    behind = 0;
  while (ahead < whole.length && whole[ahead] === edited[ahead]) ahead += 1;
  while (behind < Math.min(whole.length, edited.length) - ahead && whole.at(-1 - behind) === edited.at(-1 - behind))
    behind += 1;
  const shift = to <= ahead ? 0 : from >= edited.length - behind ? whole.length - edited.length : null;
  if (shift === null) return guess(edited.slice(from, to));
  let place = 0,
    count = 0;
  for (const piece of pieces) {
    const word = place + piece.length - piece.trimStart().length;
    place += piece.length;
    if (place > from + shift && word < to + shift && piece.trim()) count += 1;
  }
  return Math.max(1, count);
}

export const gap = (tokens) => (tokens === null ? "[[gap]]" : "[[gap:" + tokens + "]]");

/** Put a gap in place of a text area's marked stretch, in a way that the browser's own undo can take back. */
export function putGap(area, tokens) {
  const [from, to] = wholeWords(area.value, area.selectionStart, area.selectionEnd);
  const made = gap(tokens === "same" ? (from === to ? 8 : guess(area.value.slice(from, to))) : tokens);
  area.focus();
  area.setSelectionRange(from, to);
  if (!document.execCommand?.("insertText", false, made)) area.setRangeText(made, from, to, "end");
  area.setSelectionRange(from + made.length, from + made.length);
}
