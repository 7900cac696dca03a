"use strict";
// One run: tasks, the grid of siblings by turns, a turn beside its matched sibling turn, tokens, and the way to W.
// The place (step, task, rollout, turn, source) is the only state; it is kept in the address.

const head = JSON.parse(document.getElementById("head").textContent);
const PANEL = -1; // the step of the evaluations' dialogues
const kept = new Map(); // step -> content
const place = { step: head.steps[0], task: head.task, rollout: null, turn: null, source: 0, pane: "credit" };
const filter = { text: "", kind: "all" };
let measure = null; // the credit column that colours the grid
let shading = "rectified";
let arcs = "selected";

const MEASURES = ["weight", "advantage", "evidence", "rectified_gap", "identity_gap", "alpha", "divergence", "density", "span_budget", "turn_share"];
const CUTS = { threshold: ["▾", "the profile shifted by more than the threshold"], guided: ["◆", "split at the largest shift: the span was too long"], forced: ["■", "split by length alone"], drawn: ["○", "drawn at random (ablation)"] };

async function content(step) {
  if (!kept.has(step)) kept.set(step, await unpacked(`step-${step}`));
  return kept.get(step);
}

// single tokens are most of a step: those of a task are unpacked when it is looked at
async function unpackTokens(task) {
  if (!task || !task.tokens) return;
  task.tokens = false;
  const found = await unpacked(`tokens-${place.step}-${current().tasks.indexOf(task)}`);
  task.rollouts.forEach((rollout, row) => rollout.turns.forEach((turn, at) => {
    const { token_texts, ...gaps } = found[row][at];
    if (token_texts) turn.token_texts = token_texts;
    Object.assign(turn.credit, gaps);
  }));
}

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const current = () => kept.get(place.step);
const taskOf = () => current().tasks.find((task) => task.task === place.task) || telling(current().tasks, (task) => Math.max(0, ...task.rollouts.flatMap((one) => one.turns.map(moved))));
const telling = (list, worth) => list.reduce((best, one) => (best === undefined || worth(one) > worth(best) ? one : best), undefined);
// how far a turn's credit is from the outcome's own: what a reader wants to see first
const moved = (turn) => Math.abs((creditOf(turn) || 0) - (turn.credit.weight === undefined ? 0 : outcomeOf(turn))) * (turn.sources.length ? 1 : 0.3);
const rolloutOf = (task, name) => task.rollouts.find((rollout) => rollout.rollout === name);
const turnOf = (rollout, number) => rollout && rollout.turns.find((turn) => turn.turn === number);

// ---------------------------------------------------------------- moving

async function go(change, note = true) {
  const before = { ...place };
  Object.assign(place, change);
  if (!head.steps.includes(place.step)) place.step = head.steps.reduce((best, step) => (Math.abs(step - place.step) < Math.abs(best - place.step) ? step : best));
  await content(place.step);
  settle(before);
  await unpackTokens(taskOf());
  if (place.pane === "text") for (const step of (taskOf() && head.again[taskOf().task]) || []) await content(step);
  if (note) history.replaceState(null, "", address());
  draw();
}

function settle(before) {
  const task = taskOf();
  if (!task) return;
  place.task = task.task;
  const played = task.rollouts.filter((rollout) => rollout.turns.length);
  const rollout = rolloutOf(task, place.rollout) || telling(played, (one) => Math.max(...one.turns.map(moved))) || task.rollouts[0];
  place.rollout = rollout.rollout;
  const turn = turnOf(rollout, place.turn) || telling(rollout.turns, moved);
  place.turn = turn ? turn.turn : null;
  const same = before.task === place.task && before.rollout === place.rollout && before.turn === place.turn && before.step === place.step;
  if (!same && before.source === place.source) place.source = 0;
}

function address() {
  return "#" + new URLSearchParams(Object.entries(place).filter(([, value]) => value !== null)).toString();
}

function placeOf(hash) {
  const found = Object.fromEntries(new URLSearchParams(hash.slice(1)));
  for (const name of ["step", "turn", "source"]) if (name in found) found[name] = Number(found[name]);
  return Object.fromEntries(Object.entries(found).filter(([name]) => name in place));
}

function along(list, at, by) {
  return list[Math.max(0, Math.min(list.length - 1, list.indexOf(at) + by))];
}

function keyed(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const task = taskOf();
  const names = visible().map((one) => one.task);
  const rollouts = task.rollouts.map((one) => one.rollout);
  const turns = (rolloutOf(task, place.rollout) || { turns: [] }).turns.map((one) => one.turn);
  const turn = turnOf(rolloutOf(task, place.rollout), place.turn);
  const moves = {
    j: () => go({ task: along(names, place.task, 1), rollout: null, turn: null }),
    k: () => go({ task: along(names, place.task, -1), rollout: null, turn: null }),
    n: () => go({ turn: along(turns, place.turn, 1) }),
    p: () => go({ turn: along(turns, place.turn, -1) }),
    ArrowRight: () => go({ turn: along(turns, place.turn, 1) }),
    ArrowLeft: () => go({ turn: along(turns, place.turn, -1) }),
    ArrowDown: () => go({ rollout: along(rollouts, place.rollout, 1) }),
    ArrowUp: () => go({ rollout: along(rollouts, place.rollout, -1) }),
    m: () => turn && turn.sources.length && go({ source: (place.source + 1) % turn.sources.length }),
    "]": () => go({ step: along(head.steps, place.step, 1) }),
    "[": () => go({ step: along(head.steps, place.step, -1) }),
  };
  if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
}

// ---------------------------------------------------------------- the page

function draw() {
  const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.keep : null;
  const scroll = document.querySelector(".tasks ol");
  const top = scroll ? scroll.scrollTop : 0;
  const across = (document.querySelector(".grid") || { scrollLeft: 0 }).scrollLeft;
  const body = place.pane === "evaluation" ? [evaluation()] : place.pane === "text" ? [make("div", { class: "panes reads" }, tasks(), reading())] : [curves(), make("div", { class: `panes${long() ? " long" : ""}` }, tasks(), grid(), why(), detail())];
  document.getElementById("page").replaceChildren(bar(), ...body);
  const list = document.querySelector(".tasks ol");
  if (list) list.scrollTop = top;
  const chosen = document.querySelector(".tasks [aria-current=true]");
  if (chosen && list && (chosen.offsetTop < list.scrollTop || chosen.offsetTop > list.scrollTop + list.clientHeight)) list.scrollTop = chosen.offsetTop - list.clientHeight / 2;
  keepInSight(document.querySelector(".grid"), across);
  if (focus) { const node = document.querySelector(`[data-keep="${focus}"]`); if (node) { node.focus(); if (node.setSelectionRange) node.setSelectionRange(node.value.length, node.value.length); } }
}

// long episodes scroll; the chosen turn stays in sight
function keepInSight(pane, left) {
  const cell = pane && pane.querySelector("[aria-selected=true]");
  if (!cell) return;
  pane.scrollLeft = left;
  const [inner, outer] = [cell.getBoundingClientRect(), pane.getBoundingClientRect()];
  if (inner.left < outer.left + LEFT || inner.right > outer.right) pane.scrollLeft += inner.left - outer.left - outer.width / 2;
}

const long = () => taskOf() && Math.max(...taskOf().rollouts.map((one) => one.turns.length)) > 12;

function bar() {
  const pane = (name, label) => make("button", { "aria-pressed": String(place.pane === name), onclick: () => go({ pane: name }) }, label);
  const facts = Object.entries(head.facts).map(([name, value]) => `${name} ${value}`).join(" · ");
  const kind = ["success", "score"].find((name) => Object.values(head.evaluation).some((one) => one[name] && one[name].mean !== null));
  const result = kind ? ["before", "after"].filter((when) => head.evaluation[when]).map((when) => `${when} ${estimate(head.evaluation[when][kind])} %`) : [];
  const difference = head.gain && head.gain[kind] && head.gain[kind].mean !== null ? `, ${gained(head.gain[kind])} by task` : "";
  const steps = make("select", { "data-keep": "step", title: "rollout step ([ and ])", onchange: (event) => go({ step: Number(event.target.value) }) },
    head.steps.map((step) => make("option", { value: step, selected: step === place.step }, step === PANEL ? "the panel" : `step ${step}`)));
  return make("header", {}, make("h1", {}, head.name), make("span", { class: "facts" }, facts),
    result.length ? make("strong", { title: panelNote() }, `panel ${kind} ${result.join(" → ")}${difference}`) : make("span", { class: "none" }, "no panel was played: a recipe plays one before and after training (--panel, --evaluate_first True)"),
    make("span", { class: "right" }, steps, pane("credit", "credit"), pane("text", "text"), Object.keys(head.evaluation).length ? pane("evaluation", "evaluation") : null, theme()));
}

function panelNote() {
  const { before, after } = head.evaluation, any = after || before || {}, at = (value) => (value === undefined || value === null ? "" : ` at temperature ${shown(value)}`);
  return `The panel is played with fixed tasks${at(any.temperature)}; rollouts draw their tasks and are sampled${at(head.temperature)}: their success rates are not the same quantity.`;
}

const FIRST = ["success, %", "score, %", "turns an episode", "spread of W", "rectified gap", "matched turns"];
const NOTES = { "success, %": "of the rollouts that are trained on, with its 95 % interval", "score, %": "of the rollouts that are trained on", "spread of W": "standard deviation of the turns' weights: 0 is GRPO", "identity gap": TERMS.identity_gap[1], "rectified gap": TERMS.rectified_gap[1], "matched turns": "share of turns with a matched sibling turn" };

function curves() {
  if (!head.curves.length) return null;
  const pick = (step) => go({ step: head.steps.filter((one) => one !== PANEL).reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best)) });
  const drawn = (lines) => make("div", { class: "multiples" }, lines.map((line) => chart(line.name, [{ ...line, name: "" }], { mark: place.step, pick, note: NOTES[line.name] })));
  const [first, rest] = [head.curves.filter((line) => FIRST.includes(line.name)), head.curves.filter((line) => !FIRST.includes(line.name))];
  const note = Object.keys(head.evaluation).length ? make("p", { class: "legend" }, panelNote()) : null;
  return fold("curves", "over rollout steps (a click goes to the step)", !narrow(), drawn(first), note, rest.length ? fold("more", `more: ${rest.map((line) => line.name).join(", ")}`, false, drawn(rest)) : null);
}

// ---------------------------------------------------------------- tasks

function visible() {
  const words = filter.text.toLowerCase();
  const mixed = (task) => new Set(task.rollouts.map((rollout) => rollout.reward)).size > 1;
  const fits = { all: () => true, mixed, won: (task) => task.rollouts.some((one) => one.won), lost: (task) => task.rollouts.every((one) => !one.won) };
  return current().tasks.filter((task) => fits[filter.kind](task) && `${task.task} ${task.category} ${task.task_text}`.toLowerCase().includes(words));
}

function spread(task) {
  const rewards = task.rollouts.map((one) => one.reward || 0);
  const mean = rewards.reduce((sum, one) => sum + one, 0) / rewards.length;
  return Math.sqrt(rewards.reduce((sum, one) => sum + (one - mean) ** 2, 0) / rewards.length);
}

function tasks() {
  const kinds = { all: "all tasks", mixed: "siblings that differ", won: "won by some", lost: "won by none" };
  const kind = make("select", { "data-keep": "kind", onchange: (event) => { filter.kind = event.target.value; draw(); } },
    Object.entries(kinds).map(([name, label]) => make("option", { value: name, selected: filter.kind === name }, label)));
  const search = make("input", { type: "search", "data-keep": "search", placeholder: "search tasks", value: filter.text, oninput: (event) => { filter.text = event.target.value; draw(); } });
  const found = visible();
  const alike = new Set(current().tasks.map((task) => task.task_text)).size < current().tasks.length; // a text that several share tells none apart
  const item = (task) => make("li", { "aria-current": String(task.task === place.task), onclick: () => go({ task: task.task, rollout: null, turn: null }) },
    make("span", { class: "dots" }, task.rollouts.map((one) => make("span", { class: one.won ? "won" : "lost", title: `reward ${shown(one.reward)}${one.privileged ? ", privileged" : ""}` }, one.won ? "●" : "○"))),
    ` ${task.rollouts.filter((one) => one.won).length}/${task.rollouts.length}`,
    make("span", { class: "none", title: "standard deviation of the siblings' rewards: without spread there is no credit" }, `  ± ${shown(spread(task))}`),
    make("small", {}, make("b", {}, task.category || ""), ` ${alike || !task.task_text ? nameOf(task) : task.task_text.slice(0, 90)}`));
  const shownNow = taskOf();
  const summary = narrow() && shownNow ? `tasks: ${nameOf(shownNow)} of ${current().tasks.length}` : `${found.length} of ${current().tasks.length} tasks  (j, k)`;
  return make("section", { class: "tasks" }, fold("choice", summary, !narrow(), search, kind, make("ol", {}, found.map(item)),
    make("p", { class: "legend" }, "● a sibling that won, ○ one that did not; ± how far their rewards differ: where they are equal there is no credit to give.")));
}

const nameOf = (task) => task.task_id || task.task;

// ---------------------------------------------------------------- grid

const CELL = 34, LEAST = 30, LEFT = 118, TOP = 20;

function columns() {
  const found = new Set(current().tasks.flatMap((task) => task.rollouts.flatMap((one) => one.turns.flatMap((turn) => Object.keys(turn.credit)))));
  return MEASURES.filter((name) => found.has(name));
}

function scaled(name) {
  const middle = name === "weight" || name === "density" ? 1 : 0;
  const values = current().tasks.flatMap((task) => task.rollouts.flatMap((one) => one.turns.map((turn) => turn.credit[name]))).filter((value) => value !== undefined);
  const reach = values.reduce((most, value) => Math.max(most, Math.abs(value - middle)), 0) || 1;
  return { middle, reach, part: (value) => (value - middle) / reach };
}

function grid() {
  const task = taskOf();
  if (!task) return make("section", {}, "no task");
  const known = columns();
  if (!known.includes(measure)) measure = known[0];
  const scale = measure ? scaled(measure) : null;
  const longest = Math.max(...task.rollouts.map((one) => one.turns.length), 1);
  const room = innerWidth - (narrow() ? 24 : 234) - LEFT - 30;
  const size = Math.max(LEAST, Math.min(CELL, Math.floor((long() || innerWidth < 1100 ? room : room / 2.2) / longest)));
  const height = TOP + task.rollouts.length * (size + 8) + 8;
  const names = shape("svg", { class: "names", width: LEFT, height });
  const svg = shape("svg", { width: longest * size + 28, height, role: "grid" });
  for (let at = 0; at < longest; at++) svg.append(shape("text", { class: "soft", x: at * size + size / 2, y: 13, "text-anchor": "middle" }, String(at)));
  names.append(shape("text", { class: "soft", x: 2, y: 13 }, "sibling \u00a0 turn →"));
  task.rollouts.forEach((rollout, row) => { names.append(siblingName(rollout, row, size)); svg.append(...sibling(task, rollout, row, size, scale)); });
  svg.append(...arcsOf(task, size));
  const chooser = make("select", { "data-keep": "measure", onchange: (event) => { measure = event.target.value; draw(); } }, known.map((name) => make("option", { value: name, selected: name === measure }, labelOf(name))));
  const which = make("select", { "data-keep": "arcs", onchange: (event) => { arcs = event.target.value; draw(); } }, ["selected", "all", "none"].map((name) => make("option", { value: name, selected: name === arcs }, `matches: ${name}`)));
  const matched = task.rollouts.some((one) => one.turns.some((turn) => turn.sources.length));
  return make("section", { class: "siblings" }, make("div", {}, known.length ? ["colour ", chooser, " "] : null, matched ? which : null), make("p", { class: "text" }, make("b", {}, `${nameOf(task)}${task.category ? ` · ${task.category}` : ""}  `), task.task_text || ""),
    legend(scale, task, matched), make("div", { class: "grid" }, names, svg));
}

function why() {
  const task = taskOf(), rollout = task && rolloutOf(task, place.rollout), turn = turnOf(rollout, place.turn);
  return make("section", { class: "why" }, turn ? [waterfall(rollout, turn), tokens(turn)] : null, task ? skill(task) : null);
}

function legend(scale, task, matched) {
  if (!scale) return null;
  const turns = task.rollouts.flatMap((one) => one.turns);
  const cuts = [...new Set(turns.map((turn) => turn.credit.cut))].filter((cut) => CUTS[cut]);
  const swatch = (part) => make("span", { class: "swatch", style: `background:${tint(part)}` });
  const signs = [["●", "won"], ["○", "not won"], ["✗", "invalid action"], ...(task.rollouts.some((one) => one.privileged) ? [["◆", "played by the teacher, with the privileged text in its prompts, and trained without"]] : []), ...(turns.some((turn) => "span" in turn.credit) ? [["▭", "a frame: one decision span", meaning("span")]] : []), ...cuts.map((cut) => [CUTS[cut][0], CUTS[cut][1]]), ...(matched ? [["⌒", "the turns under whose histories the chosen one was scored"]] : [])];
  return make("div", { class: "legend" }, make("div", {}, shown(scale.middle - scale.reach), " ", [-1, -0.5, 0, 0.5, 1].map(swatch), " ", shown(scale.middle + scale.reach), "  ", make("b", {}, labelOf(measure)), `: ${meaning(measure) || ""}`),
    make("div", {}, signs.map(([sign, text, title]) => make("span", { class: "sign", title: title || null }, make("b", {}, sign), ` ${text}`)), columns().includes("advantage") && measure !== "advantage" ? make("span", { class: "sign", title: meaning("advantage") }, make("b", {}, "A"), " the episode's advantage over its siblings") : null));
}

function skill(task) {
  return task.skill_text ? make("details", {}, make("summary", {}, `privileged text (${(task.skill_ids || []).join(", ")})`), make("p", { class: "text" }, task.skill_text)) : null;
}

function siblingName(rollout, row, size) {
  const first = rollout.turns.find((turn) => "advantage" in turn.credit);
  const label = `${rollout.won ? "●" : "○"}${rollout.privileged ? "◆" : ""} ${rollout.rollout.replace(/^0+(?=\d)/, "")}  ${first ? `A ${signed(first.credit.advantage)}` : rollout.stop || ""}`;
  const title = shape("title", {}, `reward ${shown(rollout.reward)}, score ${shown(rollout.score)}, ${rollout.stop || ""} ${rollout.message || ""}`);
  return shape("text", { x: 2, y: TOP + row * (size + 8) + size / 2 + 4, style: `fill:var(--${rollout.won ? "won" : "lost"})` }, label, title);
}

function sibling(task, rollout, row, size, scale) {
  const y = TOP + row * (size + 8);
  const parts = rollout.turns.map((turn, at) => cell(task, rollout, turn, at * size, y, size, scale));
  spans(rollout).forEach(([from, to, cut]) => {
    parts.push(shape("rect", { class: "span", x: from * size + 1, y: y - 2, width: (to - from) * size - 2, height: size + 4, rx: 5, fill: "none", stroke: "var(--text)", "stroke-width": 1.4, "pointer-events": "none" }));
    if (CUTS[cut]) parts.push(shape("text", { x: from * size - 4, y: y - 1, style: "font-size:9px", "pointer-events": "none" }, CUTS[cut][0]));
  });
  return parts;
}

function spans(rollout) {
  const found = [];
  rollout.turns.forEach((turn, at) => {
    if (!("span" in turn.credit)) return;
    const open = found.at(-1);
    if (open && rollout.turns[open[0]].credit.span === turn.credit.span) open[1] = at + 1;
    else found.push([at, at + 1, turn.credit.cut]);
  });
  return found;
}

function cell(task, rollout, turn, x, y, size, scale) {
  const value = measure ? turn.credit[measure] : undefined;
  const chosen = rollout.rollout === place.rollout && turn.turn === place.turn;
  const rect = shape("rect", { x: x + 3, y, width: size - 6, height: size, rx: 3, fill: value === undefined ? "var(--panel)" : tint(scale.part(value)), stroke: chosen ? "var(--mark)" : "var(--line)", "stroke-width": chosen ? 3 : 1 });
  const group = shape("g", { role: "gridcell", "aria-selected": String(chosen), style: "cursor:pointer", "data-rollout": rollout.rollout, "data-turn": turn.turn, "data-value": value === undefined ? null : value, onclick: () => go({ rollout: rollout.rollout, turn: turn.turn }) }, rect, shape("title", {}, `turn ${turn.turn}: ${turn.action}\n${measure ? labelOf(measure) : ""} ${shown(value, 3)}${turn.turn_reward ? `\nreward ${shown(turn.turn_reward, 3)}` : ""}`));
  if (value !== undefined) group.append(shape("text", { x: x + size / 2, y: y + size / 2 + 4, "text-anchor": "middle", style: `font-size:10px;${Math.abs(scale.part(value)) > 0.6 ? "fill:var(--ground)" : ""}` }, cellText(value)));
  if (!turn.action_valid) group.append(shape("text", { x: x + size - 9, y: y + 10, style: "font-size:9px" }, "✗"));
  return group;
}

const cellText = (value) => value.toFixed(Math.abs(value) < 9.995 ? 2 : 0).replace("-", "−").replace(/^−?(0\.00)$/, "$1");

function arcsOf(task, size) {
  if (arcs === "none") return [];
  const row = Object.fromEntries(task.rollouts.map((rollout, at) => [rollout.rollout, at]));
  const spot = (name, number) => {
    const at = task.rollouts[row[name]].turns.findIndex((turn) => turn.turn === number);
    return [at * size + size / 2, TOP + row[name] * (size + 8) + size / 2];
  };
  const drawn = [];
  for (const rollout of task.rollouts) for (const turn of rollout.turns) {
    const chosen = rollout.rollout === place.rollout && turn.turn === place.turn;
    if (arcs === "selected" && !chosen) continue;
    turn.sources.forEach((source, at) => {
      const [x1, above] = spot(source.rollout, source.turn), [x2, below] = spot(rollout.rollout, turn.turn);
      const edge = (Math.sign(below - above) * size) / 2, y1 = above + edge, y2 = below - edge; // numbers stay free
      const bend = (x1 + x2) / 2 + 26;
      drawn.push(shape("path", { class: "match", d: `M${x1} ${y1}Q${bend} ${(y1 + y2) / 2} ${x2} ${y2}`, fill: "none", stroke: "var(--mark)", "stroke-width": 1 + 4 * source.weight, opacity: chosen ? 0.85 : 0.25, style: "cursor:pointer", "data-source": at, onclick: () => go({ rollout: rollout.rollout, turn: turn.turn, source: at }) },
        shape("title", {}, `turn ${turn.turn} is scored under sibling ${source.rollout}, turn ${source.turn}: similarity ${shown(source.similarity, 3)}, weight ${shown(source.weight)}`)));
    });
  }
  return drawn;
}

// ---------------------------------------------------------------- turn

function detail() {
  const task = taskOf();
  const rollout = task && rolloutOf(task, place.rollout);
  const turn = turnOf(rollout, place.turn);
  if (!turn) return make("section", { class: "detail" }, make("p", { class: "none" }, rollout ? `no turn was played: ${rollout.message || rollout.stop}` : "no turn"));
  const source = turn.sources[place.source] || turn.sources[0];
  const other = source && turnOf(rolloutOf(task, source.rollout), source.turn);
  return make("section", { class: "detail" }, make("div", { class: "pair" }, played(rollout, turn), place.step === PANEL ? null : matched(turn, source, other)), facts(turn));
}

function block(name, value) {
  return value ? [make("h2", {}, name), make("p", { class: "text" }, value)] : [];
}

function played(rollout, turn) {
  const outcome = make("p", { class: rollout.won ? "won" : "lost" }, `episode ${rollout.won == null ? "ended (success unknown)" : rollout.won ? "won" : "not won"}, reward ${shown(rollout.reward)}, ended: ${rollout.stop || "–"}`);
  const earned = turn.turn_reward === undefined ? null : make("p", { class: "earned" }, `this turn's reward ${shown(turn.turn_reward, 3)} of the episode's ${shown(rollout.reward, 3)}`);
  return make("div", { class: "turn" }, make("h3", {}, `${place.step === PANEL ? "panel" : "sibling"} ${rollout.rollout}, turn ${turn.turn}`), outcome, earned, make("p", { class: "reason" }, reason(rollout, turn)), ...block("thinking", turn.thinking || "(none)"), ...block(turn.action_valid ? "action" : "action (invalid)", turn.action), ...block("observation", turn.observation),
    make("details", {}, make("summary", {}, "prompt"), make("p", { class: "text" }, turn.prompt || "")), ...block("what the teacher read here", turn.credit.privileged_text), ...block("what the teacher thought here", turn.credit.teacher_thinking), ...block("and would have done", turn.credit.teacher_action));
}

function matched(turn, source, other) {
  if (!source) return make("div", { class: "turn matched", id: "matched" }, make("p", { class: "none" }, turn.unasked ? "The teacher was not asked here: all siblings did equally well, so nothing that it thinks could move any credit." : "teacher_thinking" in turn.credit ? "No sibling turn matched: the turn keeps its own privileged view." : "This method matches no sibling turns."));
  const tabs = turn.sources.map((one, at) => make("button", { "aria-selected": String(one === source), onclick: () => go({ source: at }) }, `${one.rollout}·${one.turn}`));
  return make("div", { class: "turn matched", id: "matched", "data-rollout": source.rollout, "data-turn": source.turn }, make("div", {}, tabs, turn.sources.length > 1 ? " (m)" : ""),
    make("h3", {}, `scored under sibling ${source.rollout}, turn ${source.turn}`),
    make("p", { class: "none" }, term("similarity", "similarity"), ` ${shown(source.similarity, 3)}, `, term("match", "weight"), ` ${shown(source.weight)}, `, term("alpha"), ` ${shown(turn.credit.alpha)}: ${shown(100 * (turn.credit.alpha || 0), 0)} % of the privileged view come from the matched turns`),
    ...block("what the teacher thought there", other.credit.teacher_thinking), ...block("and would have done", other.credit.teacher_action), ...block("whose history it was given (the skill stood in it as well)", other.prompt), ...block("the sibling itself did", other.action), ...block("and saw", other.observation));
}

// ---------------------------------------------------------------- tokens

const SHADES = { identity: "identity gap", rectified: "rectified gap", difference: "rectified − identity" };

function tokens(turn) {
  const texts = turn.token_texts, own = turn.credit.token_identity_gaps, aligned = turn.credit.token_rectified_gaps;
  if (!texts) return null;
  if (!own) return turn.unasked || "teacher_thinking" in turn.credit || "identity_gap" in turn.credit ? make("p", { class: "none" }, "Its tokens were not scored: the advantage is 0, so no gap could move its credit.") : null;
  const values = { identity: own, rectified: aligned, difference: aligned && aligned.map((value, at) => value - own[at]) };
  if (!values[shading]) shading = "identity";
  const picked = values[shading];
  const reach = Math.max(...own.map(Math.abs), ...(aligned || []).map(Math.abs), 1e-6);
  const buttons = Object.keys(SHADES).filter((name) => values[name]).map((name) => make("button", { "aria-pressed": String(name === shading), onclick: () => { shading = name; draw(); } }, SHADES[name]));
  const words = texts.map((text, at) => make("span", { title: `${SHADES[shading]} ${signed(picked[at], 3)}`, style: `background:${tint((picked[at] || 0) / reach, "var(--ground)")};${Math.abs(picked[at] || 0) > 0.6 * reach ? "color:var(--ground)" : ""}` }, text));
  return make("div", {}, make("h2", {}, "what the privileged view thinks of each token"), buttons, make("p", { class: "text tokens" }, words), make("div", { class: "legend" }, `blue: less likely with the skill, orange: more likely; full colour at ±${shown(reach)} nats`));
}

// ---------------------------------------------------------------- the way to W

function way(rollout, turn) {
  const credit = turn.credit;
  if (!("density" in credit)) return null;
  const mass = (turns) => turns.reduce((sum, one) => sum + (one.credit.tokens || 0), 0);
  const members = rollout.turns.filter((one) => one.credit.span === credit.span || !("span" in credit));
  const even = mass(members) ? (mass(rollout.turns) * credit.span_budget) / mass(members) : 1;
  const neutral = credit.tokens === 0 || credit.advantage === 0;
  const level = neutral ? 1 : even, density = neutral ? 1 : credit.density;
  return [["even", 1], ["span_budget", level - 1], ["turn_share", density - level], ["projected_density", credit.projected_density - density], ["mixed", credit.weight - credit.projected_density]];
}

function waterfall(rollout, turn) {
  const steps = way(rollout, turn);
  if (!steps) return null;
  const credit = turn.credit, width = 420, row = 19, left = 130;
  let sum = 0;
  const bars = steps.map(([name, change]) => ({ name, change, from: sum, to: (sum += change) }));
  const ends = bars.map((bar) => bar.to), most = Math.max(...ends), low = Math.min(...ends);
  const least = low - 0.3 * (most - low || 1); // the first bar is cut off: what matters is how far W is moved from 1
  const x = (value) => left + ((width - left - 60) * (Math.max(value, least) - least)) / (most - least || 1);
  const svg = shape("svg", { width, height: row * (bars.length + 1) + 6, viewBox: `0 0 ${width} ${row * (bars.length + 1) + 6}`, id: "waterfall", "data-weight": sum });
  bars.forEach((bar, at) => {
    svg.append(shape("text", { x: 0, y: at * row + 14 }, labelOf(bar.name), shape("title", {}, meaning(bar.name))));
    svg.append(shape("rect", { x: Math.min(x(bar.from), x(bar.to)), y: at * row + 4, width: Math.max(Math.abs(x(bar.to) - x(bar.from)), 1), height: row - 6, fill: at === 0 ? "var(--soft)" : bar.change < 0 ? "var(--less)" : "var(--more)" }));
    svg.append(shape("text", { x: Math.max(x(bar.from), x(bar.to)) + 4, y: at * row + 14 }, at === 0 ? "1" : signed(bar.change, 3)));
  });
  const why = credit.advantage === 0 ? make("p", { class: "none" }, "A is 0, so there is no credit to give to turns.") : null;
  svg.append(shape("text", { x: 0, y: bars.length * row + 14, style: "font-weight:600" }, `W = ${shown(sum, 3)},  credit A·W = ${signed(credit.advantage, 3)} × ${shown(sum, 3)} = ${signed(credit.advantage * sum, 3)}`));
  const values = [["evidence", signed(credit.evidence, 3)], ["span_budget", shown(credit.span_budget, 3)], ["turn_share", shown(credit.turn_share, 3)]];
  return make("div", {}, make("h2", {}, "from the episode's advantage A to this turn's credit A·W: ", values.map(([name, value], at) => [at ? ", " : "", term(name), ` ${value}`])), svg, why,
    fold("meanings", "what these mean", !narrow(), glossary(["advantage", "evidence", "even", "span_budget", "turn_share", "projected_density", "mixed", "weight"])));
}

function facts(turn) {
  const plain = Object.entries(turn.credit).filter(([, value]) => typeof value === "number" || (typeof value === "string" && value.length < 20));
  const rest = [["prompt tokens", turn.prompt_tokens], ["response tokens", turn.response_tokens], ["truncated", String(turn.truncated)], ["history shortened", String(turn.history_shortened)]];
  return fold("numbers", "all numbers of the turn", false, table(["", ""], [...plain.map(([name, value]) => [term(name, name.replaceAll("_", " ")), value]), ...rest]));
}

// ---------------------------------------------------------------- evaluation

function range(before, after, width = narrow() ? 90 : 220, height = 18) {
  const svg = shape("svg", { class: "range", width, height, role: "img", "aria-label": `success ${estimate(before)} to ${estimate(after)}` });
  const x = (value) => 5 + ((width - 10) * value) / 100;
  svg.append(shape("line", { x1: x(0), x2: x(100), y1: height / 2, y2: height / 2, stroke: "var(--line)" }));
  [[before, "var(--less)", "var(--ground)", 6], [after, "var(--more)", "var(--more)", 12]].forEach(([one, ink, fill, y]) => {
    if (!one || one.mean === null) return;
    if (one.low !== null && one.low !== undefined) svg.append(shape("line", { x1: x(one.low), x2: x(one.high), y1: y, y2: y, stroke: ink, "stroke-width": 1.5 }));
    svg.append(shape("circle", { cx: x(one.mean), cy: y, r: 3.5, stroke: ink, fill, "stroke-width": 1.5 }));
  });
  return svg;
}

function evaluation() {
  const { before, after } = head.evaluation;
  const any = after || before;
  const names = ["all", ...Object.keys(any.categories || {})];
  const of = (result, name) => (result ? (name === "all" ? result : (result.categories || {})[name]) : null);
  const rows = names.map((name) => {
    const [first, last] = [before, after].map((result) => of(result, name));
    return [name, range(first && first.success, last && last.success), ...[first, last].map((row) => make("div", {}, estimate(row && row.success), make("small", { class: "none" }, `score ${estimate(row && row.score)}`)))];
  });
  const episodes = new Map();
  for (const [when, result] of Object.entries(head.evaluation)) for (const one of result.outcomes || []) episodes.set(one.task_id, { ...(episodes.get(one.task_id) || {}), [when]: one });
  const mark = (one) => (one ? make("span", { class: one.won ? "won" : "lost" }, `${one.won === null ? "? unknown" : one.won ? "● won" : "○ lost"}  score ${shown(one.score)}, ${one.turns} turns`) : "–");
  const said = (task) => (head.steps.includes(PANEL) ? make("button", { title: "its dialogues, before and after", onclick: () => go({ pane: "credit", step: PANEL, task, rollout: null, turn: null }) }, task) : task);
  const changed = [...episodes].filter(([, one]) => one.before && one.after && one.before.won !== one.after.won);
  const gained = changed.filter(([, one]) => one.after.won).length;
  const order = ([, one]) => (one.before && one.after ? Number(one.after.won) - Number(one.before.won) : 2);
  const list = [...episodes].sort((left, right) => order(left) - order(right)).map(([task, one]) => [said(task), (one.after || one.before).category, mark(one.before), mark(one.after)]);
  return make("div", { class: "wide" }, make("p", { class: "legend" }, panelNote()), make("p", {}, `panel ${any.panel} of ${any.environment}, checksum ${any.checksum}, ${any.episodes} episodes; newly won ${gained}, newly lost ${changed.length - gained}`),
    make("div", { class: "legend" }, "success with its 95 % interval, 0 to 100 %: ", make("span", { style: "color:var(--less)" }, "○ before"), "  ", make("span", { style: "color:var(--more)" }, "● after")), table(["category", "success", "before, %", "after, %"], rows), make("h2", {}, "episode by episode, newly lost first"), table(["task", "category", "before", "after"], list));
}

addEventListener("keydown", keyed);
addEventListener("hashchange", () => go(placeOf(location.hash), false));
go(placeOf(location.hash), false);
