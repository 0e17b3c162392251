// A group: its prompt, and its completions side by side with what the update did to each token.
import { useEffect, useMemo } from "preact/hooks";
import { ENDINGS, html, Problem, Select, short, signed, useChoice, useKeys, visible, Waiting } from "./parts.mjs";
import { go, href, stay, useAnswer, useStamp } from "./store.mjs";
import { known, MEASURES, pointed, Pointing, Readout, scaleOf, Tokens, unpacked } from "./tokens.mjs";

const ORDERS = [["extremes", "best and worst first"], ["best", "best first"], ["sampled", "as sampled"]];
const LONG = 2000;

function ordered(items, order) {
  const places = items.map((_, place) => place);
  if (order === "sampled") return places;
  const worth = (place) => items[place].advantage ?? items[place].reward ?? -Infinity;
  places.sort((a, b) => worth(b) - worth(a) || a - b);
  return order === "best" || places.length < 3 ? places : [places[0], places.at(-1), ...places.slice(1, -1)];
}

const Text = ({ text, label }) => {
  const shown = visible(text);
  if (shown.length <= LONG) return html`<div class="text prompt">${shown}</div>`;
  return html`<details class="long"><summary>${label}: ${shown.length.toLocaleString("en")} characters, ending …${shown.slice(-80)}</summary>
    <div class="text prompt">${shown}</div></details>`;
};

function Prompt({ prompt, run }) {
  const columns = Object.entries(prompt.columns ?? {});
  const value = (each) => (typeof each === "string" ? each : JSON.stringify(each, null, 1));
  return html`<section aria-label="Prompt"><h2>Prompt <a class="small" href=${href(run, "prompt", prompt.id)}>over time</a></h2>
    ${prompt.messages ? prompt.messages.map((message) => html`<h3 class="role">${visible(message.role)}</h3>
        <${Text} label="message" text=${value(message.content)} />`) : html`<${Text} label="prompt" text=${prompt.text} />`}
    ${columns.length > 0 && html`<dl class="columns">${columns.map(([name, each]) => html`<div key=${name}><dt>${visible(name)}</dt>
      <dd class="text">${visible(value(each)).slice(0, LONG)}</dd></div>`)}</dl>`}</section>`;
}

const Part = ({ name, value }) => html`<tr><th scope="row">${visible(name)}</th><td class="number">${typeof value === "number" ? short(value) : visible(value ?? "none")}</td></tr>`;

// The sections of a completion: its turns by role, or all of it.
function sections(item) {
  const turns = (item.turns ?? []).filter((turn) => turn.start < turn.end);
  if (!turns.length) return [{ role: null, start: 0, end: item.ids.length }];
  const found = [];
  let done = 0;
  for (const turn of turns) {
    if (turn.start > done) found.push({ role: "template", start: done, end: turn.start });
    found.push(turn);
    done = turn.end;
  }
  return done < item.ids.length ? [...found, { role: "template", start: done, end: item.ids.length }] : found;
}

function Turn({ item, turn, completion, view }) {
  const tokens = html`<${Tokens} item=${item} completion=${completion} from=${turn.start} to=${turn.end} ...${view} />`;
  if (turn.role === null || turn.role === "template") return tokens;
  const reward = turn.reward === null || turn.reward === undefined ? "" : `, reward ${short(turn.reward)}`;
  if (turn.role === "assistant") return html`<div class="turn"><b class="role">${visible(turn.role)}${reward}</b>${tokens}</div>`;
  return html`<details class="turn context"><summary><b class="role">${visible(turn.role)}${reward}</b>
    <span class="dim"> ${turn.end - turn.start} tokens</span></summary>${tokens}</details>`;
}

function Completion({ item, completion, largest, view, target }) {
  const advantage = item.advantage ?? null;
  const side = advantage > 0 ? "above" : advantage < 0 ? "below" : "level";
  const parts = Object.entries(item.parts ?? {});
  const extras = Object.entries(item.extras ?? {});
  const share = Math.min(50, (50 * Math.abs(advantage ?? 0)) / largest);
  const name = `completion ${completion}`;
  return html`<article class=${`completion ${side}`} id=${`completion-${completion}`} aria-label=${name}>
    <header class="head"><div class="numbers"><span><a href=${target(completion)}>#${completion}</a> reward <b>${item.reward === null || item.reward === undefined ? "none" : short(item.reward)}</b></span>
      <span>advantage <b>${advantage === null ? "none" : signed(advantage)}</b></span></div>
      <div class="bar" aria-hidden="true"><i style=${{ width: `${share}%`, [advantage > 0 ? "left" : "right"]: "50%" }}></i></div></header>
    ${item.fault && html`<p class="fault">${visible(item.fault)}</p>`}
    ${parts.length + extras.length > 0 && html`<details class="parts" open=${parts.length > 1}><summary>reward by part</summary><table><tbody>
      ${[...parts, ...extras].map(([part, value]) => html`<${Part} key=${part} name=${part} value=${value} />`)}</tbody></table></details>`}
    ${item.ids.length === 0 && !item.text ? html`<p class="empty">empty</p>` : html`<${Pointing} completion=${completion} count=${item.ids.length}
      label=${`Tokens of ${name}`}>${item.pieces ? sections(item).map((turn) => html`<${Turn} key=${turn.start} item=${item} turn=${turn}
        completion=${completion} view=${view} />`) : visible(item.text)}<//>`}
    <footer class="foot"><span>${item.ids.length} tokens</span> · <span class=${item.ended === "length" ? "cut" : ""}>${ENDINGS[item.ended] ?? visible(item.ended)}</span>
      ${item.valid === false && html` · <span class="cut">not valid: not trained on</span>`}</footer></article>`;
}

const SIDES = { change: ["raised", "lowered"], advantage: ["above 0", "below 0"], ratio: ["above 1", "below 1"] };
const Legend = ({ id, scale }) =>
  id === "none" || !scale ? null : html`<p class="legend tokens"><span class="t up4">stronger</span> <span class="t up1">weaker</span>${" "}${MEASURES[id].two ? html`${SIDES[id][0]}; <span class="t down4">stronger</span> <span class="t down1">weaker</span> ${SIDES[id][1]}` : id === "probability" ? "the less likely" : "the larger"};
    the strongest from ${id === "ratio" ? short(Math.exp(scale)) : id === "probability" ? short(1 - scale) : short(scale)} on</p>`;

export function Group({ run, step, group, completion, token }) {
  const about = useAnswer("run", { run }, {}, useStamp(run)).value;
  const { value: found, error } = useAnswer("group", { run, step, group });
  const [wanted, setMeasure] = useChoice("measure", "change");
  const [order, setOrder] = useChoice("order", "extremes");
  const [layout, setLayout] = useChoice("layout", "side");
  const [figures, setFigures] = useChoice("figures", false);
  const items = useMemo(() => unpacked(found?.completions ?? []), [found]);
  const measures = useMemo(() => known(items), [found]);
  const id = measures.includes(wanted) ? wanted : measures[0] ?? "none";
  const scale = useMemo(() => scaleOf(items, id), [found, id]);
  useEffect(() => {
    pointed.value = completion === null || token === null ? null : { completion, token };
    if (found && completion !== null) document.getElementById(`completion-${completion}`)?.scrollIntoView({ block: "start" });
  }, [found, completion, token]);
  useEffect(() => {
    let timer;
    const ended = pointed.subscribe((now) => {
      clearTimeout(timer); // the address follows when the pointer rests
      if (now) timer = setTimeout(() => stay(href(run, step, group, now.completion, now.token)), 400);
    });
    return () => (clearTimeout(timer), ended());
  }, [run, step, group]);
  const kept = about?.kept ?? [];
  const other = (by) => kept[kept.indexOf(step) + by];
  const to = (number) => number !== null && number !== undefined && go(href(run, step, number));
  const turn = (by) => other(by) !== undefined && go(href(run, other(by)));
  useKeys({
    j: () => to(found?.next),
    k: () => to(found?.previous),
    "]": () => turn(1),
    "[": () => turn(-1),
    c: () => setMeasure(measures[(measures.indexOf(id) + 1) % measures.length]),
    s: () => setLayout(layout === "side" ? "stacked" : "side"),
    f: () => setFigures(!figures),
  });
  if (found === null) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const row = found.row;
  const largest = row.largest || 1;
  const view = { id, scale, figures };
  const constant = row.spread === 0 && !row.largest;
  return html`<h1>Group ${group} <span class="dim">of step ${step}</span></h1>
    <p class="steps">${found.previous !== null && html`<a href=${href(run, step, found.previous)} rel="prev">← group ${found.previous}</a>`}
      ${found.next !== null && html`<a href=${href(run, step, found.next)} rel="next">group ${found.next} →</a>`}</p>
    <p class="lead">${row.mean === null ? "No completion has a reward." : constant ? `All rewards are ${short(row.mean)}: every advantage is 0, and this group teaches nothing.`
      : `Mean reward ${short(row.mean)}, standard deviation ${short(row.spread)}${row.right === null ? "" : `, ${row.right} of ${row.size} right`}.`}</p>
    <${Prompt} prompt=${found.prompt} run=${run} />
    <h2>Completions</h2>
    <div class="tools"><${Select} label="Colour by" value=${id} onChange=${setMeasure} options=${measures.map((each) => [each, MEASURES[each].name])} />
      <${Select} label="Order" value=${order} onChange=${setOrder} options=${ORDERS} />
      <${Select} label="Layout" value=${layout} onChange=${setLayout} options=${[["side", "side by side"], ["stacked", "stacked"]]} />
      <label class="check"><input type="checkbox" checked=${figures} onChange=${() => setFigures(!figures)} /> figures</label></div>
    ${items.some((item) => item.pieces) ? html`<${Legend} id=${id} scale=${scale} />
      ${!measures.includes("change") && html`<p class="dim">What this step did to each token was not measured; rollouts.tokens_every says at which steps it is.</p>`}` : html`<p class="dim">The texts and numbers of single tokens were not recorded in this step.</p>`}
    <div class=${`completions ${layout}`}>${ordered(items, order).map((place) => html`<${Completion} key=${place} item=${items[place]} completion=${place}
      largest=${largest} view=${view} target=${(number) => href(run, step, group, number)} />`)}</div>
    ${items.some((item) => item.pieces) && html`<${Readout} items=${items} id=${id} />`}`;
}
