// What the doctor finds in a run, and what evaluations find, each with links to where it can be seen.
import { ENDINGS, html, percent, Problem, Select, short, useChoice, visible, Waiting } from "./parts.mjs";
import { State, Tabs } from "./runs.mjs";
import { go, href, isCopy, parsed, useAnswer, useStamp } from "./store.mjs";

// The kept steps nearest to those at which a finding held.
const near = (kept, step) => kept.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), kept[0]);

// A text in which "(#/run/step/group)" is a link.
const Linked = ({ text }) => text.split(/(\(#\/[^()\s]+\))/).map((part) =>
  part.startsWith("(#/") ? html`(<a href=${part.slice(1, -1)}>look</a>)` : visible(part));

function Finding({ run, course, kept, now }) {
  const steps = kept.length ? [...new Set([near(kept, course.first_step), near(kept, course.last_step)])] : [];
  const curves = course.links.map((link) => parsed(link).metric).filter(Boolean);
  return html`<article class="sheet finding"><h3><span class=${`level ${course.level}`}>${visible(course.rule)}</span>
      <span class="dim">${course.level}, ${now ? `since step ${course.first_step}` : `steps ${course.first_step} to ${course.last_step}`}</span></h3>
    <p><b><${Linked} text=${course.evidence} />.</b> ${visible(course.reason)}</p>
    <p class="dim">What helps, in this order:</p><ol>${course.changes.map((change) => html`<li>${visible(change)}</li>`)}</ol>
    <p class="evidence">Look at ${steps.map((step) => html`<a key=${step} href=${href(run, step)}>the groups of step ${step}</a> `)}
      ${curves.map((metric) => html`<a key=${metric} href=${href(run, "curves", metric)}>${visible(metric)}</a> `)}
      ${curves.length === 0 && html`<a href=${href(run)}>the curves</a>`}</p></article>`;
}

export function Doctor({ run }) {
  const stamp = useStamp(run);
  const about = useAnswer("run", { run }, {}, stamp).value;
  const { value: found, error } = useAnswer("doctor", { run }, {}, about?.state === "running" ? "" : stamp);
  const list = (courses, now) => courses.map((course) => html`<${Finding} key=${course.rule} run=${run} course=${course} kept=${about?.kept ?? []} now=${now} />`);
  return html`<h1>${visible(run)} ${about && html`<${State} state=${about.state} />`}</h1><${Tabs} run=${run} at="doctor" kept=${about?.kept} />
    ${error && html`<${Problem} error=${error} />`}
    ${!found && !error && html`<p class="dim" role="status">The doctor reads the run; this takes some seconds …</p>`}
    ${found && html`<h2>Now</h2>${found.early && html`<p class="lead">${visible(found.early)}</p>`}
      ${found.present.length ? list(found.present, true) : html`<p class="lead">Nothing is wrong at step ${found.steps}.</p>`}
      ${found.past.length > 0 && html`<h2>Earlier</h2>${list(found.past, false)}`}`}`;
}

const CHANGES = ["right to wrong", "wrong to right", "still right", "still wrong"];
const MOST = 500; // problems that are listed
const said = (pair) => (pair === null ? "–" : `${pair[0]}/${pair[1]}`);

function Result({ result }) {
  const verdict = result.right === null ? "no verdict" : result.right ? "right" : "wrong";
  return html`<article class="completion"><header class="head"><span>after step ${result.step}</span> <b class=${result.right ? "above" : "below"}>${verdict}</b></header>
    <div class="text" tabindex="0" role="group" aria-label=${`greedy completion after step ${result.step}`}>${visible(result.reply)}</div>
    <footer class="foot">reward ${short(result.reward)} · ${ENDINGS[result.ended] ?? visible(result.ended)}${result.samples && ` · ${said(result.samples)} samples right`}
      ${result.fault && html`<p class="cut">${visible(result.fault)}</p>`}</footer></article>`;
}

function HeldOut({ run, first, last, problem }) {
  const { value: found, error } = useAnswer("flips", { run, first, last, problem });
  const results = found?.results;
  if (!results) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  return html`<h1>Problem ${problem} <span class="dim">held out</span></h1>
    <section aria-label="Prompt"><h2>Prompt</h2><div class="text prompt">${visible(results[0].prompt)}</div>
      ${results[0].answer !== null && html`<dl class="columns"><div><dt>answer</dt><dd class="text">${visible(results[0].answer)}</dd></div></dl>`}</section>
    <h2>Greedy completions</h2><div class="completions side">${results.map((result, place) => html`<${Result} key=${place} result=${result} />`)}</div>`;
}

// Two evaluations: the problems that flipped between them.
export function Evaluation({ run, first, last, problem }) {
  const stamp = useStamp(run);
  const { value: about, error } = useAnswer("run", { run }, {}, stamp);
  const steps = about?.evaluations ?? [];
  const [from, to] = [first ?? steps[0], last ?? steps.at(-1)];
  const { value: found, error: wrong } = useAnswer(steps.length ? "flips" : null, { run, first: from, last: to });
  const [chosen, choose] = useChoice("flips", "flips");
  if (problem !== null && first !== null && last !== null) return html`<${HeldOut} run=${run} first=${first} last=${last} problem=${problem} />`;
  if (about === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const top = html`<h1>${visible(run)} <${State} state=${about.state} /></h1><${Tabs} run=${run} at="evaluation" kept=${about.kept} />`;
  if (!steps.length) return html`${top}<p class="lead">No evaluation of this run has recorded its problems; eval.every says after which steps there is one.</p>`;
  const kinds = { flips: (each) => each.change.includes(" to "), all: () => true, ...Object.fromEntries(CHANGES.map((name) => [name, (each) => each.change === name])) };
  const rows = (found?.problems ?? []).filter(kinds[chosen]);
  const of = (...names) => names.reduce((sum, name) => sum + (found?.counts[name] ?? 0), 0);
  const known = of(...CHANGES);
  const sampled = rows.some((row) => row.samples[0] && row.samples[1]);
  const at = (label, value, other) => html`<${Select} label=${label} value=${value} options=${steps.map((step) => [step, `step ${step}`])} onChange=${(step) => go(other(Number(step)))} />`;
  const opens = (row) => !isCopy || !row.change.startsWith("still"); // a copy has the texts of those that changed
  return html`${top}
    ${isCopy ? html`<p class="dim">Between step ${from} and step ${to}.</p>` : html`<div class="tools">${at("From", from, (step) => href(run, "evaluation", step, to))}${at("To", to, (step) => href(run, "evaluation", from, step))}</div>`}
    ${wrong && html`<${Problem} error=${wrong} />`}${!found && !wrong && html`<${Waiting} />`}
    ${found && html`<p class="lead">${known === 0 ? "No reward is the verifier of these problems, so none is right or wrong." : html`${of("wrong to right")} of ${known} held-out problems became right and ${of("right to wrong")} became wrong: ${percent(of("right to wrong", "still right") / known)} were right after step ${from}, ${percent(of("wrong to right", "still right") / known)} after step ${to}.`}</p>
      <div class="tools"><div class="chips" role="group" aria-label="Show">${Object.keys(kinds).map((name) => html`<button key=${name} type="button" aria-pressed=${chosen === name}
        onClick=${() => choose(name)}>${name === "flips" ? "flipped" : name} ${found.problems.filter(kinds[name]).length}</button>`)}</div></div>
      ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Held-out problems"><table class="list flips"><thead><tr><th>problem</th><th>change</th>
        ${sampled && html`<th class="number">samples right</th>`}</tr></thead><tbody>${rows.slice(0, MOST).map((row) => html`<tr key=${row.problem}>
        <th scope="row">${opens(row) ? html`<a href=${href(run, "evaluation", from, to, row.problem)} data-row>${visible(row.prompt)}</a>` : visible(row.prompt)}</th>
        <td class=${row.change === "right to wrong" ? "below" : row.change === "wrong to right" ? "above" : "dim"}>${row.change || "no verdict"}</td>
        ${sampled && html`<td class="number">${said(row.samples[0])} → ${said(row.samples[1])}</td>`}</tr>`)}</tbody></table></div>`}
      ${rows.length > MOST && html`<p class="dim">and ${(rows.length - MOST).toLocaleString("en")} more; oncurve show --flips --json has all</p>`}`}`;
}
