// The groups of a step, and the groups of one prompt over all steps.
import { useEffect, useRef, useState } from "preact/hooks";
import { Chart } from "./curves.mjs";
import { html, Problem, short, signed, useChoice, useKeys, visible, Waiting } from "./parts.mjs";
import { State, Tabs } from "./runs.mjs";
import { get, go, href, isCopy, useAnswer, useStamp } from "./store.mjs";

const ROW = 36; // pixels, as in the style sheet
const WINDOW = 100; // rows that are fetched at once
const COLUMNS = [["group", "#"], ["prompt", "prompt"], ["mean", "mean"], ["spread", "spread"], ["right", "right"],
  ["truncated", "cut off"], ["invalid", "invalid"], ["largest", "|advantage|"], ["length", "length"]];
const FILTERS = [["", "all"], ["constant", "constant"], ["wrong", "all wrong"], ["solved", "all right"], ["truncated", "cut off"], ["invalid", "invalid"]];

const TESTS = {
  constant: (row) => row.spread === 0,
  wrong: (row) => row.right === 0,
  solved: (row) => row.right === row.size && row.size > 0,
  truncated: (row) => row.truncated > 0,
  invalid: (row) => row.invalid > 0,
};

const textsOf = (group) => [group.prompt, ...group.completions].flatMap((each) => [each, ...(each.turns ?? [])]).map((each) => (each.text ?? "").toLowerCase());
const sought = new Map(); // the groups of a copy that have a text, by the question

// In a copy the page sorts and filters by itself, as the server does.
async function selected(of, { sort, falling, only, text, start }) {
  const found = await get("groups", of);
  const wanted = text.toLowerCase();
  const name = JSON.stringify([of, wanted]);
  const having = sought.get(name) ?? new Set();
  if (wanted && !sought.has(name)) {
    for (const row of found.rows) if (textsOf(await get("group", { ...of, group: row.group })).some((each) => each.includes(wanted))) having.add(row.group);
    sought.set(name, having);
  }
  const rows = found.rows.filter((row) => (!only || TESTS[only](row)) && (!wanted || having.has(row.group)));
  const size = (row) => row[sort] ?? (falling ? -Infinity : Infinity);
  rows.sort((a, b) => (falling ? size(b) - size(a) : size(a) - size(b)));
  return { ...found, found: rows.length, searched: found.total, start, rows: rows.slice(start, start + WINDOW) };
}

const ask = async (of, how) => (isCopy ? selected(of, how) : get("groups", of, { ...how, falling: Number(how.falling), count: WINDOW }));

// The rows near the window, by their place in the order; fetched when they come near.
function useRows(of, how, stamp) {
  const [state, setState] = useState({ rows: new Map(), about: null, error: null });
  const asked = useRef(new Set());
  const [part, setPart] = useState(0); // a search is answered in parts
  const name = JSON.stringify([of, how, stamp, part]);
  const now = useRef(name);
  now.current = name;
  const fetch = (start) => {
    if (asked.current.has(`${name} ${start}`)) return;
    asked.current.add(`${name} ${start}`);
    ask(of, { ...how, start }).then(
      (found) => now.current === name && (found.searched < found.total && setPart(part + 1), setState((old) => {
        const rows = old.name === name ? new Map(old.rows) : new Map();
        found.rows.forEach((row, place) => rows.set(start + place, row));
        return { name, rows, about: found, error: null };
      })),
      (error) => (asked.current.delete(`${name} ${start}`), now.current === name && setState((old) => ({ ...old, error }))),
    );
  };
  useEffect(() => (asked.current.clear(), fetch(0)), [name]);
  return [state, fetch];
}

function Cell({ row, column, target }) {
  if (column === "prompt") return html`<a href=${target} data-row>${visible(row.prompt) || "(empty)"}</a>`;
  if (column === "group") return row.group;
  if (column === "right") return row.right === null ? "–" : `${row.right}/${row.size}`;
  return short(row[column]);
}

function Table({ of, how, stamp, setSort, target }) {
  const [{ rows, about, error }, fetch] = useRows(of, how, stamp);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  const place = useRef(null);
  useEffect(() => {
    const seen = new ResizeObserver(() => place.current && setTall(place.current.clientHeight));
    if (place.current) seen.observe(place.current);
    return () => seen.disconnect();
  }, [about === null]);
  const first = Math.max(0, Math.floor(top / ROW) - 8);
  const last = Math.min(about?.found ?? 0, Math.ceil((top + tall) / ROW) + 8);
  useEffect(() => {
    for (let start = first - (first % WINDOW); start < last; start += WINDOW) if (!rows.has(start)) fetch(start);
  });
  if (about === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, number) => first + number);
  return html`<p class="dim" role="status">${about.found.toLocaleString("en")} of ${about.total.toLocaleString("en")} groups${about.searched < about.total && `, ${about.searched.toLocaleString("en")} searched …`}</p>
    <div class="grid" role="table" aria-label="Groups" aria-rowcount=${about.found + 1}>
      <div role="rowgroup"><div class="row heads" role="row">${COLUMNS.map(([id, name]) => html`<span key=${id} class=${`c-${id}`} role="columnheader"
        aria-sort=${how.sort !== id ? undefined : how.falling ? "descending" : "ascending"}>${id === "prompt" ? name : html`<button type="button"
        onClick=${() => setSort(id)}>${name}${how.sort === id ? (how.falling ? " ↓" : " ↑") : ""}</button>`}</span>`)}</div></div>
      <div class="body" role="rowgroup" ref=${place} tabindex="0" aria-label="rows" onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
        <div class="all" role="presentation" style=${{ height: `${about.found * ROW}px` }}>${shown.map((number) => {
          const row = rows.get(number);
          return html`<div class="row" role="row" key=${number} aria-rowindex=${number + 2} style=${{ top: `${number * ROW}px` }}>${COLUMNS.map(([id]) => html`<span
            key=${id} class=${`c-${id}`} role="cell">${row ? html`<${Cell} row=${row} column=${id} target=${target(row)} />` : "…"}</span>`)}</div>`;
        })}</div></div></div>`;
}

// The tokens that a step changed most, each a link to its place.
function Pushed({ run, step }) {
  const found = useAnswer("changed", { run, step }).value;
  if (!found?.length) return null;
  return html`<ul class="facts pushed" aria-label="Most changed tokens"><li>Changed most:</li>${found.map((each) => html`<li key=${each.link}><a href=${href(run, step, each.group, each.completion, each.token)}>
    <code>${visible(JSON.stringify(each.piece))}</code> ${short(each.before)} → ${short(each.after)}</a> <b class=${each.change > 0 ? "above" : "below"}>${signed(each.change)}</b></li>`)}</ul>`;
}

export function Groups({ run, step }) {
  const stamp = useStamp(run);
  const { value: about, error } = useAnswer("run", { run }, {}, stamp);
  const [sort, setSort] = useChoice("sort", { sort: "group", falling: false });
  const [only, setOnly] = useChoice("only", "");
  const [text, setText] = useChoice("text", "");
  const typing = useRef(null);
  const type = (next) => (clearTimeout(typing.current), (typing.current = setTimeout(() => setText(next), 250)));
  const [newest, follow] = useChoice("follow", false);
  const kept = about?.kept ?? [];
  const at = kept.includes(step) ? kept.indexOf(step) : kept.length - 1;
  const move = (place, following = false) => {
    follow(following);
    if (kept[place] !== undefined) go(href(run, kept[place]));
  };
  useEffect(() => {
    if (kept.length && (newest || !kept.includes(step)) && kept.at(-1) !== step && (newest || step === null)) go(href(run, kept.at(-1)));
  }, [kept.at(-1), newest]);
  useKeys({ "[": () => move(at - 1), "]": () => move(at + 1), l: () => move(kept.length - 1, true) });
  if (about === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const sorted = (id) => setSort({ sort: id, falling: sort.sort === id ? !sort.falling : id !== "group" });
  return html`<h1>${visible(run)} <${State} state=${about.state} /></h1><${Tabs} run=${run} at="groups" kept=${kept} />
    ${kept.length === 0 ? html`<p class="lead">No step has groups that were kept; see the setting rollouts.keep.</p>` : html`
    ${step !== null && !kept.includes(step) && html`<p class="lead">Of step ${step} no groups were kept; this is step ${kept[at]}.</p>`}
    <div class="slider"><button type="button" aria-label="earlier step" disabled=${at <= 0} onClick=${() => move(at - 1)}>←</button>
      <label><span>step <b>${kept[at]}</b> <span class="dim">of ${kept[0]} to ${kept.at(-1)}</span></span>
        <input type="range" id="step" min="0" max=${kept.length - 1} value=${at} aria-valuetext=${`step ${kept[at]}`}
          onInput=${(event) => move(Number(event.currentTarget.value))} /></label>
      <button type="button" aria-label="later step" disabled=${at >= kept.length - 1} onClick=${() => move(at + 1)}>→</button>
      ${about.state === "running" && html`<label class="check"><input type="checkbox" checked=${newest} onChange=${() => move(kept.length - 1, !newest)} /> newest</label>`}</div>
    <div class="tools"><div class="chips" role="group" aria-label="Show">${FILTERS.map(([id, name]) => html`<button key=${id} type="button" aria-pressed=${only === id}
      onClick=${() => setOnly(id)}>${name}</button>`)}<button type="button" aria-pressed=${sort.sort === "spread" && sort.falling}
      onClick=${() => setSort({ sort: "spread", falling: true })}>largest spread</button></div>
      <label class="field grow"><span>Find</span><input type="search" data-filter value=${text} placeholder="text of prompts and completions"
        onInput=${(event) => type(event.currentTarget.value)} /></label></div>
    <${Pushed} key=${`pushed ${kept[at]}`} run=${run} step=${kept[at]} />
    <${Table} key=${kept[at]} of=${{ run, step: kept[at] }} how=${{ ...sort, only, text }} stamp=${kept.at(-1) === kept[at] ? stamp : ""} setSort=${sorted}
      target=${(row) => href(run, kept[at], row.group)} />`}`;
}

const best = (group) => [...group.completions].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity))[0];

function Then({ run, row }) {
  const group = useAnswer("group", { run, step: row.step, group: row.group }).value;
  return html`<article class="completion"><header class="head">best of <a href=${href(run, row.step, row.group)}>step ${row.step}</a></header>
    <div class="text" tabindex="0" role="group" aria-label=${`best completion of step ${row.step}`}>${group === null ? "…" : visible(best(group)?.text)}</div></article>`;
}

export function OverTime({ run, prompt }) {
  const { value: rows, error } = useAnswer("prompt", { run, prompt }, {}, useStamp(run));
  if (rows === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const line = (key) => [{ name: key, points: rows.filter((row) => row[key] !== null).map((row) => [row.step, row[key]]) }];
  const view = { log: false, smooth: 0 };
  return html`<h1>Prompt ${prompt} <span class="dim">over time</span></h1>
    ${rows.length === 0 ? html`<p class="lead">No kept step has this prompt.</p>` : html`<p class="text prompt">${visible(rows[0].prompt)}</p>
    <div class="charts"><${Chart} title="mean reward" about=${{ meaning: "Of this prompt's completions." }} lines=${line("mean")} view=${view} />
      <${Chart} title="length" about=${{ unit: "tokens", meaning: "Mean of this prompt's completions." }} lines=${line("length")} view=${view} /></div>
    <h2>${rows.length > 1 ? "First and last" : "The only time"}</h2>
    <div class="completions side">${[rows[0], ...(rows.length > 1 ? [rows.at(-1)] : [])].map((row) => html`<${Then} key=${`${row.step} ${row.group}`} run=${run} row=${row} />`)}</div>
    <h2>All</h2><div class="scroll" tabindex="0" role="region" aria-label="Groups of the prompt"><table class="list"><thead><tr><th>step</th><th class="number">mean</th>
      <th class="number">spread</th><th class="number">right</th><th class="number">cut off</th><th class="number">length</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${`${row.step} ${row.group}`}><th scope="row"><a href=${href(run, row.step, row.group)} data-row>step ${row.step}</a></th>
        <td class="number">${short(row.mean)}</td><td class="number">${short(row.spread)}</td><td class="number">${row.right === null ? "–" : `${row.right}/${row.size}`}</td>
        <td class="number">${row.truncated}</td><td class="number">${short(row.length)}</td></tr>`)}</tbody></table></div>`}`;
}
