// Metrics over steps: small charts by folder, with one cursor for all of them.
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { html, short, useChoice, useNear, visible } from "./parts.mjs";

const HEIGHT = 168;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const FIRST = ["reward", "rewards", "eval", "completions", "policy", "groups", "advantage", "optim"];
const HIDDEN = new Set(["step", "progress/prompts_seen", "policy/kl_coef", "optim/updates"]);

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = signal(dark.matches);
dark.addEventListener("change", () => (theme.value = dark.matches));
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The declaration of a key: its own, or that of its family ("rewards/<name>").
export function declaration(declared, key) {
  const own = declared?.find((metric) => metric.name === key);
  const family = (metric) => metric.name.endsWith(">") && key.startsWith(metric.name.split("<")[0]);
  return own ?? declared?.find(family) ?? { unit: "", meaning: "", formula: "", advice: "" };
}

// The mean of the values so far, in which older ones count `weight` as much each step.
export function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + 1 - weight;
    return sum / share;
  });
}

// [steps, values of each line] of uPlot, over the steps of all lines; what a logarithm does not take is left out.
function table(lines, log) {
  const steps = [...new Set(lines.flatMap((line) => line.points.map(([step]) => step)))].sort((a, b) => a - b);
  const columns = lines.map((line) => {
    const values = new Map(line.points);
    return steps.map((step) => (!values.has(step) || (log && values.get(step) <= 0) ? null : values.get(step)));
  });
  return [steps, columns];
}

function plotted(place, lines, { log, smooth }, say) {
  const [steps, columns] = table(lines, log);
  const [ink, rule] = [colour("--dim"), colour("--rule")];
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: ink, font, ticks: { show: false }, grid: { stroke: rule, width: 1 } };
  const series = [{}];
  const data = [steps];
  lines.forEach((line, place) => {
    const stroke = colour(`--line${place % 6}`);
    const dash = DASHES[place % DASHES.length];
    const points = { show: steps.length <= 25, size: 5 };
    if (smooth) {
      series.push({ stroke: `${stroke}55`, width: 1, points: { show: false }, spanGaps: true });
      data.push(columns[place]);
    }
    series.push({ stroke, width: 2, dash, points, spanGaps: true });
    data.push(smoothed(columns[place], smooth));
  });
  const every = smooth ? 2 : 1;
  const options = {
    width: Math.max(120, place.clientWidth),
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "steps" }, drag: { x: true, y: false }, points: { size: 6 } },
    scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
    axes: [
      { ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
      { ...axis, size: 50, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
    ],
    series,
    hooks: {
      setCursor: [
        (plot) => {
          const at = plot.cursor.idx ?? steps.length - 1;
          say(steps[at], lines.map((_, place) => data[1 + place * every + (every - 1)][at] ?? null), plot.cursor.idx === null);
        },
      ],
    },
  };
  return new uPlot(options, data, place);
}

// lines: [{ name, points: [[step, value], ...] }]
export function Chart({ title, about, lines, view, wide }) {
  const [place, near] = useNear();
  const box = useRef(null);
  const now = useRef(null);
  const dim = theme.value;
  const drawn = JSON.stringify([view, dim, lines.length]);
  const length = lines.reduce((sum, line) => sum + line.points.length, 0);
  const say = (step, values, last) => {
    if (now.current === null || step === undefined) return;
    const numbers = values.map((value) => short(value)).join(" · ");
    now.current.textContent = last ? numbers : `step ${step}: ${numbers}`;
  };
  useEffect(() => {
    if (!near || box.current === null || !length) return undefined;
    const frame = box.current;
    const plot = plotted(frame, lines, view, say);
    const resized = new ResizeObserver(() => plot.setSize({ width: Math.max(120, frame.clientWidth), height: HEIGHT }));
    resized.observe(frame);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  }, [near, drawn, length, lines.at(-1)?.points.at(-1)?.[1]]);
  const ends = (line) => line.points.map(([, value]) => value);
  const first = lines.map((line) => short(ends(line)[0])).join(", ");
  const last = lines.map((line) => short(ends(line).at(-1))).join(" · ");
  return html`<section class=${wide ? "chart wide" : "chart"} ref=${place}>
    <header><h3>${visible(title)} ${about.unit && html`<span class="unit">${about.unit}</span>`}</h3>
      <span class="now" ref=${now}>${last}</span></header>
    <p class="meaning">${about.meaning}</p>
    <div class="plot" ref=${box} role="img" aria-label=${`${visible(title)}: from ${first} to ${last}`}></div>
    ${lines.length > 1 && html`<ul class="legend">${lines.map(
      (line, number) => html`<li><svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4"
        class=${`line${number % 6}`} stroke-dasharray=${DASHES[number % DASHES.length].join(" ")} /></svg> ${visible(line.name)}</li>`,
    )}</ul>`}
    ${about.formula && html`<details><summary>Formula, and what to do</summary><p class="formula">${about.formula}</p>
      <p>${about.advice}</p></details>`}
  </section>`;
}

const points = (lines, key) => lines.filter((line) => key in line && "step" in line).map((line) => [line.step, line[key]]);
const folder = (key) => (key.includes("/") ? key.split("/")[0] : "other");

// The charts of one or several runs; `all` has the lines of each.
export function Curves({ names, all, declared, metric }) {
  const [smooth, setSmooth] = useChoice("smooth", 0);
  const [log, setLog] = useChoice("log", false);
  const [wanted, setWanted] = useChoice("wanted", "");
  useEffect(() => void (metric && setWanted(metric)), [metric]); // a link to a curve
  const view = useMemo(() => ({ smooth, log }), [smooth, log]);
  const keys = [...new Set(all.flatMap((lines) => lines.flatMap((line) => Object.keys(line))))].filter((key) => !HIDDEN.has(key));
  const shown = keys.filter((key) => key.toLowerCase().includes(wanted.toLowerCase()));
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const folders = [...new Set(shown.map(folder))].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const linesOf = (key) => all.map((lines, place) => ({ name: names[place], points: points(lines, key) })).filter((line) => line.points.length);
  const phases = keys.filter((key) => key.startsWith("time/") && key !== "time/step" && linesOf(key).length);
  if (!keys.length) return html`<p class="lead">No step has ended yet.</p>`;
  return html`<div class="tools">
      <label class="field grow"><span>Find</span><input type="search" data-filter value=${wanted} placeholder="a metric's name"
        onInput=${(event) => setWanted(event.currentTarget.value)} /></label>
      <label class="field"><span>Smoothing ${smooth ? smooth.toFixed(2) : "off"}</span><input type="range" min="0" max="0.98" step="0.02"
        value=${smooth} onInput=${(event) => setSmooth(Number(event.currentTarget.value))} /></label>
      <label class="check"><input type="checkbox" checked=${log} onChange=${() => setLog(!log)} /> log scale</label>
    </div>
    ${folders.map((name) => html`<details key=${name} class="folder" open=${rank(name) < FIRST.length || wanted !== ""}>
      <summary><h2>${visible(name)}</h2> <span class="dim">${shown.filter((key) => folder(key) === name).length}</span></summary>
      <div class="charts">
        ${name === "time" && names.length === 1 && phases.length > 1 && html`<${Chart} key="phases" wide title="time by phase"
          about=${{ unit: "s", meaning: "Where the seconds of each step go." }} view=${view}
          lines=${phases.map((key) => ({ name: key.slice(5), points: points(all[0], key) }))} />`}
        ${shown.filter((key) => folder(key) === name).map((key) => html`<${Chart} key=${key} title=${key}
          about=${declaration(declared, key)} lines=${linesOf(key)} view=${view} />`)}
      </div></details>`)}`;
}
