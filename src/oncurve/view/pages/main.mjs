// The frame of all pages: where one is, whether the server answers, the keys.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Doctor, Evaluation } from "./findings.mjs";
import { Group } from "./group.mjs";
import { Groups, OverTime } from "./groups.mjs";
import { html, useKeys, visible } from "./parts.mjs";
import { Compare, Run, Runs, Settings } from "./runs.mjs";
import { go, href, link, route, useAnswer } from "./store.mjs";

const PAGES = { runs: Runs, run: Run, compare: Compare, groups: Groups, group: Group, prompt: OverTime, doctor: Doctor, evaluation: Evaluation, settings: Settings };
const KEYS = [["j, k", "next and previous row, or group"], ["[, ]", "earlier and later step"], ["l", "the newest step, and those to come"], ["Enter", "open the row"],
  ["u, Esc", "one level up"], ["/", "find"], ["← →", "one token back or on, in a completion; PgUp, PgDn: 50"], ["c", "the next colour"],
  ["s", "side by side or stacked"], ["f", "figures at the tokens"], ["?", "this list"]];
const SAID = { lost: "no answer: trying again", refused: "the key is not accepted", live: "live", copy: "copy" };

// The places above this one: [name, address].
function above({ page, run, step, group, prompt, runs, first, last, problem }) {
  const found = [["Runs", "#/"]];
  if (page === "compare") found.push([`compare ${runs.length}`, null]);
  if (run) found.push([run, href(run)]);
  if (step !== null && step !== undefined) found.push([`step ${step}`, href(run, step)]);
  if (group !== null && group !== undefined) found.push([`group ${group}`, null]);
  if (page === "prompt") found.push([`prompt ${prompt}`, null]);
  if (page === "evaluation") found.push(["evaluation", href(run, "evaluation", ...(problem === null ? [] : [first, last]))]);
  if (page === "evaluation" && problem !== null) found.push([`problem ${problem}`, null]);
  return found;
}

// The row after or before the one that has the focus.
function toRow(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const now = rows.indexOf(document.activeElement);
  rows[now < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, now + by))]?.focus();
}

function Help({ close }) {
  const place = useRef(null);
  useEffect(() => place.current.showModal(), []);
  return html`<dialog ref=${place} onClose=${close} aria-labelledby="keys"><h2 id="keys">Keys</h2><dl class="keys">${KEYS.map(
    ([key, meaning]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}</dl>
    <form method="dialog"><button type="button" onClick=${() => place.current.close()}>Close</button></form></dialog>`;
}

function App() {
  const now = route.value;
  const [help, setHelp] = useState(false);
  const declared = useAnswer("declared", {}).value;
  const path = above(now);
  const up = () => go(path.slice(0, -1).at(-1)?.[1] ?? "#/");
  useKeys({ "?": () => setHelp(!help), "/": () => document.querySelector("[data-filter]")?.focus(), u: up, Escape: up,
    ...(now.page === "group" ? {} : { j: () => toRow(1), k: () => toRow(-1) }) });
  useEffect(() => {
    document.title = [...path.slice(1).map(([name]) => visible(name)).reverse(), "oncurve"].join(" · ");
    scrollTo(0, 0);
  }, [now.page, now.run, now.step, now.group]);
  const Page = PAGES[now.page] ?? Runs;
  return html`<header class="top"><nav aria-label="Where this is"><ol><li class="brand">oncurve</li>${path.map(([name, target], place) => html`<li key=${name}>
      ${target && place < path.length - 1 ? html`<a href=${target}>${visible(name)}</a>` : html`<span aria-current="page">${visible(name)}</span>`}</li>`)}</ol></nav>
      <span class=${`link ${link.value}`} role="status">${SAID[link.value]}</span>
      <button type="button" class="quiet" aria-label="Keys" onClick=${() => setHelp(true)}>?</button></header>
    <main>${link.value === "refused" && html`<p class="notice" role="alert">The server does not accept this page's key: it was started again, or the page was opened without it.
      Open the address that oncurve view printed; this page goes on by itself.</p>`}
      <${Page} key=${[now.page, now.run, now.runs?.join()].join()} ...${now} declared=${declared} /></main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
