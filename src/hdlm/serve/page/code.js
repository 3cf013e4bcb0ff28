// A run as a program: Python by the library, curl by the server. The same settings and seed, the same text.

import { key } from "./api.js";

const DRAWING = ["temperature", "top_p", "top_k", "sampler", "eta", "threshold"];
const word = (value) =>
  JSON.stringify(value).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

/** A Python text: what JSON says, and characters beyond 16 bits whole, which Python writes otherwise. */
function text(value) {
  return [...value]
    .map((c) =>
      c.codePointAt(0) > 0xffff ? "\\U" + c.codePointAt(0).toString(16).padStart(8, "0") : word(c).slice(1, -1),
    )
    .join("");
}
const quoted = (value) => '"' + text(value) + '"';

/** Where every position of drawn levels begins its descent, and where it is done. */
function ends(levels) {
  const top = levels[0][0];
  return {
    top,
    begin: levels[0].map((_, i) => levels.findLastIndex((row) => row[i] === top)),
    end: levels[0].map((_, i) => levels.findIndex((row) => row[i] === 0)),
  };
}

function matrix(levels) {
  const { top, begin, end } = ends(levels);
  return `begin = [${begin.join(", ")}]
end = [${end.join(", ")}]
top = ${top}
levels = [
    [top if s <= b else 0 if s >= e else -(-top * (e - s) // (e - b)) for b, e in zip(begin, end)]
    for s in range(top + 1)
]
`;
}

export function python(recording) {
  const { body, seed } = recording,
    said = [],
    fill = "text" in body;
  const say = (name, value) => {
    if (value !== null && value !== undefined) said.push(name + "=" + value);
  };
  if ((body.n ?? 1) > 1) say("num_samples", body.n);
  if (body.levels) say("hyperschedule", "hdlm.Custom(levels)");
  else if (!fill) {
    say("length", body.max_tokens);
    if (body.speculate || body.hyperschedule === "ar") say("sampler", body.speculate ? '"speculative"' : '"ar"');
    else if (body.hyperschedule) say("kind", quoted(body.hyperschedule));
    say("width", body.width);
  }
  if (!body.levels) say("rate", body.rate);
  for (const name of DRAWING) say(name, typeof body[name] === "string" ? quoted(body[name]) : body[name]);
  if (body.ignore_eos) say("stop_at_eos", "False");
  if (seed || body.seed) say("seed", seed || body.seed);
  return `import hdlm

bundle = hdlm.load(${quoted(body.model)})
${body.levels ? matrix(body.levels) : ""}samples = bundle.${fill ? "infill" : "generate"}(
    ${quoted(fill ? body.text : body.prompt)},
${said.map((argument) => "    " + argument + ",\n").join("")})
print(samples)
`;
}

/** The request alone, without what only a page wants. */
function plain({ body, seed }) {
  const { top, replay, ...rest } = body;
  const asked = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && value !== undefined));
  return seed ? { ...asked, seed } : asked;
}

export function curl(recording) {
  const shell = (value) => "'" + value.replaceAll("'", "'\\''") + "'";
  const lines = [
    "curl -sS " + shell(location.origin + ("text" in recording.body ? "/v1/fill" : "/v1/completions")),
    "-H 'Content-Type: application/json'",
    ...(key() ? ['-H "Authorization: Bearer $KEY"'] : []),
    "-d " + shell(JSON.stringify(plain(recording))),
  ];
  return lines.join(" \\\n  ") + "\n";
}

/** The replay page with a run inside: one file, to be opened anywhere. */
export function replayPage(page, data) {
  return page.replace("/*DATA*/", () => JSON.stringify(data).replaceAll("<", "\\u003c"));
}
