// A completion's tokens, coloured by one of their numbers; without colour the underline says the same.
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { html, short, signed, useNear, visible } from "./parts.mjs";
import { bytes } from "./store.mjs";

const BLOCK = 240; // tokens that are drawn at once, when they come near the window
const LONG = 2000; // tokens from which blocks are laid out one by one: else each that comes near moves all others
const LEVELS = 4;

const at = (list, place) => (Number.isNaN(list?.[place] ?? NaN) ? null : list[place]);

// The completions of an answer, whose numbers of tokens come as the bytes of 32-bit floats.
const NUMBERS = ["before", "after", "entropy", "kl", "logprobs", "advantages"];
export const unpacked = (items) => items.map((item) => ({ ...item, ...Object.fromEntries(NUMBERS.filter((name) => item[name])
  .map((name) => [name, new Float32Array(bytes(item[name]).buffer)])) }));
const before = (item, place) => at(item.before ?? item.logprobs, place);
const both = (item, place, of) => {
  const [old, now] = [before(item, place), at(item.after, place)];
  return old === null || now === null ? null : of(old, now);
};

// `two`: both directions mean something, 0 is neutral. `value` is shown, `weight` decides the colour.
export const MEASURES = {
  change: { name: "change of probability", two: true, value: (item, place) => both(item, place, (old, now) => Math.exp(now) - Math.exp(old)) },
  advantage: { name: "advantage", two: true, value: (item, place) => at(item.advantages, place) ?? item.advantage ?? null },
  ratio: { name: "ratio after / before", two: true, value: (item, place) => both(item, place, (old, now) => Math.exp(now - old)), weight: Math.log },
  kl: { name: "KL to the reference", two: false, value: (item, place) => at(item.kl, place) },
  entropy: { name: "entropy", two: false, value: (item, place) => at(item.entropy, place) },
  probability: { name: "probability", two: false, value: (item, place) => { const old = before(item, place); return old === null ? null : Math.exp(old); }, weight: (value) => 1 - value },
  none: { name: "nothing", two: false, value: () => null },
};

const weighed = (measure, value) => (value === null || measure.weight === undefined ? value : measure.weight(value));

// The measures of which a group has numbers.
export const known = (items) =>
  Object.keys(MEASURES).filter((id) => id === "none" || items.some((item) => item.ids.some((_, place) => MEASURES[id].value(item, place) !== null)));

// The weight of the strongest colour: all but the largest hundredth of a group's tokens are below it.
export function scaleOf(items, id) {
  const measure = MEASURES[id];
  const weights = [];
  for (const item of items)
    for (let place = 0; place < item.ids.length; place++) {
      const weight = weighed(measure, measure.value(item, place));
      if (weight !== null && Number.isFinite(weight)) weights.push(Math.abs(weight));
    }
  weights.sort((a, b) => a - b);
  return weights[Math.min(weights.length - 1, Math.floor(weights.length * 0.99))] || 0;
}

// The class of a token: up1 to up4, down1 to down4, or "" where there is nothing to see.
export function classOf(item, place, id, scale) {
  const measure = MEASURES[id];
  const weight = weighed(measure, measure.value(item, place));
  if (weight === null || !scale || Math.abs(weight) < scale / 400) return "";
  const level = Math.min(LEVELS, Math.max(1, Math.ceil(LEVELS * Math.sqrt(Math.abs(weight) / scale))));
  return `${weight > 0 ? "up" : "down"}${level}`;
}

export const numberOf = (id, value) => (MEASURES[id].two && id !== "ratio" ? signed(value) : short(value));

// The token that is looked at: { completion, token }.
export const pointed = signal(null);

const piece = (item, place) => visible(item.pieces[place]).replace(/^\n+$/, (ends) => "↵".repeat(ends.length) + ends);

// The places at which a completion is cut into blocks: of a long one at ends of lines, where there are some.
function cut(item, from, to) {
  const found = [];
  for (let start = from; start < to; start = found.at(-1)[1]) {
    let end = Math.min(to, start + BLOCK);
    if (to - from > LONG && end < to) for (let place = end; place > start + BLOCK / 2; place--) if (item.pieces[place - 1].includes("\n")) { end = place; break; }
    found.push([start, end]);
  }
  return found;
}

function Block({ item, from, to, id, scale, figures, shown, alone }) {
  const [place, near, setNear] = useNear("900px");
  useEffect(() => void (shown && setNear(true)), [shown]);
  // The same nodes as long as nothing changes: where the mouse points, no token is drawn again.
  return useMemo(() => {
    const places = Array.from({ length: to - from }, (_, number) => from + number);
    if (!near) return html`<span ref=${place} class=${alone ? "alone" : ""}>${places.map((each) => piece(item, each)).join("")}</span>`;
    return html`<span ref=${place} class=${alone ? "alone" : ""}>${places.map((each) => {
      const kind = item.trained?.[each] === false ? "context" : classOf(item, each, id, scale);
      const value = figures ? MEASURES[id].value(item, each) : null;
      return html`<span class=${`t ${kind}`} data-token=${each}>${piece(item, each)}${value !== null && html`<small>${numberOf(id, value)}</small>`}</span>`;
    })}</span>`;
  }, [item, from, to, id, scale, figures, near]);
}

// The tokens from `from` to `to` of a completion.
export function Tokens({ item, completion, from, to, id, scale, figures }) {
  const blocks = useMemo(() => cut(item, from, to), [item, from, to]);
  const here = pointed.value?.completion === completion ? pointed.value.token : -1;
  return html`${blocks.map(([start, end]) => html`<${Block} key=${start} item=${item} from=${start} to=${end}
    id=${id} scale=${scale} figures=${figures} alone=${to - from > LONG} shown=${start <= here && here < end} />`)}`;
}

// Points at tokens by mouse, touch and arrow keys, and marks the one that is looked at.
export function Pointing({ completion, count, label, children }) {
  const place = useRef(null);
  const point = (token) => (pointed.value = { completion, token: Math.max(0, Math.min(count - 1, token)) });
  const over = (event) => {
    const found = event.target.closest?.("[data-token]");
    if (found) point(Number(found.dataset.token));
  };
  const pressed = (event) => {
    const now = pointed.value?.completion === completion ? pointed.value.token : -1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 50, PageUp: -50, Home: -count, End: count };
    if (!(event.key in steps) || event.target.tagName === "SUMMARY") return;
    event.preventDefault();
    point(now + steps[event.key]);
  };
  useEffect(() => {
    const mark = () => {
      place.current?.querySelector(".at")?.classList.remove("at");
      const now = pointed.value;
      if (now?.completion !== completion) return;
      const token = place.current?.querySelector(`[data-token="${now.token}"]`);
      token?.classList.add("at");
      if (token && place.current.contains(document.activeElement)) token.scrollIntoView({ block: "nearest" });
    };
    mark();
    const frame = requestAnimationFrame(mark); // its block may be drawn only now
    return () => cancelAnimationFrame(frame);
  });
  pointed.value; // draws again where another token is looked at
  return html`<div class="tokens text" ref=${place} tabindex="0" role="group" aria-label=${label} onMouseOver=${over} onClick=${over}
    onKeyDown=${pressed}>${children}</div>`;
}

// The numbers of the token that is looked at, for eyes and screen readers.
export function Readout({ items, id }) {
  const now = pointed.value;
  const item = now && items[now.completion];
  if (!item?.pieces || now.token >= item.ids.length) return html`<aside class="readout dim" aria-label="Numbers of a token">
    Point at a token, or use the arrow keys in a completion, for its numbers.</aside>`;
  const place = now.token;
  const [old, next] = [before(item, place), at(item.after, place)];
  const rows = [];
  if (old !== null) rows.push(["probability", short(Math.exp(old)) + (next === null ? "" : ` → ${short(Math.exp(next))}`)]);
  for (const each of ["change", "ratio", "advantage", "kl", "entropy"]) {
    const value = MEASURES[each].value(item, place);
    if (value !== null) rows.push([MEASURES[each].name, numberOf(each, value)]);
  }
  const sampled = at(item.logprobs, place);
  if (sampled !== null && item.before) rows.push(["sampler's", short(Math.exp(sampled))]);
  return html`<aside class="readout" aria-label="Numbers of a token" aria-live="polite"><code>${visible(JSON.stringify(item.pieces[place]))}</code>
    <span class="dim">token ${place} of ${item.ids.length}, id ${item.ids[place]}${item.trained?.[place] === false ? ", context: not trained" : ""}</span>
    ${rows.map(([name, value]) => html`<span class=${name === MEASURES[id].name ? "chosen" : ""} key=${name}>${name} <b>${value}</b></span>`)}</aside>`;
}
