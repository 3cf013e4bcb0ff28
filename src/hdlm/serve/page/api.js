// Talks to the server: models, and a text step by step. Knows nothing of the page.

const KEY = "hdlm-key";

export class ServerError extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

let held = null;
export function keep(key) {
  held = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    /* a tab without storage keeps it in memory */
  }
}
export function key() {
  if (held !== null) return held;
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = "Bearer " + key();
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ServerError("The server does not answer. Is hdlm serve still running?");
  }
  if (answer.ok) return answer;
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch {
    /* an answer without JSON has a status at least */
  }
  const wait = answer.headers.get("Retry-After");
  const message =
    (error.message ?? "The server answered " + answer.status + ".") +
    (answer.status === 429 && wait ? " Try again in " + wait + " s." : "");
  throw new ServerError(message, { status: answer.status, param: error.param ?? null });
}

export async function models() {
  return (await ask("/v1/models")).json();
}

export async function page(path) {
  return (await ask(path)).text();
}

/** All events of /v1/stream as they come; an error event is thrown. */
export async function* stream(body, signal) {
  const answer = await ask("/v1/stream", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (waiting + value.replaceAll("\r", "")).split("\n\n");
      waiting = parts.pop();
      for (const part of parts) {
        const data = part
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5))
          .join("\n")
          .trim();
        if (data === "[DONE]") return;
        if (!data) continue;
        const event = JSON.parse(data);
        if (event.type === "error") {
          throw new ServerError(event.error?.message ?? "The server ended the text.", {
            param: event.error?.param ?? null,
          });
        }
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ServerError("The connection ended before the text did.");
}
