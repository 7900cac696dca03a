"use strict";
// An episode as one text to read, with each turn's credit beside it and one sentence on why it is so much.

const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
const gapOf = (turn) => (turn.credit.rectified_gap === undefined ? turn.credit.identity_gap : turn.credit.rectified_gap);
const gapsOf = (turns) => turns.map(gapOf).filter((gap) => typeof gap === "number");
const creditOf = (turn) => turn.credit.advantage * (turn.credit.weight === undefined ? 1 : turn.credit.weight);

// why a turn got more or less than its share of the episode's credit
function reason(rollout, turn) {
  const { advantage, weight } = turn.credit;
  if (typeof advantage !== "number") return "";
  const all = rollout.turns.map((one) => one.credit.advantage), apart = all.some((one) => Math.abs(one - all[0]) > 1e-6);
  if (apart && weight === undefined) return `This method gives the turn ${signed(advantage)} and the episode's turns ${signed(mean(all))} on average.`;
  if (advantage === 0) return "Its siblings did equally well, so there is no credit to give.";
  const start = `The episode did ${advantage > 0 ? "better" : "worse"} than its siblings, so its turns become ${advantage > 0 ? "more" : "less"} likely`;
  if (weight === undefined) return `${start}, all of them alike.`;
  if (Math.abs(weight - 1) < 0.005) return `${start}; this one by its even share.`;
  const amount = weight > 1 ? `this one by ${shown(weight)} times its even share` : `this one by only ${shown(weight)} of its even share`;
  return `${start}; ${amount}${cause(rollout, turn)}.`;
}

// what moved W furthest towards where it is
function cause(rollout, turn) {
  const steps = way(rollout, turn), more = turn.credit.weight > 1;
  const moves = (steps || []).slice(1).filter(([, change]) => (more ? change > 0 : change < 0));
  const [name] = telling(moves, ([, change]) => Math.abs(change)) || [];
  const span = rollout.turns.filter((one) => one.credit.span === turn.credit.span);
  const ends = span.length > 1 ? `turns ${span[0].turn} to ${span.at(-1).turn}` : `turn ${turn.turn} alone`;
  const compared = (whose, mine, others, rest) => {
    const [own, theirs] = [gapsOf(mine), gapsOf(others)];
    if (!own.length || !theirs.length) return "";
    return `, because the skill makes ${whose} words ${mean(own) > mean(theirs) ? "more" : "less"} likely than those of ${rest} (${signed(mean(own))} against ${signed(mean(theirs))} nats a token)`;
  };
  if (name === "span_budget") return compared(`its decision span's (${ends})`, span, rollout.turns.filter((one) => !span.includes(one)), "the episode's other turns");
  if (name === "turn_share") return compared("its", [turn], span.filter((one) => one !== turn), `the other turns of its decision span (${ends})`);
  if (name === "projected_density") return ", because turns beyond the limit gave their surplus to the others";
  return steps ? "" : compared("its", [turn], rollout.turns.filter((one) => one !== turn), "the episode's other turns");
}

// the columns of the text: before and after of a panel's task, the same task at its first and last step, or one episode
function columnsOf(task) {
  if (place.step === PANEL) return task.rollouts.map((rollout) => [`${rollout.rollout} training`, rollout]);
  const ends = head.again[task.task];
  if (!ends) return [[`step ${place.step}, sibling ${place.rollout}`, rolloutOf(task, place.rollout)]];
  return ends.map((step) => {
    const there = kept.get(step).tasks.find((one) => one.task === task.task);
    return [`step ${step}, sibling ${place.rollout}`, rolloutOf(there, place.rollout) || there.rollouts[0]];
  });
}

function reading() {
  const task = taskOf();
  if (!task) return make("section", { class: "detail" }, "no task");
  const alone = place.step !== PANEL && !head.again[task.task];
  return make("section", { class: "read" }, block("task", task.task_text), block("skill, which the teacher reads", task.skill_text),
    make("div", { class: alone ? "" : "pair" }, columnsOf(task).map(([name, rollout]) => episode(name, rollout))));
}

function episode(name, rollout) {
  const ended = rollout.won == null ? "ended" : rollout.won ? "won" : "not won";
  return make("article", {}, make("h3", {}, name, make("span", { class: rollout.won ? "won" : "lost" }, `  ${ended}, reward ${shown(rollout.reward)}, ${rollout.turns.length} turns`)),
    rollout.turns.map((turn, at) => spoken(rollout, turn, at)), rollout.turns.length ? null : make("p", { class: "none" }, rollout.message || rollout.stop));
}

function spoken(rollout, turn, at) {
  const credit = creditOf(turn), known = Number.isFinite(credit);
  const reach = Math.max(...rollout.turns.map((one) => Math.abs(creditOf(one)) || 0), 1e-6);
  const label = `turn ${turn.turn}${known ? `, credit ${signed(credit)}` : ""}${turn.action_valid === false ? ", invalid" : ""}`;
  const opening = at === 0 && turn.prompt ? make("details", {}, make("summary", {}, "first prompt"), make("p", { class: "text" }, turn.prompt)) : null;
  return make("div", { class: "spoken", "data-turn": turn.turn, "data-credit": known ? credit : null, style: `border-color:${known ? tint(credit / reach) : "var(--line)"}` },
    make("h2", { title: known && turn.credit.weight !== undefined ? `A·W = ${signed(turn.credit.advantage, 3)} × ${shown(turn.credit.weight, 3)}` : null }, label), opening,
    turn.thinking ? make("p", { class: "text thought" }, turn.thinking) : null, make("p", { class: "text act" }, turn.action || turn.response), turn.observation ? make("p", { class: "text" }, turn.observation) : null,
    make("p", { class: "none reason" }, reason(rollout, turn)));
}
