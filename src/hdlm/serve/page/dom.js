// The page's elements: found, made, filled. Text is text, never markup.

export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(
    ...children
      .flat()
      .filter((child) => child !== null && child !== undefined)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return element;
}

export const count = (value) => Math.round(value).toLocaleString("en");
export const time = (seconds) => seconds.toFixed(seconds < 10 ? 2 : 1) + " s";

export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copy a text; where the browser forbids it, show it to be copied by hand. True where it is copied. */
export async function copy(text, title) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    at("code-title").textContent = title;
    at("code-text").value = text;
    at("code").showModal();
    at("code-text").select();
    return false;
  }
}

/** Say on a button that it has done its work. */
export function confirm(button, word) {
  const before = button.dataset.word ?? button.textContent;
  button.dataset.word = before;
  button.textContent = word;
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}
