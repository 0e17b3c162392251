// What the doctor finds in a run, each with links to where it can be seen.
import { html, Problem, visible } from "./parts.mjs";
import { State, Tabs } from "./runs.mjs";
import { href, useAnswer, useStamp } from "./store.mjs";

// The kept steps nearest to those at which a finding held.
const near = (kept, step) => kept.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), kept[0]);

// A text in which "(#/run/step/group)" is a link.
const Linked = ({ text }) => text.split(/(\(#\/[^()\s]+\))/).map((part) =>
  part.startsWith("(#/") ? html`(<a href=${part.slice(1, -1)}>look</a>)` : visible(part));

function Finding({ run, course, kept, now }) {
  const steps = kept.length ? [...new Set([near(kept, course.first_step), near(kept, course.last_step)])] : [];
  return html`<article class="sheet finding"><h3><span class=${`level ${course.level}`}>${visible(course.rule)}</span>
      <span class="dim">${course.level}, ${now ? `since step ${course.first_step}` : `steps ${course.first_step} to ${course.last_step}`}</span></h3>
    <p><b><${Linked} text=${course.evidence} />.</b> ${visible(course.reason)}</p>
    <p class="dim">What helps, in this order:</p><ol>${course.changes.map((change) => html`<li>${visible(change)}</li>`)}</ol>
    <p class="evidence">Look at ${steps.map((step) => html`<a key=${step} href=${href(run, step)}>the groups of step ${step}</a> `)}
      <a href=${href(run)}>the curves</a></p></article>`;
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
