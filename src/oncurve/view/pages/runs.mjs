// The runs of a folder, one run, and several over each other.
import { useEffect, useState } from "preact/hooks";
import { Curves } from "./curves.mjs";
import { ago, html, percent, Problem, short, visible, Waiting } from "./parts.mjs";
import { compareHref, get, href, isCopy, link, useAnswer, useMetrics, useStamp } from "./store.mjs";

const RUNS_MS = 3000;

export const State = ({ state }) => html`<span class=${`state ${state}`}>${state}</span>`;

// The doctor's worst finding of each run, asked for one after the other: each takes seconds.
function useWorst(rows) {
  const [worst, setWorst] = useState({});
  const wanted = JSON.stringify((rows ?? []).map((row) => [row.run, row.state === "running" ? "" : row.stamp]));
  useEffect(() => {
    let here = true;
    (async () => {
      for (const { run } of rows ?? []) {
        const found = await get("doctor", { run }).catch(() => undefined);
        if (!here) return;
        setWorst((old) => ({ ...old, [run]: found }));
      }
    })();
    return () => (here = false);
  }, [wanted]);
  return worst;
}

function Worst({ found }) {
  if (found === undefined) return html`<span class="dim">…</span>`;
  if (found === null) return html`<span class="dim">not asked</span>`;
  const first = found.present.find((each) => each.level === "alarm") ?? found.present[0];
  if (!first) return html`<span class="dim">nothing</span>`;
  return html`<span class=${`level ${first.level}`}>${visible(first.rule)}</span>`;
}

export function Runs() {
  const [turn, setTurn] = useState(0);
  const [chosen, setChosen] = useState([]);
  const { value: rows, error } = useAnswer("runs", {}, {}, turn);
  const worst = useWorst(rows);
  useEffect(() => {
    if (isCopy) return undefined;
    const timer = setInterval(() => !document.hidden && setTurn((old) => old + 1), RUNS_MS);
    return () => clearInterval(timer);
  }, []);
  if (rows === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const toggle = (run) => setChosen((old) => (old.includes(run) ? old.filter((each) => each !== run) : [...old, run]));
  return html`<h1>Runs</h1>
    ${rows.length === 0 && html`<p class="lead">There are no runs here yet. oncurve train RECIPE begins one.</p>`}
    ${rows.length > 1 && html`<p class="tools"><a class=${chosen.length < 2 ? "button off" : "button"} role="button" id="compare"
      aria-disabled=${chosen.length < 2} href=${chosen.length < 2 ? undefined : compareHref(chosen)}>Compare ${chosen.length || "runs"}</a>
      <span class="dim">Mark two or more runs for their curves over each other, and their settings side by side.</span></p>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table class="list">
      <thead><tr>${rows.length > 1 && html`<th><span class="hidden">compare</span></th>`}<th>run</th><th>state</th><th class="number">step</th>
        <th class="number">reward</th><th class="number">accuracy</th><th>doctor</th><th class="number">written</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.run}>
        ${rows.length > 1 && html`<td><input type="checkbox" aria-label=${`compare ${visible(row.run)}`} checked=${chosen.includes(row.run)}
          onChange=${() => toggle(row.run)} /></td>`}
        <th scope="row"><a href=${href(row.run)} data-row>${visible(row.run)}</a></th><td><${State} state=${row.state} /></td>
        <td class="number">${row.step}${row.steps ? html`<span class="dim"> of ${row.steps}</span>` : ""}</td>
        <td class="number">${short(row.reward)}</td><td class="number">${row.accuracy === null ? html`<span class="dim">–</span>` : percent(row.accuracy)}</td>
        <td><a class="plain" href=${href(row.run, "doctor")}><${Worst} found=${worst[row.run]} /></a></td>
        <td class="number dim">${row.written ? `${ago(Date.now() / 1000 - row.written)} ago` : "–"}</td></tr>`)}</tbody></table></div>`}`;
}

export function Tabs({ run, at, kept }) {
  const last = kept?.at(-1);
  const tabs = [["run", "Curves", href(run)], ["groups", "Groups", last === undefined ? href(run, "groups") : href(run, last)],
    ["evaluation", "Evaluation", href(run, "evaluation")], ["doctor", "Doctor", href(run, "doctor")], ["settings", "Settings", href(run, "settings")]];
  return html`<nav class="tabs" aria-label="Views of the run">${tabs.map(([id, name, target]) => html`<a key=${id} href=${target}
    aria-current=${id === at ? "page" : undefined}>${name}</a>`)}</nav>`;
}

const Tile = ({ label, value, note }) => html`<div class="tile"><span>${label}</span><b>${value}</b><span>${note}</span></div>`;

function Tiles({ about, lines }) {
  const of = (key) => lines.filter((line) => key in line).map((line) => line[key]);
  const tiles = [["reward", "reward/mean", short], ["held-out accuracy", "eval/accuracy", percent],
    ["length, tokens", "completions/length", short], ["KL, nats per token", "policy/kl", short]];
  return html`<div class="tiles">
    <${Tile} label="step" value=${about.steps ? `${about.step} of ${about.steps}` : about.step} note=${about.state} />
    ${tiles.filter(([, key]) => of(key).length).map(([label, key, said]) => {
      const values = of(key);
      return html`<${Tile} key=${key} label=${label} value=${`${said(values[0])} → ${said(values.at(-1))}`} note="first → last" />`;
    })}</div>`;
}

export function Run({ run, declared, metric }) {
  const stamp = useStamp(run);
  const { value: about, error } = useAnswer("run", { run }, {}, stamp);
  const all = useMetrics([run], stamp);
  if (about === null || all === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const facts = [about.settings["model.path"], about.environment?.device, about.folder].filter(Boolean);
  return html`<h1>${visible(run)} <${State} state=${about.state} /></h1>
    <ul class="facts">${facts.map((fact) => html`<li>${visible(fact)}</li>`)}</ul>
    ${about.damage.map((line) => html`<p class="notice">${visible(line)}</p>`)}
    <${Tabs} run=${run} at="run" kept=${about.kept} />
    <${Tiles} about=${about} lines=${all[0]} />
    <${Curves} names=${[run]} all=${all} declared=${declared} metric=${metric} />`;
}

export function Settings({ run }) {
  const { value: about, error } = useAnswer("run", { run }, {}, useStamp(run));
  if (about === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  return html`<h1>${visible(run)}</h1><${Tabs} run=${run} at="settings" kept=${about.kept} />
    <div class="sheets"><section class="sheet"><h2>config.toml</h2><pre tabindex="0" aria-label="config.toml">${visible(about.text)}</pre></section>
    <section class="sheet"><h2>environment</h2><table><tbody>${Object.entries(about.environment ?? {}).map(([key, value]) => html`<tr>
      <th scope="row">${visible(key)}</th><td>${visible(typeof value === "string" ? value : JSON.stringify(value))}</td></tr>`)}</tbody></table></section></div>`;
}

// Several runs: the settings in which they differ, and their curves over each other.
export function Compare({ runs, declared }) {
  const [abouts, setAbouts] = useState(null);
  const [error, setError] = useState(null);
  const stamp = runs.map(useStamp).join();
  const all = useMetrics(runs, stamp);
  useEffect(() => {
    Promise.all(runs.map((run) => get("run", { run }))).then(setAbouts, setError);
  }, [runs.join("\n"), stamp, link.value === "live"]);
  if (abouts === null || all === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const keys = [...new Set(abouts.flatMap((about) => Object.keys(about.settings)))];
  const text = (about, key) => (key in about.settings ? JSON.stringify(about.settings[key]) : "–");
  const different = keys.filter((key) => new Set(abouts.map((about) => text(about, key))).size > 1);
  return html`<h1>${runs.length} runs</h1>
    <h2>What differs</h2>
    ${different.length === 0 ? html`<p class="lead">Their settings are the same.</p>` : html`<div class="scroll" tabindex="0" role="region"
      aria-label="Settings that differ"><table class="list settings"><thead><tr><th>setting</th>
      ${runs.map((run) => html`<th><a href=${href(run)}>${visible(run)}</a></th>`)}</tr></thead>
      <tbody>${different.map((key) => html`<tr key=${key}><th scope="row">${visible(key)}</th>
        ${abouts.map((about) => html`<td>${visible(text(about, key))}</td>`)}</tr>`)}</tbody></table></div>`}
    <${Curves} names=${runs} all=${all} declared=${declared} />`;
}
