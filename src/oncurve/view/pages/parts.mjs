// What several pages need: the markup function, numbers and texts as they are shown, keys, what is near the window.
import htm from "htm";
import { createElement } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

// All texts become text nodes: no page gives markup of its own to the browser.
export const html = htm.bind(createElement);

// Control characters and marks of direction as escapes, as in the command's own output.
const STEERING = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
export const visible = (text) =>
  String(text ?? "").replace(STEERING, (letter) => {
    const code = letter.charCodeAt(0);
    return code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });

// A number in few characters, as the report writes it.
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size >= 1e14 || (size > 0 && size < 0.001)) text = value.toExponential(1).replace("e+", "e");
  else if (size >= 9999.5) {
    const [factor, letter] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([each]) => size >= each * 0.9995);
    text = `${Number((value / factor).toPrecision(3))}${letter}`;
  } else text = size >= 99.95 ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + short(value, digits);
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}\u00a0%`);

export function ago(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => seconds >= each) ?? [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

export const ENDINGS = {
  eos: "end token",
  stop: "stop string",
  length: "cut off at the limit",
  given: "demonstration",
  turns: "most turns reached",
  environment: "ended by the environment",
  template: "the template cannot go on",
  budget: "token budget spent",
  fault: "the environment failed",
};

// Whether an element is or was near the window: what is far away is drawn when it comes.
export function useNear(margin = "600px") {
  const place = useRef(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (near || place.current === null) return undefined;
    const watcher = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && setNear(true), {
      rootMargin: margin,
    });
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, [near]);
  return [place, near, setNear];
}

// Keys of a page: { j: function, ... }; none while something is typed.
export function useKeys(keys) {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (event.target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea, dialog[open]")) return;
      const act = now.current[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}

// A choice that this page remembers while it is open, in all its views.
const choices = new Map();
export function useChoice(name, first) {
  const [value, setValue] = useState(choices.has(name) ? choices.get(name) : first);
  return [value, (next) => (choices.set(name, next), setValue(next))];
}

export const Problem = ({ error }) => html`<p class="notice" role="alert">${visible(error.message)}</p>`;
export const Waiting = () => html`<p class="dim" role="status">Reading …</p>`;

export const Select = ({ label, value, options, onChange }) => html`<label class="field"><span>${label}</span>
  <select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
    ${options.map(([id, name]) => html`<option key=${id} value=${id} selected=${id === value}>${name}</option>`)}
  </select></label>`;
