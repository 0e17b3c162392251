// Where the page's values come from: the server, with the key of its link, or the elements of a copy.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

const POLL_MS = 1500;
const KEY = "oncurve-view-key";
const embedded = document.getElementById("copy");
export const isCopy = embedded !== null;

export const link = signal(isCopy ? "copy" : "live"); // "live", "lost": no answer, "refused": no key or an old one
export const route = signal({ page: "runs" });
const key = signal(isCopy ? "" : (localStorage.getItem(KEY) ?? ""));

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
const number = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);

// "#/run/step/group/completion/token", "#/run/curves/policy%2Fkl", "#/run/doctor", "#/run/prompt/7", "#/run/evaluation/0/40/7", "#compare/run/run",
// "#key=KEY" or "#key=KEY/run/step"
export function parsed(hash) {
  const parts = hash.replace(/^#\/?/, "").split("/").map(decoded);
  if (!hash.startsWith("#/")) return parts[0] === "compare" ? { page: "compare", runs: parts.slice(1) } : { page: "runs" };
  const [run, second, group, completion, token] = parts;
  if (!run) return { page: "runs" };
  if (second === "prompt") return { page: "prompt", run, prompt: number(group) };
  if (second === "evaluation") return { page: second, run, first: number(group), last: number(completion), problem: number(token) };
  if (second === "curves") return { page: "run", run, metric: group ?? null };
  if (["doctor", "settings"].includes(second)) return { page: second, run };
  const found = { run, step: number(second), group: number(group), completion: number(completion), token: number(token) };
  if (second === "groups") return { ...found, page: "groups", step: null };
  return { ...found, page: found.step === null ? "run" : found.group === null ? "groups" : "group" };
}

export const href = (...parts) => "#/" + parts.map((part) => encodeURIComponent(part)).join("/");
export const compareHref = (runs) => ["#compare", ...runs.map(encodeURIComponent)].join("/");
export const go = (target) => (location.hash = target);
// The address changes with the token that is looked at, and the history does not.
export const stay = (target) => history.replaceState(null, "", target);

function arrived() {
  const given = /^#key=([\w-]+)(\/.*)?$/.exec(location.hash);
  if (given !== null && !isCopy) {
    localStorage.setItem(KEY, given[1]);
    key.value = given[1];
    link.value = "live";
    const asked = `#${given[2] ?? "/"}`; // a place in a run goes before where this tab was
    stay(asked.split("/").length > 2 ? asked : (sessionStorage.getItem("at") ?? asked));
  }
  if (!isCopy) sessionStorage.setItem("at", location.hash || "#/");
  route.value = parsed(location.hash);
}
addEventListener("hashchange", arrived);
addEventListener("storage", (event) => {
  if (event.key !== KEY || isCopy) return; // another tab has opened the address of a newer server
  key.value = event.newValue ?? "";
  link.value = "live";
});
arrived();

export class Refused extends Error {}

async function fromCopy(question, values) {
  const place = JSON.parse(new TextDecoder().decode(bytes(embedded.textContent)))[[question, ...values].join("\n")];
  if (place === undefined) throw new Refused("This copy does not have it.");
  const packed = new Blob([bytes(document.getElementById(`copy${place}`).textContent)]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
export const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// `of` says which thing is asked for, in the order of a copy's keys; `how` sorts and cuts it.
export async function get(question, of = {}, how = {}) {
  if (isCopy) return fromCopy(question, Object.values(of));
  let answer;
  try {
    answer = await fetch(`api/${question}?${new URLSearchParams({ ...of, ...how })}`, {
      headers: { Authorization: `Bearer ${key.value}` },
    });
  } catch {
    link.value = "lost";
    throw new Error("The server does not answer.");
  }
  link.value = answer.status === 403 ? "refused" : "live";
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  throw new Refused(said.error ?? `The server says ${answer.status}.`);
}

// The answer to a question; while a newer one is on its way the earlier one stays.
export function useAnswer(question, of, how = {}, version = "") {
  const asked = JSON.stringify([question, of, how]);
  const [state, setState] = useState({ value: null, error: null, asked: "" });
  useEffect(() => {
    if (question === null) return undefined;
    let wanted = true;
    get(question, of, how).then(
      (value) => wanted && setState({ value, error: null, asked }),
      (error) => wanted && setState((old) => ({ value: old.asked === asked ? old.value : null, error, asked })),
    );
    return () => (wanted = false);
  }, [asked, version, link.value === "live"]);
  return state.asked === asked ? state : { ...state, waiting: true };
}

// A text that changes when the run has written: the server is asked for it again and again, less often in the background.
export function useStamp(run) {
  const [stamp, setStamp] = useState("");
  useEffect(() => {
    if (isCopy || run == null) return undefined;
    let wanted = true;
    let timer;
    const ask = async () => {
      try {
        const found = await get("stamp", { run });
        if (wanted) setStamp(found);
      } catch (error) {
        if (error instanceof Refused && link.value === "live" && wanted) setStamp("");
      }
      if (wanted) timer = setTimeout(ask, document.hidden ? 5 * POLL_MS : POLL_MS);
    };
    ask();
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [run]);
  return stamp;
}

// The lines of metrics.jsonl of runs, by step; only what is new is fetched.
const kept = new Map();
export async function metricsOf(run) {
  const known = kept.get(run) ?? { offset: 0, lines: new Map() };
  kept.set(run, known);
  for (let more = true; more; ) {
    const found = await get("metrics", { run }, { offset: known.offset });
    if (found.from === 0) known.lines.clear();
    for (const line of found.lines) {
      const step = line.step ?? known.lines.size + 1;
      if (known.lines.has(step)) for (const later of [...known.lines.keys()]) if (later >= step) known.lines.delete(later);
      known.lines.set(step, line);
    }
    known.offset = found.to;
    more = found.more;
  }
  return [...known.lines.values()];
}

export function useMetrics(runs, stamp) {
  const [found, setFound] = useState(null);
  const names = JSON.stringify(runs);
  useEffect(() => {
    let wanted = true;
    (async () => {
      const all = [];
      for (const run of runs) all.push(await metricsOf(run));
      if (wanted) setFound({ names, all });
    })().catch(() => wanted && setFound((old) => old ?? { names, all: runs.map(() => []) }));
    return () => (wanted = false);
  }, [names, stamp, link.value === "live"]);
  return found?.names === names ? found.all : null;
}
